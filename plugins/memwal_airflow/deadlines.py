"""Deadline of a table's DAG runs, by Airflow's deadline alerts."""

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

from memwal_airflow.notifications.failures import record_failure

# The type stub of airflow.sdk leaves them out.

logger = logging.getLogger(__name__)

LATE = "late"
"""Name of a late run among the failed jobs of a table."""


def run_deadline(table: str, *, seconds: float) -> DeadlineAlert:
    """Return the deadline of a table's runs: ``seconds`` after they are queued."""
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=seconds),
        callback=AsyncCallback(record_late, kwargs={"table": table, "seconds": seconds}),
        name=f"{table} is late",
    )


async def record_late(*, table: str, seconds: float, context: dict[str, Any] | None = None) -> None:
    """Record in the catalog, from the triggerer, that a run of a table is late.

    The page and the notifications list it with the failed jobs until the next run begins.
    """
    run = str((context or {}).get("dag_run", {}).get("dag_run_id", "?"))
    reason = f"the run {run} had not ended {seconds:g} s after it was queued"
    logger.error("%s: %s", table, reason)
    await asyncio.to_thread(record_failure, table, LATE, reason)
