"""Group commit: queued writes of one region, written to its log as shared entries.

No thread of its own and no timer is involved in a durable write. A write that finds the log idle
becomes the leader: its thread writes one entry after another, each with everything that was queued
meanwhile, until its own write is done. Then it hands over to the thread whose write is the oldest.
Writes that no caller waits for are led by a thread of the pool. What the log has taken goes into
the active MemTable.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import chain
from uuid import UUID

import pyarrow as pa

from memwal.errors import InvalidInputError, MemWalError, StoreError, WriterClosedError
from memwal.format.wal_layout import AppliedSteps
from memwal.lsm.wal.appender import LogAppender, PreparedEntry, join_batches
from memwal.writer.region_writer.handle import FailureLatch, PendingWrite
from memwal.writer.region_writer.memtables import MemTables
from memwal.writer.region_writer.options import WriterOptions
from memwal.writer.region_writer.rows import RowSchema
from memwal.writer.region_writer.stats import RegionCounters


class LogQueue:
    """The queue of one region's log.

    Parameters
    ----------
    state : threading.Condition
        The region's. It guards the queue, and is notified when buffered writes leave it.
    executor : Executor
        Runs what nobody waits for.
    write : callable
        Writes a group as one entry and finishes its members, whatever happens. Only one call runs
        at a time, without the state. It calls :meth:`settle` with the state held, in the same
        breath in which the rows appear elsewhere or the group fails.
    max_bytes, max_rows : int
        Size of a group, unless a single write is larger.
    """

    def __init__(
        self,
        state: threading.Condition,
        executor: Executor,
        write: Callable[[list[PendingWrite]], None],
        *,
        max_bytes: int,
        max_rows: int,
    ) -> None:
        self._state = state
        self._executor = executor
        self._write = write
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._waiting: deque[PendingWrite] = deque()
        self._in_flight: list[PendingWrite] = []
        # How many of those in front are to be written now; the others may still gather.
        self._due = 0
        self._led = False
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being written. The caller holds the state."""
        return not self._led and not self._waiting

    def pending(self) -> Iterator[PendingWrite]:
        """What is not in the log yet, oldest first. The caller holds the state."""
        return chain(self._in_flight, self._waiting)

    def settle(self) -> None:
        """The group that is being written is done with. The caller holds the state."""
        self._in_flight = []

    def clear(self) -> list[PendingWrite]:
        """Take everything out that is not being written yet. The caller holds the state."""
        taken = list(self._waiting)
        self._waiting.clear()
        self._due = self.bytes = 0
        self._state.notify_all()
        return taken

    def remove_derived(self) -> list[PendingWrite]:
        """Take out what was completed from writes that might have failed. The caller holds the
        state."""
        taken = [write for write in self._waiting if write.derived]
        for write in taken:
            self._due -= self._waiting.index(write) < self._due
            self._waiting.remove(write)
            self.bytes -= write.bytes
        return taken

    def run(self, write: PendingWrite, *, admit: Callable[[], None]) -> None:
        """Queue a write and return when it is done.

        Parameters
        ----------
        admit : callable
            Called with the state held, just before the write is queued; may wait, or refuse by an
            exception.
        """
        write.attended = True
        with self._state:
            admit()
            self._append(write)
            self._due = len(self._waiting)
            leads = not self._led
            self._led = True
        if not leads:
            self._follow(write)
        if not write.done:
            self._lead(write)

    def take(self, write: PendingWrite) -> bool:
        """Give the log to a write if nobody has or wants it; the caller then leads until it calls
        :meth:`give_back`. The caller holds the state."""
        if self._led or self._waiting:
            return False
        self._led = True
        self._in_flight = [write]
        return True

    def give_back(self) -> None:
        """End what :meth:`take` began."""
        with self._state:
            self._pass_on()

    def put(self, write: PendingWrite, *, due: bool) -> None:
        """Queue a write that nobody waits for here. The caller holds the state.

        Parameters
        ----------
        due : bool
            Whether it, and all before it, are to be written now.
        """
        self._append(write)
        if due:
            self.hasten()

    def hasten(self) -> None:
        """Have everything that waits written now. The caller holds the state."""
        self._due = len(self._waiting)
        if self._due and not self._led:
            self._led = True
            self._lead_in_background()

    def _append(self, write: PendingWrite) -> None:
        self._waiting.append(write)
        self.bytes += write.bytes

    def _follow(self, write: PendingWrite) -> None:
        try:
            write.wait_for_turn()
        except BaseException:
            # Interrupted: somebody else must lead in its place.
            with self._state:
                write.attended = False
                if write.decline():
                    self._pass_on()
            raise

    def _lead(self, own: PendingWrite) -> None:
        try:
            while not own.done:
                self._write_next()
        finally:
            with self._state:
                self._pass_on()

    def _lead_in_background(self) -> None:
        try:
            self._executor.submit(self._lead_while_due)
        except RuntimeError:
            # Shut down with the table's writer, while this region was being claimed.
            self._led = False
            for write in self.clear():
                write.finish(WriterClosedError("the writer was closed before it could write"))

    def _lead_while_due(self) -> None:
        try:
            while self._due:
                self._write_next()
        finally:
            with self._state:
                self._pass_on()

    def _pass_on(self) -> None:
        """Find the next leader. The caller holds the state and leads."""
        if not self._due:
            self._led = False
        elif self._waiting[0].attended:
            self._waiting[0].promote()
        else:
            self._lead_in_background()

    def _write_next(self) -> None:
        with self._state:
            self._in_flight = group = self._next_group()
            # Somebody may wait for the queue to become shorter.
            self._state.notify_all()
        if group:
            self._write(group)

    def _next_group(self) -> list[PendingWrite]:
        group: list[PendingWrite] = []
        size = rows = 0
        row_schema = None
        while self._due:
            write = self._waiting[0]
            size += write.bytes
            rows += write.rows
            if group and (
                size > self._max_bytes
                or rows > self._max_rows
                or (row_schema is not None and write.row_schema not in (None, row_schema))
            ):
                break
            row_schema = row_schema or write.row_schema
            group.append(self._waiting.popleft())
            self.bytes -= write.bytes
            self._due -= 1
            if write.seals:
                break
        return group


