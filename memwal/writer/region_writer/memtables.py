"""MemTables of a region: the active one, the sealed ones, and their flush in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

import pyarrow as pa

from memwal.errors import (
    BackPressureError,
    MemWalError,
    OutcomeUnknownError,
    StoreError,
    WriterClosedError,
)
from memwal.lsm.memtable.indexes import MemTableIndexes, UnflushedRows
from memwal.lsm.row_schema import RowSchema
from memwal.util.log import safe_error_text
from memwal.util.memory import release_after
from memwal.util.retry import retry_errors
from memwal.writer.region_writer.context import WriterContext, text_in

logger = logging.getLogger(__name__)

# Pause between a flush that failed after all attempts and the next one, while writes wait for it.
_PAUSE_SECONDS = 0.05


class MemTable(MemTableIndexes):
    """Rows in the order of the log, with their indexes, superseded rows included.

    Changed by one thread at a time. Reads of the result of :meth:`unflushed` need no lock.
    ``first_row`` is the number of rows that the region's writer took before. ``text`` are the text
    columns that can be searched, with the options of their index.
    """

    def __init__(
        self,
        row_schema: RowSchema,
        generation: int,
        *,
        first_row: int = 0,
        text: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        super().__init__(row_schema.schema, row_schema.primary_key, text=text)
        self.row_schema = row_schema
        self.generation = generation
        self.first_row = first_row
        self.batches = 0  # number of batches of the rows in the log
        # Position of the newest log entry with rows of it; 0 while it is empty.
        self.last_position = 0
        self.born_at = float("inf")  # monotonic time of the first row; infinite while it is empty
        self.sealed_at = float("inf")  # monotonic time since which it takes no rows

    @property
    def end_row(self) -> int:
        """Number of rows that the region's writer took before and including these."""
        return self.first_row + self.rows

    def add(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        position: int,
        log_batches: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Add the rows of the log up to ``position``.

        ``log_batches`` is the number of their batches in the log, if it differs; ``nbytes`` the
        memory of a single batch, if known.
        """
        if not self.rows:
            self.born_at = time.monotonic()
        for batch in batches:
            self.append(batch, nbytes=nbytes if len(batches) == 1 else None)
        self.batches += len(batches) if log_batches is None else log_batches
        self.last_position = position

    def unflushed(self) -> UnflushedRows:
        """Return a snapshot of the rows, which later rows do not change."""
        return UnflushedRows(self.generation, self.snapshot())

    def contents(self) -> pa.Table:
        """Return all rows, oldest first."""
        return self.snapshot().view.to_table()

    def since(self, row: int) -> pa.Table:
        """Return the rows from number ``row`` of the region's writer on, oldest first."""
        return self.contents().slice(max(row - self.first_row, 0))


class FlushQueue:
    """Flushes sealed MemTables one after another, oldest first.

    The region's lock guards the queue, so that a reader sees queue and active MemTable together,
    and is notified when a flush succeeds or fails. ``executor`` runs the flushes, and may be shared
    between regions. ``flush`` flushes one MemTable, or raises; after a failure it is called again
    with the same MemTable. The failure is reported after some attempts.
    """

    def __init__(
        self,
        lock: threading.Condition,
        executor: Executor,
        flush: Callable[[MemTable], None],
        *,
        attempts: int,
    ) -> None:
        self._lock = lock
        self._executor = executor
        self._flush = flush
        self._attempts = attempts
        self._tables: deque[MemTable] = deque()
        self._running = False
        self._error: Exception | None = None
        self._not_before = 0.0

    def __len__(self) -> int:
        return len(self._tables)

    def tables(self) -> list[MemTable]:
        """Return the queued MemTables, oldest first. The caller holds the lock."""
        return list(self._tables)

    def add(self, table: MemTable) -> None:
        """Queue a MemTable. The caller holds the lock."""
        self._tables.append(table)
        self._start()

    def wait_for_room(self, limit: int, *, deadline: float, check: Callable[[], None]) -> None:
        """Wait until fewer than ``limit`` MemTables are queued. The caller holds the lock.

        The deadline is in monotonic seconds. Raises BackPressureError if the queue stayed full
        until then; its cause is the error of the flush, if any.
        """
        while len(self._tables) >= limit:
            check()
            self._start()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise BackPressureError(
                    f"{len(self._tables)} MemTables wait for their flush (limit {limit}); "
                    "the write was not accepted, try again later"
                ) from self._error
            self._lock.wait(
                min(remaining, _PAUSE_SECONDS if self._error else threading.TIMEOUT_MAX)
            )

    def wait_until_flushed(
        self, generation: int, *, deadline: float, check: Callable[[], None]
    ) -> None:
        """Wait until a generation and all before it are flushed. The caller holds the lock.

        A flush that has failed is tried again. The deadline is in monotonic seconds and may be
        infinite. Raises BackPressureError if they are not flushed in time, and the error of the
        oldest MemTable, which stays queued.
        """
        self._error = None
        self._not_before = 0.0
        while self._tables and self._tables[0].generation <= generation:
            check()
            if self._error is not None:
                raise self._error
            self._start()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise BackPressureError(
                    f"{len(self._tables)} MemTables are not flushed in time; the log has their "
                    "rows, and the next claim of the region replays those not flushed by then"
                )
            self._lock.wait(min(remaining, threading.TIMEOUT_MAX))

    def _start(self) -> None:
        if self._tables and not self._running and time.monotonic() >= self._not_before:
            self._running = True
            try:
                # At the end of the interpreter this thread runs it, with the region's lock: the
                # lock is reentrant, and a flush waits for no other thread.
                self._executor.submit(self._drain)
            except RuntimeError:
                # The table's writer shut the executor down while this region was being claimed.
                self._running = False
                self._error = WriterClosedError("the writer was closed before it could flush")

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._tables:
                    self._stop(None)
                    return
                table = self._tables[0]
            try:
                self.flush_now(partial(self._flush, table))
            except BaseException as error:
                logger.warning(
                    "flush of generation %d failed: %s", table.generation, safe_error_text(error)
                )
                # A panic in Lance is not an Exception, but waiting threads must get an error too.
                reported = (
                    error
                    if isinstance(error, Exception)
                    else MemWalError(
                        f"the flush of generation {table.generation} crashed: "
                        f"{safe_error_text(error)}; its rows stay in the log, and the next writer "
                        "of the region replays them"
                    )
                )
                with self._lock:
                    self._stop(reported)
                return
            with self._lock:
                self._tables.popleft()
                self._lock.notify_all()
            freed = table.nbytes
            del table
            release_after(freed)

    def _stop(self, error: Exception | None) -> None:
        self._running = False
        self._error = error
        if error is not None:
            self._not_before = time.monotonic() + _PAUSE_SECONDS
        self._lock.notify_all()

    def flush_now(self, flush: Callable[[], None]) -> None:
        """Call ``flush`` in this thread, with as many attempts as a queued MemTable gets."""
        errors = (StoreError, OutcomeUnknownError, OSError)
        retry_errors(flush, errors, self._attempts, first_wait=0.1, longest_wait=5)


class MemTables:
    """The active MemTable and the sealed ones before it.

    Only the leader of the region's log changes the active one, and with the lock held. All methods
    are called with the lock held, except :meth:`fits` and :meth:`is_full`, which only the leader
    of the log calls.
    """

    def __init__(
        self,
        context: WriterContext,
        row_schema: RowSchema,
        *,
        generation: int,
        lock: threading.Condition,
        flush: Callable[[MemTable], None],
    ) -> None:
        self._settings = context.settings
        self._text = context.text
        self.row_schema = row_schema  # schema of the active MemTable
        self.sealed = FlushQueue(
            lock, context.flushes, flush, attempts=context.settings.flush_attempts
        )
        self.active = self._new_table(row_schema, generation, 0)

    def all(self) -> list[MemTable]:
        """Return all MemTables, oldest first, the active one last."""
        return [*self.sealed.tables(), self.active]

    def unflushed(self) -> list[UnflushedRows]:
        """Return snapshots of the MemTables that have rows, oldest first."""
        return [table.unflushed() for table in self.all() if table.rows]

    def since(self, row: int) -> list[pa.Table] | None:
        """Return the rows from number ``row`` on; None if some of them are not in memory."""
        tables = self.all()
        if tables[0].first_row > row:
            return None
        return [table.since(row) for table in tables if table.end_row > row]

    def fits(self, batches: Sequence[pa.RecordBatch]) -> bool:
        """Return whether Lance's own writer could replay the generation with these rows added."""
        rows = batches[0].num_rows if len(batches) == 1 else sum(b.num_rows for b in batches)
        return (
            self.active.rows + rows <= self._settings.max_memtable_rows
            and self.active.batches + len(batches) <= self._settings.max_memtable_batches
        )

    def is_full(self) -> bool:
        """Return whether the active MemTable has reached a limit and has to be sealed."""
        return (
            self.active.rows >= self._settings.max_memtable_rows
            or self.active.batches >= self._settings.max_memtable_batches
            or self.active.nbytes >= self._settings.max_memtable_bytes
        )

    def seal(self, *, row_schema: RowSchema | None = None, generation: int | None = None) -> None:
        """Hand the active MemTable to the flush, if it has rows, and start a new one.

        ``row_schema`` is for the rows to come, by default unchanged. ``generation`` is the number
        of the new MemTable, by default the next one.
        """
        row_schema = row_schema or self.row_schema
        sealed = self.active
        following = sealed.generation
        if sealed.rows:
            following += 1
        # First, since nothing may have changed if it fails: a table that is flushed while rows are
        # added to it loses them.
        self.active = self._new_table(row_schema, generation or following, sealed.end_row)
        self.row_schema = row_schema
        if sealed.rows:
            sealed.sealed_at = time.monotonic()
            self.sealed.add(sealed)

    def _new_table(self, row_schema: RowSchema, generation: int, first_row: int) -> MemTable:
        text = text_in(self._text, row_schema.schema)
        return MemTable(row_schema, generation, first_row=first_row, text=text)
