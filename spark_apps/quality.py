"""Checks the rows of the base table of a MemWAL table. Exit code 1 if they are not as expected; the
result lists the findings.

For example::

    spark-submit spark_apps/quality.py --table s3://lake/flights.lance --quality @rules.json
"""

import sys

from memwal.jobs.options import QualityOptions
from memwal.jobs.table.quality_check import check_quality
from memwal.spark.application import run_table_job

if __name__ == "__main__":
    sys.exit(
        run_table_job(
            "quality",
            __doc__,
            QualityOptions,
            check_quality,
            failure_of=lambda result: result.warnings[0] if result.warnings else None,
        )
    )
