"""Maintenance of the tables of a catalog: one job under its lease, and many tables on one budget.

Nothing here knows of Airflow or Spark. Lance and SQLAlchemy are loaded when something is run.
"""

from memwal.fleet.budget import Budget, Outcome
from memwal.fleet.discover import FoundTable, find_tables, register_found
from memwal.fleet.fleet import Fleet
from memwal.fleet.jobs import run_job
from memwal.fleet.order import Order, Skipped, Why
from memwal.fleet.overview import TableOverview, overview
from memwal.fleet.recorded import run_recorded
from memwal.fleet.tables import Survey, open_managed, survey

__all__ = [
    "Budget",
    "Fleet",
    "FoundTable",
    "Order",
    "Outcome",
    "Skipped",
    "Survey",
    "TableOverview",
    "Why",
    "find_tables",
    "open_managed",
    "overview",
    "register_found",
    "run_job",
    "run_recorded",
    "survey",
]
