"""Merges and indexes all generations that are flushed when it starts. Exit code 1 if it is not done
in time; what was merged by then stays merged.

For example::

    spark-submit spark_apps/checkpoint.py --table s3://lake/flights.lance --timeout-seconds 600
"""

import sys

from memwal.jobs.options import CheckpointOptions
from memwal.jobs.table.checkpoint import checkpoint
from memwal.spark.application import job_parser, run_application


def main() -> int:
    return run_application(
        job_parser("checkpoint", __doc__),
        CheckpointOptions,
        lambda application: checkpoint(application.table.location, application.options),
    )


if __name__ == "__main__":
    sys.exit(main())
