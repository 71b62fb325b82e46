"""Telling the catalog what happened.

The record is for people; the table does not depend on it. When the catalog cannot be written,
maintenance goes on and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from memwal.catalog import Catalog, RunState
from memwal.errors import MemWalError
from memwal.maintenance.status import TableStatus

Value = TypeVar("Value")

log = logging.getLogger(__name__)


class Recorder:
    """Writes the runs and samples of one table to the catalog of ``$MEMWAL_CATALOG_URL``.

    Parameters
    ----------
    table : str
        Name of the managed table.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self._catalog = Catalog()

    def backlog(self, status: TableStatus) -> None:
        """Keep a sample of the backlog."""
        self._try("backlog sample", lambda: self._catalog.record_backlog(self.table, status))

    def started(self, job: str, external_id: str) -> int | None:
        """Record a start; None when it could not be."""
        return self._try(
            f"start of {job}",
            lambda: self._catalog.start_run(self.table, job, external_id=external_id),
        )

    def succeeded(self, run: int | None, result: dict[str, Any]) -> None:
        """Record the result of a run."""
        if run is not None:
            self._try("result", lambda: self._catalog.finish_run(run, result=result))

    def failed(self, run: int | None, error: BaseException) -> None:
        """Record why a run failed."""
        if run is not None:
            text = f"{type(error).__name__}: {error}"[:4000]
            self._try("failure", lambda: self._catalog.finish_run(run, error=text))

    def seconds_since(self, job: str) -> float | None:
        """Seconds since a job last succeeded; None when it never did, or nobody knows."""
        runs = self._try(f"last {job}", lambda: self._catalog.runs(table=self.table, job=job))
        ends = [
            run.finished_at
            for run in runs or ()
            if run.state is RunState.SUCCEEDED and run.finished_at is not None
        ]
        return (datetime.now(UTC) - max(ends)).total_seconds() if ends else None

    def _try(self, what: str, call: Callable[[], Value]) -> Value | None:
        try:
            return call()
        except MemWalError as error:
            log.warning("The catalog was not asked or told (%s): %s", what, error)
            return None
        finally:
            self._catalog.close()
