"""Merges flushed generations of a MemWAL table into its base table.

For example::

    spark-submit spark_apps/merge.py --table s3://lake/flights.lance --result merge.json
"""

import sys

from memwal.fleet.tables import check_regions
from memwal.maintenance.merge import DEFAULT_COMMIT_BYTES
from memwal.maintenance.results import JobResult
from memwal.quality.rules import read_rules
from memwal.spark.application import (
    Application,
    job_parser,
    positive_int,
    regions_option,
    run_application,
)

# Every task commits to the same table, and commits wait for one another.
MOST_TASKS = 8


def main() -> int:
    parser = job_parser("merge", __doc__)
    regions_option(parser, "--region", "merge this region only (default: all regions)")
    regions_option(parser, "--skip-region", "do not merge this region")
    parser.add_argument(
        "--commit-bytes",
        type=positive_int,
        default=DEFAULT_COMMIT_BYTES,
        metavar="N",
        help="bytes in memory that go into one commit, which bounds a worker's memory "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--run-bytes",
        type=positive_int,
        metavar="N",
        help="bytes in memory to merge at most, the oldest first; at least one generation "
        "(default: no limit)",
    )
    parser.add_argument(
        "--quality",
        metavar="JSON",
        help="rules of quality as a policy has them, or @FILE with them (default: all rows enter)",
    )
    parser.add_argument(
        "--max-tasks",
        type=positive_int,
        metavar="N",
        help="tasks that the regions are divided into at most "
        f"(default: what runs at once, up to {MOST_TASKS})",
    )
    return run_application(parser, merge)


def merge(application: Application) -> JobResult:
    options = application.options
    skip = options.skip_regions or ()
    check_regions(application.table, [*(options.regions or ()), *skip])
    return application.table.merge(
        regions=options.regions,
        skip=skip,
        commit_bytes=options.commit_bytes,
        run_bytes=options.run_bytes,
        quality=read_rules(options.quality) if options.quality else None,
        max_tasks=options.max_tasks or min(application.parallelism, MOST_TASKS),
        run=application.run,
    )


if __name__ == "__main__":
    sys.exit(main())
