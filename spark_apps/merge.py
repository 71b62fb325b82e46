"""Merges flushed generations of a MemWAL table into its base table.

For example::

    spark-submit spark_apps/merge.py --table s3://lake/flights.lance --result merge.json
"""

import sys
from uuid import UUID

from memwal.maintenance.merge import DEFAULT_COMMIT_BYTES
from memwal.maintenance.results import JobResult
from memwal.spark.application import Application, job_parser, positive_int, run_application

# Every task commits to the same table, and commits wait for one another.
MOST_TASKS = 8


def main() -> int:
    parser = job_parser("merge", __doc__)
    parser.add_argument(
        "--region",
        type=UUID,
        action="append",
        dest="regions",
        metavar="UUID",
        help="merge this region only; can be given again (default: all regions)",
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
        "--max-tasks",
        type=positive_int,
        metavar="N",
        help="tasks that the regions are divided into at most "
        f"(default: what runs at once, up to {MOST_TASKS})",
    )
    return run_application(parser, merge)


def merge(application: Application) -> JobResult:
    options = application.options
    return application.table.merge(
        regions=options.regions,
        commit_bytes=options.commit_bytes,
        max_tasks=options.max_tasks or min(application.parallelism, MOST_TASKS),
        run=application.run,
    )


if __name__ == "__main__":
    sys.exit(main())
