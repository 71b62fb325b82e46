"""Checks the rows of the base table of a MemWAL table. Ends with 1 when they are not as expected;
the result tells what was found all the same.

For example::

    spark-submit spark_apps/quality.py --table s3://lake/flights.lance --quality @rules.json
"""

import sys

from memwal.jobs.job import JobResult
from memwal.jobs.table.quality_check import check_quality
from memwal.quality.rules import read_rules
from memwal.spark.application import Application, job_parser, positive_int, run_application


def main() -> int:
    parser = job_parser("quality", __doc__)
    parser.add_argument(
        "--quality",
        metavar="JSON",
        required=True,
        help="rules of quality as a policy has them, or @FILE with them",
    )
    parser.add_argument(
        "--sample-rows",
        type=positive_int,
        metavar="N",
        help="look at so many rows, chosen at random (default: all)",
    )
    return run_application(parser, check, verdict=verdict)


def check(application: Application) -> JobResult:
    options = application.options
    return check_quality(
        application.table.location, read_rules(options.quality), sample_rows=options.sample_rows
    )


def verdict(result: JobResult) -> str | None:
    return result.problems[0] if result.problems else None


if __name__ == "__main__":
    sys.exit(main())
