"""The DAG that maintains a table: its own, or the one that runs the jobs of many tables."""

from __future__ import annotations

from airflow.models.dag import DagModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from memwal.catalog import ManagedTable
from memwal_airflow.dag_factory import dag_id
from memwal_airflow.links import DRAIN_DAG_ID


def has_drain(session: Session) -> bool:
    """Return whether Airflow has the DAG that runs the jobs of many tables; one query."""
    query = select(DagModel.dag_id).where(DagModel.dag_id == DRAIN_DAG_ID, ~DagModel.is_stale)
    return session.scalar(query) is not None


def maintaining_dag(table: ManagedTable, *, drained: bool) -> str:
    """Return the id of the DAG that maintains a table; ``drained`` as of :func:`has_drain`."""
    is_drained = drained and table.enabled and table.starts_when_due
    return DRAIN_DAG_ID if is_drained else dag_id(table)
