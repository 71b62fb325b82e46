"""Record failures in Airflow in the catalog, as the table's last error everywhere.

A failure to write to the catalog is logged, and fails nothing else: the caller has a failure of its
own, or none.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import memwal.catalog
from memwal.catalog.records import DAG_JOB
from memwal.errors import MemWalError
from memwal.util.log import safe_error_text
from memwal_airflow.spark.application import SparkApplicationError
from memwal_airflow.version_compat import (
    AirflowFailException,
    DeadlineAlert,
    deadline_after_queued,
)

logger = logging.getLogger(__name__)

# The last line of a traceback, without the module of the error.
_LAST_LINE = re.compile(r"(?:\w+\.)*(\w+(?:: .*)?)")


@contextmanager
def _recording(what: str) -> Iterator[memwal.catalog.Catalog]:
    """Open the catalog in the block; log its errors, since the caller raises one of its own."""
    try:
        with closing(memwal.catalog.Catalog()) as catalog:
            yield catalog
    except MemWalError as error:
        logger.warning("%s was not recorded: %s", what, error)


def record_failure(table: str, job: str, reason: str) -> None:
    """Record that ``job`` of a table failed, as ``Catalog.backoffs.record_failure`` does."""
    with _recording(f"The failure of {job}") as catalog:
        catalog.backoffs.record_failure(table, job, reason)


def record_dag_failure(reason: str, *, table: str | None = None) -> None:
    """Record that the DAG of a table, or of all enabled tables, cannot be built.

    A DAG file is parsed every few seconds: a failure that is recorded already is not written again.
    """
    with _recording("The failure to build DAGs") as catalog:
        recorded = {
            failed.table
            for failed in catalog.backoffs.failed_jobs()
            if failed.job == DAG_JOB and failed.reason == reason
        }
        tables = [t.name for t in catalog.list(enabled_only=True)] if table is None else [table]
        for name in set(tables) - recorded:
            catalog.backoffs.record_failure(name, DAG_JOB, reason)


def clear_failures(table: str, jobs: Iterable[str]) -> None:
    """Record that jobs of a table succeeded."""
    with _recording(f"The success of {table}") as catalog:
        for job in jobs:
            catalog.backoffs.clear_failure(table, job)


def failure_reason(error: BaseException | str | None) -> str:
    """Return type and text of an error in one line, without secrets.

    Only messages of memwal are included: messages of a secrets backend may contain its secrets.
    """
    if error is None or isinstance(error, str):
        text = error or "the task was ended from outside, as when its process is killed"
    elif isinstance(error.__cause__, MemWalError):
        text = f"{type(error.__cause__).__name__}: {error.__cause__}"
    elif isinstance(error, MemWalError | AirflowFailException | SparkApplicationError):
        text = f"{type(error).__name__}: {error}"
    else:
        text = safe_error_text(error)
    return " ".join(text.split())


def traceback_reason(stacktrace: str) -> str:
    """Return the error at the end of a traceback, in one line."""
    lines = [line for line in stacktrace.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "the file cannot be imported"
    match = _LAST_LINE.fullmatch(last)
    return match[1] if match is not None else last


LATE = "late"
"""Name of a late run among the failed jobs of a table."""


def run_deadline(table: str, *, seconds: float) -> DeadlineAlert:
    """Return the deadline of a table's runs: ``seconds`` after they are queued."""
    return deadline_after_queued(
        timedelta(seconds=seconds),
        record_late,
        kwargs={"table": table, "seconds": seconds},
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