logger = logging.getLogger(__name__)

# After these the log is as it was, or holds at most an entry that nobody was told of.
_RECOVERABLE = (StoreError, InvalidInputError)


class EntryWriter:
    """Writes groups as entries, and what the log has into the active MemTable.

    Only whoever holds the region's log calls it, except where the state is said to be held.

    Parameters
    ----------
    region_id : UUID
    state : threading.Condition
        The region's.
    failure : FailureLatch
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
        failure: FailureLatch,
        options: WriterOptions,
        log: LogAppender,
        queue: LogQueue,
        tables: MemTables,
        counters: RegionCounters,
        aging: Callable[[float], None],
    ) -> None:
        self._region_id = region_id
        self._state = state
        self._failure = failure
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
        entry = _GroupEntry(self, group)
        entry.store()
        entry.end()
        entry.check()

    def hold(self, write: PendingWrite) -> LogReservation:
        """Start an entry of one write, whose steps the caller takes."""
        return LogReservation(_GroupEntry(self, [write]), self._queue)

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

    def seal(self, *, row_schema: RowSchema | None = None, generation: int | None = None) -> None:
        """Hand the MemTable to the flush and start a new one."""
        with self._state:
            # Closed or fenced, the log keeps the rows for the next claim.
            if self._failure.error is None:
                if row_schema is not None and row_schema is not self._tables.row_schema:
                    self._log.change_schema(row_schema.schema, row_schema.convert_logged)
                self._tables.seal(row_schema=row_schema, generation=generation)

    def prepare(self, group: list[PendingWrite]) -> PreparedEntry | None:
        """Encode a group; None if it has no rows."""
        self._failure.raise_if_set()
        batches = [batch for write in group for batch in write.batches]
        if not batches:
            return None
        row_schema = next(write.row_schema for write in group if write.row_schema is not None)
        batches = join_batches(batches)
        if row_schema is not self._tables.row_schema or not self._tables.fits(batches):
            self.seal(row_schema=row_schema)
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
        if not isinstance(error, _RECOVERABLE):
            self._failure.set(error)
            return self._queue.clear()
        return self._queue.remove_derived()


class _GroupEntry:
    """A group of writes on its way into the log, in steps of which only one waits for the store.

    Whoever makes one holds the log of the region.
    """

    __slots__ = ("_entries", "_group", "_prepared", "_started", "error")

    def __init__(self, entries: EntryWriter, group: list[PendingWrite]) -> None:
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


class LogReservation:
    """A region's log that was idle, held for one write whose steps the caller takes."""

    def __init__(self, entry: _GroupEntry, queue: LogQueue) -> None:
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
