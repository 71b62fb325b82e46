"""Collects what nobody needs any more of a MemWAL table: merged generations, their log entries, old
region manifests. Say whether to delete them or only to count.

For example::

    spark-submit spark_apps/gc.py --table s3://lake/flights.lance --dry-run
    spark-submit spark_apps/gc.py --table s3://lake/flights.lance --execute --result gc.json
"""

import sys
from datetime import timedelta

from memwal.maintenance.garbage import DEFAULT_GRACE, DEFAULT_RETENTION
from memwal.maintenance.results import JobResult
from memwal.spark.application import Application, job_parser, run_application


def main() -> int:
    parser = job_parser("gc", __doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--dry-run", action="store_true", help="only count")
    mode.add_argument("--execute", action="store_true", help="delete")
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=DEFAULT_GRACE.total_seconds(),
        metavar="N",
        help="how long a reader may go on with what it planned; well above the longest query "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--retention-seconds",
        type=float,
        default=DEFAULT_RETENTION.total_seconds(),
        metavar="N",
        help="how long old versions of the table keep what they need (default: %(default)g)",
    )
    return run_application(parser, collect_garbage)


def collect_garbage(application: Application) -> JobResult:
    options = application.options
    return application.table.collect_garbage(
        dry_run=options.dry_run,
        grace=timedelta(seconds=options.grace_seconds),
        retention=timedelta(seconds=options.retention_seconds),
        max_tasks=application.parallelism,
        run=application.run,
    )


if __name__ == "__main__":
    sys.exit(main())
