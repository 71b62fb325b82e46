"""Copies a MemWAL table while it is in use, with all rows that were acknowledged.

For example::

    spark-submit spark_apps/copy_table.py --table s3://lake/flights.lance --target s3://backup/flights.lance
"""

import sys
from pathlib import Path

from memwal.jobs.job import JobResult
from memwal.jobs.options import CopyOptions
from memwal.spark.application import Application, job_parser, run_application
from memwal.storage.credentials import read_options_file


def main() -> int:
    parser = job_parser("copy", __doc__)
    parser.add_argument(
        "--target", required=True, metavar="URI", help="where nothing is stored yet"
    )
    parser.add_argument(
        "--target-options-file",
        type=Path,
        metavar="FILE",
        help="JSON object of storage options of the target (default: those of the table)",
    )
    return run_application(parser, CopyOptions, copy)


def copy(application: Application[CopyOptions]) -> JobResult:
    """Copy the table to the target of the command line."""
    table, arguments, options = application.table, application.arguments, application.options
    file = arguments.target_options_file
    own = table.location.storage_options
    return table.copy_to(
        arguments.target,
        storage_options=own if file is None else read_options_file(file),
        max_tasks=options.max_tasks,
        run=options.run,
    )


if __name__ == "__main__":
    sys.exit(main())
