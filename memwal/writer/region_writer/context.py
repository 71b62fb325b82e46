"""Stores, thread pools and counters shared by all region writers of a table writer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.text_index import TextIndex
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.timers import Upkeep
from memwal.writer.region_writer.options import WriterOptions
from memwal.writer.region_writer.stats import Durations, WriterCounters

logger = logging.getLogger(__name__)


def text_columns(base: BaseTable, schema: pa.Schema) -> dict[str, Mapping[str, Any]]:
    """Text columns with a maintained index, and the options of its tokenizer.

    An index whose documents are not texts is left out: its rows are found once they are flushed.
    """
    found = {}
    for index in maintained_indexes(base):
        if not index.kind.memtable_index:
            continue
        options = index.spec.parameters
        try:
            TextIndex(index.column, options).check(RowView.of(schema, ()))
        except InvalidInputError as error:
            logger.info("index %s is not searched before a flush: %s", index.name, error)
        else:
            found[index.column] = options
    return found


_FLUSH_THREADS = 2
_APPEND_THREADS = 16


@dataclass(frozen=True, slots=True)
class Workshop:
    """Shared by all regions of a writer.

    Attributes
    ----------
    location : TableLocation
    store : ObjectStore
        Of claims, manifests and generations.
    log_store : ObjectStore
        The same for log entries, which may be told not to sync them.
    options : WriterOptions
    text : mapping
        Text columns that MemTables can search, with the options of their index.
    flushes, appends : Executor
        Run flushes; and appends that no caller waits for, which wait for nothing but the store.
    releases : Executor
        Runs what waits for appends and flushes, one by one.
    upkeep : Upkeep
    counters : WriterCounters
    clock : callable
        Seconds that go on while the machine sleeps: how long ago a region was known to be ours.
    """

    location: TableLocation
    store: ObjectStore
    log_store: ObjectStore
    options: WriterOptions
    text: Mapping[str, Mapping[str, Any]]
    flushes: Executor
    appends: Executor
    releases: Executor
    upkeep: Upkeep
    counters: WriterCounters
    clock: Callable[[], float]

    @classmethod
    def open(
        cls,
        base: BaseTable,
        schema: pa.Schema,
        options: WriterOptions,
        durations: Durations,
        clock: Callable[[], float],
    ) -> Workshop:
        """Set everything up for a table; threads start when they are needed."""
        location = base.location
        return cls(
            location=location,
            store=location.store,
            log_store=location.store if options.fsync else location.store_without_fsync,
            options=options,
            text=text_columns(base, schema),
            flushes=ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="memwal-flush"),
            appends=ThreadPoolExecutor(_APPEND_THREADS, thread_name_prefix="memwal-append"),
            releases=ThreadPoolExecutor(1, thread_name_prefix="memwal-release"),
            upkeep=Upkeep(),
            counters=WriterCounters(location, durations=durations),
            clock=clock,
        )

    @property
    def is_instant(self) -> bool:
        """Whether an append takes no time to speak of, so that nothing is won by a thread."""
        return not self.options.fsync and self.store.is_local

    def close(self, *, wait: bool) -> None:
        """End the threads; ``wait`` for what they do."""
        self.upkeep.close(timeout=None if wait else 0)
        for pool in (self.appends, self.releases, self.flushes):
            pool.shutdown(wait=wait)
