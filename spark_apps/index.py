"""Catches the maintained indexes of a MemWAL table up with what was merged.

For example::

    spark-submit spark_apps/index.py --table s3://lake/flights.lance --result index.json
"""

import sys

from memwal.maintenance.results import JobResult
from memwal.spark.application import Application, job_parser, run_application


def main() -> int:
    return run_application(job_parser("index", __doc__), build_indexes)


def build_indexes(application: Application) -> JobResult:
    return application.table.build_indexes(run=application.run)


if __name__ == "__main__":
    sys.exit(main())
