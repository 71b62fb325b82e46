"""Telling the catalog what happened.

The record is for people; the table does not depend on it. When the catalog cannot be written,
maintenance goes on and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import memwal
from memwal.catalog import BacklogSample, Catalog
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

    def look(self, uri: str, *, storage_options: Mapping[str, str] | None) -> None:
        """Look at the table, and keep a sample of its backlog."""

        def sample() -> BacklogSample:
            status = memwal.open(uri, storage_options=storage_options).status()
            return self._catalog.record_backlog(self.table, status)

        self._try("backlog sample", sample)

    def _try(self, what: str, call: Callable[[], Value]) -> Value | None:
        try:
            return call()
        except MemWalError as error:
            log.warning("The catalog was not asked or told (%s): %s", what, error)
            return None
        finally:
            self._catalog.close()
