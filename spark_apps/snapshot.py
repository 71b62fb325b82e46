"""Publishes the state of all regions of a MemWAL table, so that readers need not look each up.

For example::

    spark-submit spark_apps/snapshot.py --table s3://lake/flights.lance --result snapshot.json
"""

import sys

from memwal.jobs.options import SnapshotOptions
from memwal.jobs.table.snapshot import build_snapshot
from memwal.spark.application import run_table_job

if __name__ == "__main__":
    sys.exit(run_table_job("snapshot", __doc__, SnapshotOptions, build_snapshot))
