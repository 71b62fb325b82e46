"""Flusher: write a generation, complete and durable, then publish it in the manifest."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Condition
from typing import Protocol

from memwal.base_table.snapshot import open_base
from memwal.lsm.flush.generation import write_generation
from memwal.lsm.flush.rows import GenerationRows
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.lsm.wal.claim import ClaimedRegion
from memwal.writer.region_writer.context import WriterContext
from memwal.writer.region_writer.stats import RegionCounters


class SealedRows(Protocol):
    """Rows of the log that become a generation: a sealed MemTable or a replayed generation."""

    @property
    def generation(self) -> int: ...

    @property
    def last_position(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...


class Flusher:
    """Flushes the MemTables of one region, until another writer claims it.

    The region's lock guards the counters. ``on_error`` is called with the error of a failed flush,
    with the lock held.
    """

    def __init__(
        self,
        context: WriterContext,
        claimed: ClaimedRegion,
        counters: RegionCounters,
        *,
        lock: Condition,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._context = context
        self._claimed = claimed
        self._counters = counters
        self._lock = lock
        self._on_error = on_error

    def flush(self, sealed: SealedRows, contents: GenerationRows) -> None:
        """Write one generation and publish it.

        Raises RegionFencedError if another writer claimed the region, which then replays the rows.
        Raises MemWalError or OSError if the generation could not be written: the flush can be
        retried.
        """
        started = time.perf_counter()
        try:
            # The table's columns may have changed since the rows were written.
            base = open_base(self._context.location)
            write = partial(
                write_generation,
                base,
                self._counters.region_id,
                sealed.generation,
                contents,
                maintained_indexes(base),
            )
            self._claimed.publish_generation(sealed, write)
        except BaseException as error:
            with self._lock:
                self._counters.add_failed_flush(error)
                self._on_error(error)
            raise
        with self._lock:
            self._counters.add_flush(sealed.rows, sealed.bytes, time.perf_counter() - started)
