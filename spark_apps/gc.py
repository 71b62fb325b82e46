"""Deletes the objects of a MemWAL table that are not needed any more: merged generations, their log
entries, old region manifests, files of crashed processes. Only counts unless --no-dry-run is given.

For example::

    spark-submit spark_apps/gc.py --table s3://lake/flights.lance --explain
    spark-submit spark_apps/gc.py --table s3://lake/flights.lance --no-dry-run --result gc.json
"""

import sys

from memwal.jobs.gc import collect_garbage
from memwal.jobs.options import GcOptions
from memwal.spark.application import run_table_job

if __name__ == "__main__":
    sys.exit(run_table_job("gc", __doc__, GcOptions, collect_garbage))
