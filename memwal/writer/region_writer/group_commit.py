"""Group commit: queued writes of one region, written to its log as shared entries.

A durable write needs no background thread and no timer. A write that finds the log idle becomes the
leader: its thread writes one entry after another, each with all writes that were queued in the
meantime, until its own write is done. Then it hands over to the thread whose write is the oldest.
Writes that no caller waits for are led by a thread of the pool. Rows that the log has taken go into
the active MemTable.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from uuid import UUID

import pyarrow as pa

from memwal.boundary.lance_errors import limit_error
from memwal.errors import (
    InvalidInputError,
    MemWalError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    WriterClosedError,
)
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.appender import LogAppender, PreparedEntry, join_batches
from memwal.lsm.wal.logged_rows import convert_entry
from memwal.writer.region_writer.handle import FailureLatch, PendingWrite
from memwal.writer.region_writer.memtables import MemTables
from memwal.writer.region_writer.options import WriterSettings
from memwal.writer.region_writer.stats import RegionCounters

logger = logging.getLogger(__name__)

# After these errors the log is unchanged, or holds at most an entry that was not acknowledged.
_RECOVERABLE = (StoreError, InvalidInputError)


class LogQueue:
    """Queue of the writes to one region's log.

    The region's lock guards the queue, and is notified when buffered writes leave it. ``executor``
    leads writes that no caller waits for. ``write`` writes a group as one entry and finishes its
    members, also after an error. Only one call runs at a time, without the lock. It calls
    :meth:`clear_in_flight` with the lock held, in the same critical section in which the rows
    appear elsewhere or the group fails. ``max_bytes`` and ``max_rows`` limit a group, unless a
    single write is larger.
    """

    def __init__(
        self,
        lock: threading.Condition,
        executor: Executor,
        write: Callable[[list[PendingWrite]], None],
        *,
        max_bytes: int,
        max_rows: int,
    ) -> None:
        self._lock = lock
        self._executor = executor
        self._write = write
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._waiting: deque[PendingWrite] = deque()
        self._in_flight: list[PendingWrite] = []
        # How many of the first waiting writes are to be written now; the others may still gather.
        self._due = 0
        self._led = False
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """True if no write waits or is being written. The caller holds the lock."""
        return not self._led and not self._waiting

    def pending(self) -> Iterator[PendingWrite]:
        """Yield the writes that are not in the log yet, oldest first. The caller holds the lock."""
        return chain(self._in_flight, self._waiting)

    def clear_in_flight(self) -> None:
        """Forget the group that was being written. The caller holds the lock."""
        self._in_flight = []

    def take_waiting(self) -> list[PendingWrite]:
        """Remove and return all writes that are not being written. The caller holds the lock."""
        writes = list(self._waiting)
        self._waiting.clear()
        self._due = self.bytes = 0
        self._lock.notify_all()
        return writes

    def take_derived(self) -> list[PendingWrite]:
        """Remove writes completed from others that may fail. The caller holds the lock."""
        writes = [write for write in self._waiting if write.derived]
        for write in writes:
            self._due -= self._waiting.index(write) < self._due
            self._waiting.remove(write)
            self.bytes -= write.bytes
        return writes

    def enqueue(self, write: PendingWrite, *, due: bool) -> None:
        """Queue a write; if ``due``, it and those before are written. The caller holds the lock."""
        self._add(write)
        if due:
            self.make_all_due()

    def enqueue_and_wait(self, write: PendingWrite, *, admit: Callable[[], None]) -> None:
        """Queue a write and return when it is done.

        ``admit`` is called with the lock held, just before the write is queued. It may wait, or
        raise to refuse the write.
        """
        write.has_waiter = True
        with self._lock:
            admit()
            self._add(write)
            self._due = len(self._waiting)
            leads = not self._led
            self._led = True
        if not leads:
            self._follow(write)
        if not write.done:
            self._lead(lambda: not write.done)

    def try_reserve(self, write: PendingWrite) -> bool:
        """Give an idle log to a write until :meth:`end_reservation`. The caller holds the lock."""
        if self._led or self._waiting:
            return False
        self._led = True
        self._in_flight = [write]
        return True

    def end_reservation(self) -> None:
        """Give the log back after :meth:`try_reserve`."""
        with self._lock:
            self._choose_next_leader()

    def make_all_due(self) -> None:
        """Have all waiting writes written now. The caller holds the lock."""
        self._due = len(self._waiting)
        if self._due and not self._led:
            self._led = True
            self._lead_in_background()

    def _add(self, write: PendingWrite) -> None:
        self._waiting.append(write)
        self.bytes += write.bytes

    def _follow(self, write: PendingWrite) -> None:
        try:
            write.wait_for_turn()
        except BaseException:
            # Interrupted: another thread must lead in its place.
            with self._lock:
                write.has_waiter = False
                if write.decline():
                    self._choose_next_leader()
            raise

    def _lead(self, has_work: Callable[[], bool]) -> None:
        try:
            while has_work():
                with self._lock:
                    self._in_flight = group = self._next_group()
                    # Threads may wait for the queue to become shorter.
                    self._lock.notify_all()
                if group:
                    self._write(group)
        finally:
            with self._lock:
                self._choose_next_leader()

    def _lead_in_background(self) -> None:
        try:
            # At the end of the interpreter this thread leads, with the lock: the lock is reentrant,
            # and a leader waits for no other thread.
            self._executor.submit(self._lead, lambda: self._due > 0)
        except RuntimeError:
            # The table's writer shut the executor down while this region was being claimed.
            self._led = False
            for write in self.take_waiting():
                write.finish(WriterClosedError("the writer was closed before it could write"))

    def _choose_next_leader(self) -> None:
        """Hand the log over. The caller holds the lock and leads."""
        if not self._due:
            self._led = False
        elif self._waiting[0].has_waiter:
            self._waiting[0].promote()
        else:
            self._lead_in_background()

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


class EntryWriter:
    """Writes groups to the log as entries, and adds their rows to the active MemTable.

    Only the thread that leads the region's log calls it, except for methods whose caller holds the
    lock.

    ``schedule_seal`` is called with the lock held and a deadline in monotonic seconds: the active
    MemTable reaches its maximum age then.
    """

    def __init__(
        self,
        region_id: UUID,
        *,
        lock: threading.Condition,
        failure: FailureLatch,
        settings: WriterSettings,
        log: LogAppender,
        queue: LogQueue,
        tables: MemTables,
        counters: RegionCounters,
        schedule_seal: Callable[[float], None],
    ) -> None:
        self.log = log
        self._region_id = region_id
        self._lock = lock
        self._failure = failure
        self._settings = settings
        self._queue = queue
        self._tables = tables
        self._counters = counters
        self._schedule_seal = schedule_seal

    def write_group(self, group: list[PendingWrite]) -> None:
        """Write a group as one entry and finish its members, also after an error."""
        entry = GroupEntry(self, group)
        try:
            entry.store()
        finally:
            # Also after an interrupt: other threads may wait for their writes of the group.
            entry.end()

    def add_to_memtable(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        position: int,
        log_batches: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Add rows of the log to the active MemTable. The caller holds the lock."""
        self._tables.active.add(batches, position=position, log_batches=log_batches, nbytes=nbytes)
        if math.isfinite(self._settings.max_memtable_age):
            self._schedule_seal(self._tables.active.born_at + self._settings.max_memtable_age)

    def seal_memtable(
        self, *, row_schema: RowSchema | None = None, generation: int | None = None
    ) -> None:
        """Hand the active MemTable to the flush and start a new one."""
        with self._lock:
            # After a close or a fencing, the log keeps the rows for the next claim.
            if self._failure.error is None:
                if row_schema is not None and row_schema is not self._tables.row_schema:
                    convert = partial(convert_entry, row_schema, self._region_id)
                    self.log.change_schema(row_schema.schema, convert, row_schema.logged)
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
            self.seal_memtable(row_schema=row_schema)
        applied = next((write.applied for write in group if write.applied is not None), None)
        return self.log.prepare(batches, generation=self._tables.active.generation, applied=applied)

    def apply(
        self, group: list[PendingWrite], stored: PreparedEntry | None, started: float
    ) -> None:
        """Acknowledge a stored entry, and add its rows to the active MemTable."""
        nbytes = 0
        if stored is not None:
            self.log.acknowledge(stored)
            # Their buffers are their own: this is what nbytes finds in a tenth of the time.
            nbytes = sum(batch.get_total_buffer_size() for batch in stored.entry.batches)
        with self._lock:
            self._queue.clear_in_flight()
            for write in group:
                self._count_unbuffered(write)
            if stored is not None:
                for write in group:
                    write.position = stored.position
                rows = stored.entry.batches
                self.add_to_memtable(rows, position=stored.position, nbytes=nbytes)
                self._counters.add_entry(
                    sum(write.rows > 0 for write in group),
                    sum(write.rows for write in group),
                    nbytes,
                    time.perf_counter() - started,
                )
        if self._settings.indexed:
            try:
                self._tables.active.catch_up()
            except MemWalError as error:
                # The write is durable, so this must not fail it.
                logger.warning("rows of region %s are not indexed yet: %s", self._region_id, error)
        if self._tables.is_full() or group[-1].seals:
            self.seal_memtable()

    def fail(self, group: list[PendingWrite], error: BaseException) -> list[PendingWrite]:
        """Record that a group failed, and return it with the queued writes that fail with it."""
        with self._lock:
            self._queue.clear_in_flight()
            self._counters.record_error(error)
            if isinstance(error, _RECOVERABLE):
                group = [*group, *self._queue.take_derived()]
            else:
                self._failure.set(error)
                group = [*group, *self._queue.take_waiting()]
            for write in group:
                self._count_unbuffered(write)
        return group

    def _count_unbuffered(self, write: PendingWrite) -> None:
        if write.buffered:
            write.buffered = False
            self._counters.buffered_writes -= 1
            self._counters.buffered_bytes -= write.bytes


