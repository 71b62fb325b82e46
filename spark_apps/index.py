"""Catches the maintained indexes of a MemWAL table up with the merged rows.

For example::

    spark-submit spark_apps/index.py --table s3://lake/flights.lance --result index.json
"""

import sys

from memwal.jobs.index.job import build_indexes
from memwal.jobs.options import IndexOptions
from memwal.spark.application import run_table_job

if __name__ == "__main__":
    sys.exit(run_table_job("index", __doc__, IndexOptions, build_indexes))
