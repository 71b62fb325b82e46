"""Stores, thread pools and counters shared by all region writers of a table writer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.text_index import TextIndex
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import ThreadPool, interpreter_is_ending
from memwal.util.timers import TimerThread
from memwal.writer.region_writer.options import WriterSettings
from memwal.writer.region_writer.stats import Durations, WriterCounters

logger = logging.getLogger(__name__)

_FLUSH_THREADS = 2
_APPEND_THREADS = 16


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Stores, thread pools, timers and counters shared by all region writers of a table writer."""

    location: TableLocation
    store: ObjectStore  # for claims, manifests and generations
    log_store: ObjectStore  # for log entries; the same, but without fsync if the settings say so
    settings: WriterSettings
    # Text columns that MemTables can search, with the options of their index.
    text: Mapping[str, Mapping[str, object]]
    flushes: Executor
    # Runs claims, and appends that no caller waits for. Appends wait only for the store.
    appends: Executor
    releases: Executor  # releases idle regions one by one, waiting for their appends and flushes
    timers: TimerThread
    counters: WriterCounters
    recovers: bool  # whether claims are those of a recovery
    # Measures how long ago a claim was verified; includes time that the machine is suspended.
    clock: Callable[[], float]

    @classmethod
    def open(
        cls,
        base: BaseTable,
        schema: pa.Schema,
        settings: WriterSettings,
        durations: Durations,
        clock: Callable[[], float],
        *,
        recovers: bool = False,
    ) -> WriterContext:
        """Make the context of a table's writer. Threads start when they are needed."""
        location = base.location
        return cls(
            location=location,
            store=location.store,
            log_store=location.store if settings.fsync else location.store_without_fsync,
            settings=settings,
            text=text_columns(base, schema),
            flushes=ThreadPool(_FLUSH_THREADS, thread_name_prefix="memwal-flush"),
            appends=ThreadPool(_APPEND_THREADS, thread_name_prefix="memwal-append"),
            releases=ThreadPoolExecutor(1, thread_name_prefix="memwal-release"),
            timers=TimerThread(),
            counters=WriterCounters(location, durations=durations),
            recovers=recovers,
            clock=clock,
        )

    @property
    def appends_in_caller(self) -> bool:
        """True where the calling thread makes all appends of a write.

        For a local store without fsync, handing an append to a thread costs more than the append;
        and there are no threads when the interpreter is ending.
        """
        return (not self.settings.fsync and self.store.is_local) or interpreter_is_ending()

    def close(self, *, wait: bool) -> None:
        """Stop the threads, and with ``wait`` let running work end first."""
        self.timers.close(timeout=None if wait else 0)
        for pool in (self.appends, self.releases, self.flushes):
            pool.shutdown(wait=wait)


def text_columns(base: BaseTable, schema: pa.Schema) -> dict[str, Mapping[str, object]]:
    """Return the text columns with a maintained index, and the options of its tokenizer.

    An index whose documents are not text is left out: its rows are found after their flush.
    """
    tokenizers = {}
    for index in maintained_indexes(base):
        if not index.kind.memtable_index:
            continue
        options = index.spec.parameters
        try:
            TextIndex(index.column, options).check(RowView.of(schema, ()))
        except InvalidInputError as error:
            logger.info("index %s is not searched before a flush: %s", index.name, error)
        else:
            tokenizers[index.column] = options
    return tokenizers
