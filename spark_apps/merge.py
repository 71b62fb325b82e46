"""Merges flushed generations of a MemWAL table into its base table.

For example::

    spark-submit spark_apps/merge.py --table s3://lake/flights.lance --result merge.json
"""

import sys

from memwal.fleet.tables import check_regions
from memwal.jobs.job import JobResult
from memwal.jobs.merge.job import merge
from memwal.jobs.options import MergeOptions
from memwal.spark.application import Application, job_parser, run_application


def checked_merge(application: Application[MergeOptions]) -> JobResult:
    """Merge, once the regions are known to exist."""
    options = application.options
    check_regions(application.table, [*(options.regions or ()), *options.skip_regions])
    return merge(application.table.location, options)


if __name__ == "__main__":
    sys.exit(run_application(job_parser("merge", __doc__), MergeOptions, checked_merge))
