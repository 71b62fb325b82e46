"""Rewrites small fragments of a MemWAL table's base table, and those with many deleted rows.

For example::

    spark-submit spark_apps/compact.py --table s3://lake/flights.lance --result compact.json
"""

import sys

from memwal.jobs.options import CompactOptions
from memwal.jobs.table.compact import compact
from memwal.spark.application import run_table_job

if __name__ == "__main__":
    sys.exit(run_table_job("compact", __doc__, CompactOptions, compact))
