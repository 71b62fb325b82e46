"""Publishes the state of all regions of a MemWAL table, so that readers need not look each up.

For example::

    spark-submit spark_apps/snapshot.py --table s3://lake/flights.lance --result snapshot.json
"""

import sys

from memwal.jobs.job import JobResult
from memwal.spark.application import Application, job_parser, positive_int, run_application


def main() -> int:
    parser = job_parser("snapshot", __doc__)
    parser.add_argument(
        "--max-tasks",
        type=positive_int,
        metavar="N",
        help="tasks that the regions are divided into at most; few regions take one "
        "(default: what runs at once)",
    )
    return run_application(parser, build_snapshot)


def build_snapshot(application: Application) -> JobResult:
    return application.table.build_snapshot(
        max_tasks=application.options.max_tasks or application.parallelism, run=application.run
    )


if __name__ == "__main__":
    sys.exit(main())
