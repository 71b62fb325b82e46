"""Flusher: write a generation, complete and durable, then name it in the manifest."""

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
    """Rows of the log that become a generation: a MemTable, or what a replay found."""

    @property
    def generation(self) -> int: ...

    @property
    def last_position(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...


class Flusher:
    """Flushes for one region, for as long as nobody else claims it.

    Parameters
    ----------
    context : WriterContext
    claimed : ClaimedRegion
    counters : RegionCounters
    state : threading.Condition
        Guards the counters.
    failed : callable
        Told, with the state held, what a flush failed with.
    """

    def __init__(
        self,
        context: WriterContext,
        claimed: ClaimedRegion,
        counters: RegionCounters,
        *,
        state: Condition,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._context = context
        self._claimed = claimed
        self._counters = counters
        self._state = state
        self._failed = failed

    def flush(self, sealed: SealedRows, contents: GenerationRows) -> None:
        """Write one generation and name it.

        Raises
        ------
        RegionFencedError
            The region was claimed; whoever did so replays the rows.
        MemWalError, OSError
            It could not be written; it can be tried again.
        """
        started = time.perf_counter()
        try:
            # Columns may have come and gone since the rows were written.
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
            with self._state:
                self._counters.flush_failed(error)
                self._failed(error)
            raise
        with self._state:
            self._counters.flushed(sealed.rows, sealed.bytes, time.perf_counter() - started)
