"""Groups of writes on their way into the log of a region, and then into its MemTable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

import pyarrow as pa

from memwal.errors import InvalidInputError, MemWalError, StoreError
from memwal.format.applied_steps import AppliedSteps
from memwal.writer.append import LogAppender, PreparedEntry, joined
from memwal.writer.handle import PendingWrite
from memwal.writer.log_queue import LogQueue
from memwal.writer.memtables import MemTables
from memwal.writer.options import WriterOptions
from memwal.writer.rows import RowShape
from memwal.writer.standing import Standing
from memwal.writer.stats import RegionCounters

logger = logging.getLogger(__name__)

# After these the log is as it was, or holds at most an entry that nobody was told of.
_NOT_FINAL = (StoreError, InvalidInputError)


class LogEntries:
    """Writes groups as entries, and what the log has into the active MemTable.

    Only whoever holds the region's log calls it, except where the state is said to be held.

    Parameters
    ----------
    region_id : UUID
    state : threading.Condition
        The region's.
    standing : Standing
    options : WriterOptions
    log : LogAppender
    queue : LogQueue
    tables : MemTables
    counters : RegionCounters
    aging : callable
        Told, with the state held, when the active MemTable is to be sealed for its age at the
        latest, in monotonic seconds.
    """

    def __init__(
        self,
        region_id: UUID,
        *,
        state: threading.Condition,
        standing: Standing,
        options: WriterOptions,
        log: LogAppender,
        queue: LogQueue,
        tables: MemTables,
        counters: RegionCounters,
        aging: Callable[[float], None],
    ) -> None:
        self._region_id = region_id
        self._state = state
        self._standing = standing
        self._options = options
        self._log = log
        self._queue = queue
        self._tables = tables
        self._counters = counters
        self._aging = aging

    @property
    def next_position(self) -> int:
        """Where the next entry goes."""
        return self._log.next_position

    @property
    def foreign_steps(self) -> AppliedSteps:
        """Steps of entries that others put where ours were to go."""
        return self._log.foreign_steps

    def write(self, group: list[PendingWrite]) -> None:
        """Write a group as one entry and finish its members, whatever happens."""
        entry = _Entry(self, group)
        entry.store()
        entry.end()
        entry.check()

    def hold(self, write: PendingWrite) -> HeldLog:
        """Start an entry of one write, whose steps the caller takes."""
        return HeldLog(_Entry(self, [write]), self._queue)

    def add(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        position: int,
        log_batches: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Take rows of the log into the active MemTable. The caller holds the state."""
        self._tables.active.add(batches, position=position, log_batches=log_batches, nbytes=nbytes)
        if self._options.max_memtable_age is not None:
            self._aging(self._tables.active.born_at + self._options.max_memtable_age)

    def seal(self, *, shape: RowShape | None = None, generation: int | None = None) -> None:
        """Hand the MemTable to the flush and start a new one."""
        with self._state:
            # Closed or fenced, the log keeps the rows for the next claim.
            if self._standing.failure is None:
                if shape is not None and shape is not self._tables.shape:
                    self._log.use(shape.schema, shape.adopt)
                self._tables.seal(shape=shape, generation=generation)

    def prepare(self, group: list[PendingWrite]) -> PreparedEntry | None:
        """Encode a group; None if it has no rows."""
        self._standing.check()
        batches = [batch for write in group for batch in write.batches]
        if not batches:
            return None
        shape = next(write.shape for write in group if write.shape is not None)
        batches = joined(batches)
        if shape is not self._tables.shape or not self._tables.fits(batches):
            self.seal(shape=shape)
        applied = next((write.applied for write in group if write.applied is not None), None)
        return self._log.prepare(
            batches, generation=self._tables.active.generation, applied=applied
        )

    def put(self, entry: PreparedEntry) -> PreparedEntry:
        """Store an entry; this alone waits for the store."""
        return self._log.put(entry)

    def take_in(
        self, group: list[PendingWrite], stored: PreparedEntry | None, started: float
    ) -> None:
        """Take up what the log has by now."""
        appended = None if stored is None else self._log.acknowledge(stored)
        nbytes = 0 if appended is None else sum(batch.nbytes for batch in appended.batches)
        with self._state:
            self._queue.settle()
            if appended is not None:
                self.add(appended.batches, position=appended.position, nbytes=nbytes)
                self._count(group, nbytes, time.perf_counter() - started)
        if self._options.indexed:
            self._index()
        if self._tables.is_full() or group[-1].seals:
            self.seal()

    def give_up(self, group: list[PendingWrite], error: BaseException) -> list[PendingWrite]:
        """Take note that a group failed; what fails with it is in the list as well."""
        with self._state:
            self._queue.settle()
            self._counters.failed(error)
            group = [*group, *self._also_failed(error)]
            for write in group:
                self._no_longer_buffered(write)
        return group

    def _index(self) -> None:
        """Index what is durable by now: whatever goes wrong, the write has not failed."""
        try:
            self._tables.active.catch_up()
        except MemWalError as error:
            logger.warning("rows of region %s are not indexed yet: %s", self._region_id, error)

    def _count(self, group: list[PendingWrite], nbytes: int, seconds: float) -> None:
        """Count a group that is in the log. The caller holds the state."""
        writes = rows = 0
        for write in group:
            if write.rows:
                writes += 1
                rows += write.rows
            self._no_longer_buffered(write)
        self._counters.acknowledged(writes, rows, nbytes)
        self._counters.appended(nbytes, seconds)

    def _no_longer_buffered(self, write: PendingWrite) -> None:
        if write.buffered:
            write.buffered = False
            self._counters.unbuffered(1, write.bytes)

    def _also_failed(self, error: BaseException) -> list[PendingWrite]:
        """Queued writes that fail with a group. The caller holds the state."""
        if not isinstance(error, _NOT_FINAL):
            self._standing.end(error)
            return self._queue.clear()
        return self._queue.remove_derived()


