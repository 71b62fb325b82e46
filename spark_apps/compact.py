"""Rewrites small fragments of a MemWAL table's base table, and those with many deleted rows.

For example::

    spark-submit spark_apps/compact.py --table s3://lake/flights.lance --result compact.json
"""

import sys

from memwal.jobs.job import JobResult
from memwal.jobs.table.compact import DEFAULT_ATTEMPTS, DEFAULT_COMMIT_BYTES, DEFAULT_MIN_FRAGMENTS
from memwal.spark.application import Application, job_parser, positive_int, run_application


def main() -> int:
    parser = job_parser("compact", __doc__)
    parser.add_argument(
        "--min-fragments",
        type=positive_int,
        default=DEFAULT_MIN_FRAGMENTS,
        metavar="N",
        help="do nothing until so many fragments are worth it (default: %(default)s)",
    )
    parser.add_argument(
        "--commit-bytes",
        type=positive_int,
        default=DEFAULT_COMMIT_BYTES,
        metavar="N",
        help="bytes on storage that one commit replaces at most (default: %(default)s)",
    )
    parser.add_argument(
        "--max-commits",
        type=positive_int,
        metavar="N",
        help="end after so many commits, whatever is left",
    )
    parser.add_argument(
        "--attempts",
        type=positive_int,
        default=DEFAULT_ATTEMPTS,
        metavar="N",
        help="give up when so many rewrites met other commits (default: %(default)s)",
    )
    return run_application(parser, compact)


def compact(application: Application) -> JobResult:
    options = application.options
    return application.table.compact(
        min_fragments=options.min_fragments,
        commit_bytes=options.commit_bytes,
        max_commits=options.max_commits,
        attempts=options.attempts,
        run=application.run,
    )


if __name__ == "__main__":
    sys.exit(main())
