"""Catches the maintained indexes of a MemWAL table up with what was merged.

For example::

    spark-submit spark_apps/index.py --table s3://lake/flights.lance --result index.json
"""

import sys

from memwal.jobs.index.job import DEFAULT_PART_ROWS
from memwal.jobs.job import JobResult
from memwal.lsm.indexes.segments import DEFAULT_MAX_SEGMENTS
from memwal.spark.application import Application, job_parser, positive_int, run_application


def main() -> int:
    parser = job_parser("index", __doc__)
    parser.add_argument(
        "--index",
        action="append",
        dest="indexes",
        metavar="NAME",
        help="this index only (default: all maintained indexes); can be given again",
    )
    parser.add_argument(
        "--part-rows",
        type=positive_int,
        default=DEFAULT_PART_ROWS,
        metavar="N",
        help="a vector or text index that lacks at least so many rows is built in parts of about "
        "so many, another one from sixteen times as many on (default: %(default)s)",
    )
    parser.add_argument(
        "--max-tasks",
        type=positive_int,
        metavar="N",
        help="parts that the build of one index is divided into at most "
        "(default: what runs at once)",
    )
    parser.add_argument(
        "--max-segments",
        type=positive_int,
        default=DEFAULT_MAX_SEGMENTS,
        metavar="N",
        help="segments of an index beyond which the newest are joined (default: %(default)s)",
    )
    return run_application(parser, build_indexes)


def build_indexes(application: Application) -> JobResult:
    options = application.options
    return application.table.build_indexes(
        names=options.indexes,
        max_tasks=options.max_tasks or application.parallelism,
        part_rows=options.part_rows,
        max_segments=options.max_segments,
        run=application.run,
    )


if __name__ == "__main__":
    sys.exit(main())