class _Entry:
    """A group of writes on its way into the log, in steps of which only one waits for the store.

    Whoever makes one holds the log of the region.
    """

    __slots__ = ("_entries", "_group", "_prepared", "_started", "error")

    def __init__(self, entries: LogEntries, group: list[PendingWrite]) -> None:
        self._entries = entries
        self._group = group
        self._started = time.perf_counter()
        self._prepared: PreparedEntry | None = None
        self.error: BaseException | None = None
        try:
            self._prepared = entries.prepare(group)
        except BaseException as error:
            # The group's writers wait for an answer, whatever went wrong.
            self.error = error

    def store(self) -> None:
        """Put the entry into the log; what fails is kept in ``error``."""
        if self._prepared is not None:
            try:
                self._prepared = self._entries.put(self._prepared)
            except BaseException as error:
                self.error = error

    def end(self) -> None:
        """Acknowledge the writes, or tell them what went wrong."""
        if self.error is None:
            try:
                self._entries.take_in(self._group, self._prepared, self._started)
            except BaseException as error:
                self.error = error
        group = self._group
        if self.error is not None:
            group = self._entries.give_up(group, self.error)
        for write in group:
            write.finish(self.error)

    def check(self) -> None:
        """Raise what is no error, such as an interrupt."""
        if self.error is not None and not isinstance(self.error, Exception):
            raise self.error


class HeldLog:
    """A region's log that was idle, held for one write whose steps the caller takes."""

    def __init__(self, entry: _Entry, queue: LogQueue) -> None:
        self._entry = entry
        self._queue = queue

    def store(self) -> None:
        """Wait for the store, and for nothing else; from any thread."""
        self._entry.store()

    def end(self) -> None:
        """Acknowledge the write, or tell what went wrong, and give the log back.

        What is no error, such as an interrupt, is raised.
        """
        try:
            self._entry.end()
        finally:
            self._queue.give_back()
        self._entry.check()
