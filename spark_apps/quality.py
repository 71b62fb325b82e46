"""Checks the rows of the base table of a MemWAL table. Ends with 1 when they are not as expected;
the result tells what was found all the same.

For example::

    spark-submit spark_apps/quality.py --table s3://lake/flights.lance --quality @rules.json
"""

import sys

from memwal.jobs.options import QualityOptions
from memwal.jobs.table.quality_check import check_quality
from memwal.spark.application import job_parser, run_application


def main() -> int:
    return run_application(
        job_parser("quality", __doc__),
        QualityOptions,
        lambda application: check_quality(application.table.location, application.options),
        verdict=lambda result: result.warnings[0] if result.warnings else None,
    )


if __name__ == "__main__":
    sys.exit(main())
