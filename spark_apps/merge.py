"""Merges flushed generations of a MemWAL table into its base table.

For example::

    spark-submit spark_apps/merge.py --table s3://lake/flights.lance --result merge.json
"""

import sys

from memwal.fleet.tables import check_regions
from memwal.jobs.job import JobResult
from memwal.spark.application import (
    Application,
    add_merge_options,
    job_parser,
    merge_arguments,
    positive_int,
    regions_option,
    run_application,
)


def main() -> int:
    parser = job_parser("merge", __doc__)
    regions_option(parser, "--region", "merge this region only (default: all regions)")
    regions_option(parser, "--skip-region", "do not merge this region")
    parser.add_argument(
        "--run-bytes",
        type=positive_int,
        metavar="N",
        help="bytes in memory to merge at most, the oldest first; at least one generation "
        "(default: no limit)",
    )
    add_merge_options(parser)
    return run_application(parser, merge)


def merge(application: Application) -> JobResult:
    options = application.options
    skip = options.skip_regions or ()
    check_regions(application.table, [*(options.regions or ()), *skip])
    return application.table.merge(
        regions=options.regions,
        skip=skip,
        run_bytes=options.run_bytes,
        **merge_arguments(application),
    )


if __name__ == "__main__":
    sys.exit(main())
