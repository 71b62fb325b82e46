"""Merges and indexes all generations that are flushed when it starts. Exit code 1 if it is not done
in time; generations that were merged by then stay merged.

For example::

    spark-submit spark_apps/checkpoint.py --table s3://lake/flights.lance --timeout-seconds 600
"""

import sys

from memwal.jobs.options import CheckpointOptions
from memwal.jobs.table.checkpoint import checkpoint
from memwal.spark.application import run_table_job

if __name__ == "__main__":
    sys.exit(run_table_job("checkpoint", __doc__, CheckpointOptions, checkpoint))
