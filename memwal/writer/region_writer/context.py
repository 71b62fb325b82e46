"""Stores, thread pools and counters shared by all region writers of a table writer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.base_table.spec_in_force import SpecCheck
from memwal.errors import InvalidInputError
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.text_index import TextIndex
from memwal.lsm.row_schema import RowSchema
from memwal.storage.location import TableLocation
from memwal.util.concurrency import ThreadPool, interpreter_is_ending
from memwal.util.timers import TimerThread
from memwal.writer.region_writer.options import WriterSettings
from memwal.writer.region_writer.stats import Durations, WriterCounters

logger = logging.getLogger(__name__)

_FLUSH_THREADS = 2
_APPEND_THREADS = 16


class NewestBase:
    """Newest version of the base table, opened once for many flushes that begin together.

    A flush stores rows in the columns of a version that is at least as new as the rows: a column
    that was added before them must not be left out. It may be paused after it opened the version,
    for any time, so that a version which was the newest one since the rows were complete is as
    good as the one that is the newest now.
    """

    def __init__(self, location: TableLocation) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._base: BaseTable | None = None
        self._opened_at = -math.inf

    def open(self, *, since: float) -> BaseTable:
        """Open a version that was the newest one after ``since``, in monotonic seconds."""
        with self._lock:
            if self._base is None or self._opened_at <= since:
                began = time.monotonic()
                self._base = open_base(self._location, seen=self._base)
                self._opened_at = began
            return self._base

    def forget(self) -> None:
        """Open the version anew for the next flush: one that failed may have met another table."""
        with self._lock:
            self._opened_at = -math.inf


class WriterContext:
    """Stores, thread pools, timers and counters shared by all region writers of a table writer.

    Threads start when they are needed. ``clock`` measures how long ago a claim was verified, and
    includes time that the machine is suspended.
    """

    def __init__(
        self,
        base: BaseTable,
        schema: pa.Schema,
        settings: WriterSettings,
        durations: Durations,
        clock: Callable[[], float],
    ) -> None:
        self.location = location = base.location
        self.store = location.store  # for claims, manifests and generations
        self.log_store = location.store if settings.fsync else location.store_without_fsync
        self.settings = settings
        # Text columns that MemTables can search, with the options of their index.
        self.text = text_columns(base, schema)
        self.flushes = ThreadPool(_FLUSH_THREADS, thread_name_prefix="memwal-flush")
        # Runs claims, and appends that no caller waits for. Appends wait only for the store.
        self.appends = ThreadPool(_APPEND_THREADS, thread_name_prefix="memwal-append")
        # Releases idle regions one by one, waiting for their appends and flushes.
        self.releases = ThreadPoolExecutor(1, thread_name_prefix="memwal-release")
        self.timers = TimerThread()
        self.counters = WriterCounters(location, durations=durations)
        self.clock = clock
        self.newest_base = NewestBase(location)
        # Of the newest version that rows were converted to.
        self._row_schema: RowSchema | None = None
        # Runs the checks of appends, which wait for the store beside their puts.
        self.checks = ThreadPool(_APPEND_THREADS, thread_name_prefix="memwal-check")
        self.spec_check = SpecCheck(location, self.checks, clock=clock)

    @property
    def appends_in_caller(self) -> bool:
        """True where the calling thread makes all appends of a write.

        For a local store without fsync, handing an append to a thread costs more than the append;
        and there are no threads when the interpreter is ending.
        """
        return (not self.settings.fsync and self.store.is_local) or interpreter_is_ending()

    def newest_row_schema(self, *known: RowSchema) -> RowSchema:
        """Return the row schema of the newest version: one of ``known`` if it is the same.

        Another one is durable afterwards, which acknowledged rows need: Lance syncs no columns.
        """
        base = self.newest_base.open(since=time.monotonic())
        last = self._row_schema
        for schema in known if last is None else (*known, last):
            if schema.is_of(base):
                return schema
        if self.settings.fsync:
            self.store.barrier()
        self._row_schema = RowSchema.of(base)
        return self._row_schema

    def close(self, *, wait: bool) -> None:
        """Stop the threads, and with ``wait`` let running work end first."""
        self.timers.close(timeout=None if wait else 0)
        for pool in (self.appends, self.releases, self.flushes, self.checks):
            pool.shutdown(wait=wait)


def text_columns(base: BaseTable, schema: pa.Schema) -> dict[str, Mapping[str, object]]:
    """Return the text columns that MemTables can search, and the options of their index."""
    indexes = [index for index in maintained_indexes(base) if index.kind.memtable_index]
    return text_in({index.column: index.spec.parameters for index in indexes}, schema)


def text_in(
    columns: Mapping[str, Mapping[str, object]], schema: pa.Schema
) -> dict[str, Mapping[str, object]]:
    """Return those of the columns that rows of a schema have as text, with their options.

    A column may have been dropped, or added again with another type, since its index was made.
    """
    view = RowView.of(schema, ())
    searchable = {}
    for column, options in columns.items():
        try:
            TextIndex(column, options).check(view)
        except InvalidInputError as error:
            logger.info("text of %s is not searched before a flush: %s", column, error)
        else:
            searchable[column] = options
    return searchable
