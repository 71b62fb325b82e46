"""Merges and indexes everything that is flushed when it starts, however little that is. Ends with 1
when it is not done in time; what was merged by then stays merged.

For example::

    spark-submit spark_apps/checkpoint.py --table s3://lake/flights.lance --timeout-seconds 600
"""

import sys
from datetime import timedelta

from memwal.maintenance.merge import DEFAULT_COMMIT_BYTES
from memwal.maintenance.results import JobResult
from memwal.quality.rules import read_rules
from memwal.spark.application import Application, job_parser, positive_int, run_application

# Every task commits to the same table, and commits wait for one another.
MOST_TASKS = 8


def main() -> int:
    parser = job_parser("checkpoint", __doc__)
    parser.add_argument(
        "--timeout-seconds",
        type=seconds,
        metavar="N",
        help="how long it may take; looked at between commits (default: no limit)",
    )
    parser.add_argument(
        "--commit-bytes",
        type=positive_int,
        default=DEFAULT_COMMIT_BYTES,
        metavar="N",
        help="bytes in memory that go into one commit, which bounds a worker's memory "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--quality",
        metavar="JSON",
        help="rules of quality as a policy has them, or @FILE with them (default: all rows enter)",
    )
    parser.add_argument(
        "--max-tasks",
        type=positive_int,
        metavar="N",
        help="tasks that the regions are divided into at most "
        f"(default: what runs at once, up to {MOST_TASKS})",
    )
    return run_application(parser, checkpoint)


def seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


def checkpoint(application: Application) -> JobResult:
    options = application.options
    return application.table.checkpoint(
        flush=False,
        timeout=options.timeout_seconds,
        commit_bytes=options.commit_bytes,
        quality=read_rules(options.quality) if options.quality else None,
        max_tasks=options.max_tasks or min(application.parallelism, MOST_TASKS),
        run=application.run,
    )


if __name__ == "__main__":
    sys.exit(main())
