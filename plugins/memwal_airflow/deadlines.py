"""A run that is not over in time: Airflow's deadline of a table's DAG."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import (  # type: ignore[attr-defined]
    AsyncCallback,
    DeadlineAlert,
    DeadlineReference,
)

# The type stub of airflow.sdk leaves them out.

log = logging.getLogger(__name__)

LATE = "late"
"""Stands among the jobs in trouble for a run that is not over in time."""


def run_deadline(table: str, *, seconds: float) -> DeadlineAlert:
    """The deadline of a table's runs, from the moment that they are queued.

    Parameters
    ----------
    table : str
        Name in the catalog.
    seconds : float
        How long a run may take, its wait for a free slot included.
    """
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=seconds),
        callback=AsyncCallback(tell_late, kwargs={"table": table, "seconds": seconds}),
        name=f"{table} is late",
    )


async def tell_late(*, table: str, seconds: float, context: dict[str, Any] | None = None) -> None:
    """Write down that a run of a table is late; called by the triggerer.

    It is a trouble of the table in the catalog, for whoever shows or sends them, until the next
    run begins.
    """
    run = str((context or {}).get("dag_run", {}).get("dag_run_id", "?"))
    reason = f"the run {run} was not over {seconds:g} s after it was queued"
    log.error("%s: %s", table, reason)
    await asyncio.to_thread(_write_down, table, reason)


def _write_down(table: str, reason: str) -> None:
    from memwal.catalog import Catalog

    catalog = Catalog()
    try:
        catalog.setbacks.failed(table, LATE, reason)
    finally:
        catalog.close()
