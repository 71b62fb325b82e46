"""Merges and indexes everything that is flushed when it starts, however little that is. Ends with 1
when it is not done in time; what was merged by then stays merged.

For example::

    spark-submit spark_apps/checkpoint.py --table s3://lake/flights.lance --timeout-seconds 600
"""

import sys

from memwal.jobs.job import JobResult
from memwal.spark.application import (
    Application,
    add_merge_options,
    job_parser,
    merge_arguments,
    run_application,
    seconds,
)


def main() -> int:
    parser = job_parser("checkpoint", __doc__)
    parser.add_argument(
        "--timeout-seconds",
        type=seconds,
        metavar="N",
        help="how long it may take; looked at between commits (default: no limit)",
    )
    add_merge_options(parser)
    return run_application(parser, checkpoint)


def checkpoint(application: Application) -> JobResult:
    options = application.options
    return application.table.checkpoint(
        flush=False,
        timeout=options.timeout_seconds,
        **merge_arguments(application),
    )


if __name__ == "__main__":
    sys.exit(main())