class GroupEntry:
    """One group of writes as a log entry, in three steps: encode, store, end.

    Only :meth:`store` waits for the store, and it may run on any thread. The thread that makes one
    leads the region's log; ``reserved`` is the queue of a log that :meth:`end` gives back.

    An interrupt (or any error of another region) may end an entry that was never stored. Its
    position is still free, and the next write takes it. If the rows went into the MemTable all the
    same, the flush would record that position as covered, and the next claim would not replay the
    write that was acknowledged there. So such an entry fails.
    """

    __slots__ = (
        "_group",
        "_is_stored",
        "_maybe_at",
        "_prepared",
        "_reserved",
        "_started",
        "_writer",
        "error",
    )

    def __init__(
        self, writer: EntryWriter, group: list[PendingWrite], *, reserved: LogQueue | None = None
    ) -> None:
        self._writer = writer
        self._group = group
        self._reserved = reserved
        self._started = time.perf_counter()
        self._prepared: PreparedEntry | None = None
        self._maybe_at: int | None = None
        self._is_stored = False
        self.error: BaseException | None = None
        try:
            self._prepared = writer.prepare(group)
        except MemoryError as error:
            # Nothing is in the log, and later writes may find room.
            self.error = limit_error(error, "encoding an entry of the log")
        except BaseException as error:
            # The group's writers wait for an answer, after any error.
            self.error = error

    def store(self) -> None:
        """Store the entry; an exception is kept in ``error``."""
        if self._prepared is not None:
            try:
                self._maybe_at = self._writer.log.next_position
                self._prepared = self._writer.log.put(self._prepared)
                self._maybe_at = self._prepared.position
                self._is_stored = True
            except BaseException as error:
                self._maybe_at = self._writer.log.next_position
                self.error = error

    def end(self) -> None:
        """Acknowledge or fail the writes, and give a reserved log back. Raises an interrupt."""
        try:
            self._finish_writes()
        finally:
            if self._reserved is not None:
                self._reserved.end_reservation()
        if self.error is not None and not isinstance(self.error, Exception):
            raise self.error

    def _finish_writes(self) -> None:
        if self.error is None and self._prepared is not None and not self._is_stored:
            self.error = _interrupted(self._maybe_at)
        if self.error is None:
            try:
                self._writer.apply(self._group, self._prepared, self._started)
            except BaseException as error:
                self.error = error
        group = self._group
        if self.error is not None:
            for write in group:
                write.maybe_at = self._maybe_at
            group = self._writer.fail(group, self.error)
        for write in group:
            write.finish(self.error)


def _interrupted(maybe_at: int | None) -> MemWalError:
    """Return the error of an entry that was ended before its store; None if that had not begun."""
    if maybe_at is None:
        return StoreUnavailableError("the write was interrupted, and nothing of it was stored")
    return OutcomeUnknownError(f"the write was interrupted, and may be in the log at {maybe_at}")
