"""Flushes the rows of a MemWAL table that closed or dead writers left in the log.

For example::

    spark-submit spark_apps/recover.py --table s3://lake/flights.lance --result recover.json
"""

import sys

from memwal.jobs.options import RecoverOptions
from memwal.jobs.table.recover import recover
from memwal.spark.application import run_table_job

if __name__ == "__main__":
    sys.exit(run_table_job("recover", __doc__, RecoverOptions, recover))
