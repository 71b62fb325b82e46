"""Publishes the state of all regions of a MemWAL table, so that readers need not look each up.

For example::

    spark-submit spark_apps/snapshot.py --table s3://lake/flights.lance --result snapshot.json
"""

import sys

from memwal.maintenance.results import JobResult
from memwal.spark.application import Application, job_parser, run_application


def main() -> int:
    return run_application(job_parser("snapshot", __doc__), build_snapshot)


def build_snapshot(application: Application) -> JobResult:
    return application.table.build_snapshot(run=application.run)


if __name__ == "__main__":
    sys.exit(main())
