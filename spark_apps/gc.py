"""Collects what nobody needs any more of a MemWAL table: merged generations, their log entries, old
region manifests, what crashes left. Say whether to delete them or only to count.

For example::

    spark-submit spark_apps/gc.py --table s3://lake/flights.lance --dry-run --explain
    spark-submit spark_apps/gc.py --table s3://lake/flights.lance --execute --result gc.json
"""

import sys

from memwal.jobs.gc import (
    DEFAULT_GRACE,
    DEFAULT_INDEX_AGE,
    DEFAULT_ORPHAN_AGE,
    DEFAULT_RETENTION,
    CollectionResult,
)
from memwal.spark.application import Application, job_parser, run_application, seconds

AGES = {
    "grace": (
        DEFAULT_GRACE,
        "how long a reader may go on with what it planned; well above the longest query",
    ),
    "retention": (DEFAULT_RETENTION, "how long old versions of the table keep what they need"),
    "orphan": (
        DEFAULT_ORPHAN_AGE,
        "age of a folder that nothing ever named before it goes; longer than any flush",
    ),
    "index": (DEFAULT_INDEX_AGE, "the same for index files; longer than any index build"),
}


def main() -> int:
    parser = job_parser("gc", __doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--dry-run", action="store_true", help="only count")
    mode.add_argument("--execute", action="store_true", help="delete")
    for name, (age, text) in AGES.items():
        parser.add_argument(
            f"--{name}-seconds",
            type=seconds,
            default=age,
            metavar="N",
            help=f"{text} (default: {age.total_seconds():.0f})",
        )
    parser.add_argument(
        "--base-versions",
        action="store_true",
        help="also have Lance clean old versions of the table up; tags and branches keep theirs",
    )
    parser.add_argument(
        "--version-seconds",
        type=seconds,
        metavar="N",
        help="age at which these go, when longer than the retention (default: the retention)",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="put into the result what goes and, for what stays, why it stays",
    )
    return run_application(parser, collect_garbage)


def collect_garbage(application: Application) -> CollectionResult:
    options = application.options
    return application.table.collect_garbage(
        dry_run=options.dry_run,
        grace=options.grace_seconds,
        retention=options.retention_seconds,
        orphan_age=options.orphan_seconds,
        index_age=options.index_seconds,
        base_versions=options.base_versions,
        version_age=options.version_seconds,
        explain=options.explain,
        max_tasks=application.parallelism,
        run=application.run,
    )


if __name__ == "__main__":
    sys.exit(main())
