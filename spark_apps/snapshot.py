"""Publishes the state of all regions of a MemWAL table, so that readers need not look each up.

For example::

    spark-submit spark_apps/snapshot.py --table s3://lake/flights.lance --result snapshot.json
"""

import sys

from memwal.jobs.options import SnapshotOptions
from memwal.jobs.table.snapshot import build_snapshot
from memwal.spark.application import job_parser, run_application


def main() -> int:
    return run_application(
        job_parser("snapshot", __doc__),
        SnapshotOptions,
        lambda application: build_snapshot(application.table.location, application.options),
    )


if __name__ == "__main__":
    sys.exit(main())
