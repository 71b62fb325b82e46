"""Maintenance of the tables of a catalog: one job under its lease, or many tables on one budget.

Nothing here imports Airflow or Spark. Lance and SQLAlchemy are loaded when a job is run.
"""

from __future__ import annotations

from memwal.fleet.job_spec import JobRequest, JobSpec, Skipped, SkipReason
from memwal.fleet.overview import TableOverview, overview
from memwal.fleet.run_job import Runtime, run_job, run_recorded
from memwal.fleet.scheduler import Budget, Fleet, Outcome
from memwal.fleet.tables import (
    FoundTable,
    Survey,
    find_tables,
    open_managed,
    register_found,
    survey,
)

__all__ = [
    "Budget",
    "Fleet",
    "FoundTable",
    "JobRequest",
    "JobSpec",
    "Outcome",
    "Runtime",
    "SkipReason",
    "Skipped",
    "Survey",
    "TableOverview",
    "find_tables",
    "open_managed",
    "overview",
    "register_found",
    "run_job",
    "run_recorded",
    "survey",
]
