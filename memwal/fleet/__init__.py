"""Maintenance of the tables of a catalog: one job under its lease, or many tables on one budget.

This package imports neither Airflow nor Spark. Lance and SQLAlchemy are loaded when a job runs.
"""

from __future__ import annotations

from memwal.fleet.job_spec import JobRequest, JobSpec, Skipped, SkipReason
from memwal.fleet.overview import TableOverview, overview
from memwal.fleet.polls import Outcome
from memwal.fleet.run_job import Runtime, run_job, run_recorded
from memwal.fleet.scheduler import Budget, Fleet
from memwal.fleet.tables import (
    DiscoveredTable,
    Survey,
    find_tables,
    maintain,
    open_managed,
    register_folder,
    register_tables,
    survey,
)

__all__ = [
    "Budget",
    "DiscoveredTable",
    "Fleet",
    "JobRequest",
    "JobSpec",
    "Outcome",
    "Runtime",
    "SkipReason",
    "Skipped",
    "Survey",
    "TableOverview",
    "find_tables",
    "maintain",
    "open_managed",
    "overview",
    "register_folder",
    "register_tables",
    "run_job",
    "run_recorded",
    "survey",
]
