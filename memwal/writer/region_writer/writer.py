"""Writer of one region: writes go to the log, then to the MemTable, then to a generation."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from uuid import UUID

import pyarrow as pa

from memwal.errors import BackPressureError, RegionFencedError, WriterClosedError
from memwal.lsm.flush.rows import TableRows
from memwal.lsm.memtable.unflushed import UnflushedRows
from memwal.lsm.wal.abandon import abandon_log
from memwal.lsm.wal.appender import LogAppender
from memwal.lsm.wal.applied_steps import Step
from memwal.lsm.wal.claim import Claim, ClaimedRegion, claim_region
from memwal.writer.region_writer.context import WriterContext
from memwal.writer.region_writer.flusher import Flusher
from memwal.writer.region_writer.group_commit import EntryWriter, LogQueue, LogReservation
from memwal.writer.region_writer.handle import (
    FailureLatch,
    PendingWrite,
    copy_error,
    finished_write,
)
from memwal.writer.region_writer.memtables import MemTable, MemTables
from memwal.writer.region_writer.partial_rows import PartialRows, current_rows, group_by_schema
from memwal.writer.region_writer.replay import replay
from memwal.writer.region_writer.rows import RowSchema
from memwal.writer.region_writer.stats import RegionStats
from memwal.writer.region_writer.steps import StepSequencer

logger = logging.getLogger(__name__)

# A look at the epoch costs microseconds on a local disk, elsewhere a request. Both stay far below
# the grace period of the collector.
_LOCAL_CHECK_INTERVAL = 1.0
_REMOTE_CHECK_INTERVAL = 10.0


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Rows of one region with all their columns, in stored form."""

    row_schema: RowSchema
    batches: list[pa.RecordBatch]


class RegionWriter:
    """The one writer of a region, until another one claims it.

    Writes from many threads share log entries, see :mod:`memwal.writer.region_writer.group_commit`.
    A durable write returns when its entry is safe and its rows are visible to :meth:`memtables`.
    """

    def __init__(
        self,
        context: WriterContext,
        region_id: UUID,
        row_schema: RowSchema,
        *,
        spec_id: int = 0,
        region_fields: tuple[tuple[str, bytes], ...] = (),
        merged: int = 0,
        keep: bool = True,
    ) -> None:
        """Claim the region and replay its log, or abandon the log unless it is to be kept.

        Raises
        ------
        RegionSealedError, RegionFencedError, CorruptDataError
            See :func:`memwal.lsm.wal.claim.claim_region`,
            :func:`memwal.writer.region_writer.replay.replay` and
            :func:`memwal.lsm.wal.abandon.abandon_log`.
        """
        self.region_id = region_id
        self._context = context
        self._options = options = context.options
        self._counters = context.counters.region(region_id)
        claim = claim_region(
            context.store,
            region_id,
            spec_id=spec_id,
            region_fields=region_fields,
            merged=merged,
            replay=keep,
            clock=context.clock,
        )
        if not keep:
            claim = abandon_log(context.store, claim)
        self.epoch = claim.manifest.writer_epoch
        # Guards everything below.
        self._state = threading.Condition()
        self._failure = FailureLatch()
        claimed = ClaimedRegion(context.store, claim.manifest)
        self._maker = Flusher(
            context, claimed, self._counters, state=self._state, failed=self._flush_failed
        )
        self._log_queue = LogQueue(
            self._state,
            context.appends,
            self._write_group,
            max_bytes=options.max_entry_bytes,
            max_rows=options.max_memtable_rows,
        )
        self._tables = MemTables(
            context,
            row_schema,
            generation=claim.manifest.current_generation,
            state=self._state,
            flush=self._flush,
        )
        self._last_used = time.monotonic()
        self.released = False
        self._buffer_timer = context.timers.new_timer(self._write_buffered)
        self._age_timer = context.timers.new_timer(self._seal_aged)
        self._entries = EntryWriter(
            region_id,
            state=self._state,
            failure=self._failure,
            options=options,
            log=self._appender(claim, claimed),
            queue=self._log_queue,
            tables=self._tables,
            counters=self._counters,
            aging=self._age_timer.schedule,
        )
        self._steps = StepSequencer(
            context.store,
            region_id,
            tip=lambda: self._entries.next_position,
            foreign=lambda: self._entries.foreign_steps,
            verify=claimed.verify,
        )
        self._take_over(claim)

    # Writes

    def write(self, rows: WholeRows | PartialRows, *, wait: bool = True) -> PendingWrite:
        """Write rows.

        Parameters
        ----------
        wait : bool, default True
            Whether to return only when the write is done. The rows of one that is not waited for
            count as written at once if the writer buffers, and as soon as they are durable if not.

        Returns
        -------
        PendingWrite
            Done if ``wait``; what went wrong then stands in it.

        Raises
        ------
        BackPressureError, RegionFencedError, WriterClosedError
            The rows were not accepted.
        """
        if isinstance(rows, PartialRows):
            return self._write_partial(rows, wait=wait)
        write = PendingWrite(
            rows.batches, rows.row_schema, buffered=not (wait or self._options.durable)
        )
        if wait:
            self._log_queue.run(write, admit=self._admit)
        else:
            with self._state:
                self._admit()
                self._put(write)
        return write

    def begin(self, rows: WholeRows) -> tuple[PendingWrite, LogReservation | None]:
        """Start a durable write that the caller takes to its end, together with those of others.

        Returns
        -------
        PendingWrite
        HeldLog or None
            To be stored and ended by the caller. None if the log is busy: then the write is queued
            like any other.

        Raises
        ------
        BackPressureError, RegionFencedError, WriterClosedError
            The rows were not accepted.
        """
        return self._begin(PendingWrite(rows.batches, rows.row_schema))

    def begin_step(
        self, rows: WholeRows, *, step: Step
    ) -> tuple[PendingWrite, LogReservation | None]:
        """Start a step of a source, as :meth:`begin` starts a durable write.

        Waits for the step that is on its way. The rows go into one entry, which tells of the step.

        Returns
        -------
        PendingWrite
            Done, and without rows, if the region has the step.
        HeldLog or None
        """
        applied = self._steps.begin(step)
        if applied is None:
            return finished_write(), None
        write = PendingWrite(rows.batches, rows.row_schema, applied=applied)
        try:
            started = self._begin(write)
        except BaseException:
            self._steps.end(None)
            raise
        write.call_when_done(lambda: self._steps.end(applied if write.error is None else None))
        return started

    def _begin(self, write: PendingWrite) -> tuple[PendingWrite, LogReservation | None]:
        with self._state:
            self._admit()
            if not self._log_queue.take(write):
                self._put(write)
                return write, None
        return write, self._entries.hold(write)

    def _write_partial(self, rows: PartialRows, *, wait: bool) -> PendingWrite:
        while True:
            with self._state:
                mark = self._tables.active.end_row
                unflushed = self._tables.unflushed()
            known = current_rows(self._context.location, self.region_id, rows, unflushed)
            with self._state:
                self._admit()
                logged = self._tables.since(mark)
                if logged is not None:
                    pending = group_by_schema(
                        [batch for w in self._log_queue.pending() for batch in w.batches]
                    )
                    write = PendingWrite(
                        rows.completed([*known, *logged, *pending]),
                        rows.row_schema,
                        buffered=not (wait or self._options.durable),
                        derived=bool(pending),
                    )
                    self._put(write)
                    break
            # So much was written meanwhile that some of it has left memory: look again.
        if wait:
            write.wait()
        return write

    def _put(self, write: PendingWrite) -> None:
        """Queue a write that this thread does not lead. The caller holds the state."""
        options = self._options
        self._log_queue.put(write, due=not write.buffered)
        if not write.buffered:
            return
        self._counters.buffered(1, write.bytes)
        if (
            self._log_queue.bytes >= options.buffer_bytes
            or len(self._log_queue) >= options.buffer_writes
        ):
            self._log_queue.hasten()
        else:
            self._buffer_timer.schedule(time.monotonic() + options.buffer_interval)

    def _admit(self) -> None:
        """Wait until another write may be queued. The caller holds the state.

        Raises
        ------
        BackPressureError
            There was no room in time.
        """
        options = self._options
        self._last_used = time.monotonic()
        if (
            len(self._tables.sealed) < options.max_sealed_memtables
            and self._log_queue.bytes < options.max_buffered_bytes
        ):
            self._failure.raise_if_set()
            return
        started = self._last_used
        deadline = started + options.backpressure_timeout
        try:
            self._tables.sealed.wait_for_room(
                options.max_sealed_memtables, deadline=deadline, check=self._failure.raise_if_set
            )
            while self._log_queue.bytes >= options.max_buffered_bytes:
                self._failure.raise_if_set()
                self._log_queue.hasten()
                if not self._state.wait(max(deadline - time.monotonic(), 0)):
                    raise BackPressureError(
                        f"{self._log_queue.bytes:,} bytes wait for the log of region "
                        f"{self.region_id}; the write was not accepted, try again later"
                    )
            self._failure.raise_if_set()
        except BackPressureError:
            self._counters.refused()
            raise
        finally:
            self._counters.waited(time.monotonic() - started)

    # The log

    def _write_group(self, group: list[PendingWrite]) -> None:
        self._entries.write(group)

    def _write_buffered(self) -> None:
        with self._state:
            self._log_queue.hasten()

    def _seal_aged(self) -> None:
        age = self._options.max_memtable_age
        with self._state:
            if age is None or self._failure.error is not None or not self._tables.active.rows:
                return
            due = self._tables.active.born_at + age
            if due > time.monotonic():
                self._age_timer.schedule(due)
            else:
                self._log_queue.put(PendingWrite([], seals=True), due=True)

    # Flush

    def flush(self, *, timeout: float | None = None) -> None:
        """Seal the MemTable and wait until every sealed one is a flushed generation.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        BackPressureError
            It is not done in time; it goes on in the background.
        RegionFencedError
            Another writer has the region; it replays what was not flushed.
        MemWalError, OSError
            What the last of several tries failed with. The rows stay in memory and in the log,
            and the next flush tries again.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self.finish_barrier(self.start_barrier(seals=True), deadline=deadline)

    def start_barrier(self, *, seals: bool) -> PendingWrite:
        """Have everything that was written so far go to the log, without waiting for it.

        Parameters
        ----------
        seals : bool
            Whether the MemTable is sealed behind it.
        """
        barrier = PendingWrite([], seals=seals)
        with self._state:
            self._failure.raise_if_set()
            self._log_queue.put(barrier, due=True)
        return barrier

    def finish_barrier(self, barrier: PendingWrite, *, deadline: float) -> None:
        """Wait for a barrier, and for the flush if it seals.

        Parameters
        ----------
        deadline : float
            Monotonic seconds; may be infinite.

        Raises
        ------
        MemWalError, OSError
            See :meth:`flush`.
        """
        if not barrier.wait(None if deadline == math.inf else deadline - time.monotonic()):
            raise BackPressureError(
                f"the log of region {self.region_id} does not answer in time; what is in it is "
                "replayed by the next claim"
            )
        if barrier.error is not None:
            raise copy_error(barrier.error)
        if barrier.seals:
            with self._state:
                self._tables.sealed.wait_until_flushed(
                    self._tables.active.generation - 1,
                    deadline=deadline,
                    check=self._failure.raise_if_set,
                )

    def _flush(self, table: MemTable) -> None:
        self._maker.flush(table, TableRows(table.contents(), table.row_schema.primary_key))

    def _flush_failed(self, error: BaseException) -> None:
        if isinstance(error, RegionFencedError):
            self._failure.set(error)

    # End

    def close(self) -> None:
        """Flush, and take no more writes. A second call does nothing.

        Raises
        ------
        MemWalError, OSError
            See :meth:`flush`. The next claim replays what was not flushed.
        """
        with self._state:
            if isinstance(self._failure.error, WriterClosedError):
                return
        try:
            self.flush()
        finally:
            self.abort()

    def abort(self) -> None:
        """Take no more writes, without a flush: the log keeps the rows for the next claim.

        Buffered writes that are not in the log fail.
        """
        with self._state:
            self._failure.set(WriterClosedError(f"the writer of region {self.region_id} is closed"))
            self._log_queue.hasten()
            self._state.notify_all()
        self._buffer_timer.cancel()
        self._age_timer.cancel()

    def last_used(self) -> float:
        """Monotonic seconds of the last write; infinite while one is on its way."""
        with self._state:
            return self._last_used if self._log_queue.is_idle else math.inf

    def close_if_idle(self, since: float) -> bool:
        """Flush and close unless there was a write after a moment; whether it was closed."""
        if self.last_used() > since:
            return False
        self.flush()
        with self._state:
            if self._last_used > since or not self._log_queue.is_idle:
                return False
            self.released = True
            self._failure.set(WriterClosedError(f"region {self.region_id} was released when idle"))
        return True

    # What is there

    def memtables(self) -> list[UnflushedRows]:
        """What is not flushed yet, oldest generation first; buffered rows included."""
        with self._state:
            buffered = [
                batch
                for write in self._log_queue.pending()
                if write.buffered
                for batch in write.batches
            ]
            following = self._tables.active.generation + 1
            primary_key = self._tables.row_schema.primary_key
            return [
                *self._tables.unflushed(),
                *(
                    UnflushedRows.of(following, rows.schema, primary_key, rows.to_batches())
                    for rows in group_by_schema(buffered)
                ),
            ]

    def stats(self) -> RegionStats:
        """What this writer did and holds."""
        with self._state:
            *sealed, active = self._tables.all()
            now = time.monotonic()
            oldest = min(table.born_at for table in (*sealed, active))
            return self._counters.stats(
                epoch=self.epoch,
                generation=active.generation,
                next_position=self._entries.next_position,
                memtable_rows=active.rows,
                memtable_bytes=active.bytes,
                memtable_batches=active.batches,
                memtable_age_seconds=max(now - active.born_at, 0.0),
                sealed_memtables=len(sealed),
                sealed_bytes=sum(table.bytes for table in sealed),
                unflushed_age_seconds=max(now - oldest, 0.0),
                fenced=isinstance(self._failure.error, RegionFencedError),
            )

    def __enter__(self) -> RegionWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # Recovery

    def _take_over(self, claim: Claim) -> None:
        """Bring back what the log holds and no generation does.

        What does not fit into memory is flushed here, before the writer opens.
        """
        for found in replay(
            self._context.store,
            claim,
            row_schema=self._tables.row_schema,
            max_bytes=self._options.max_memtable_bytes,
        ):
            if found.batches is None:
                flush = partial(self._maker.flush, found, found.contents)
                self._tables.sealed.flush_now(flush)
                self._entries.seal(generation=found.generation + 1)
                continue
            self._entries.seal(generation=found.generation)
            with self._state:
                self._entries.add(
                    found.batches, position=found.last_position, log_batches=found.log_batches
                )
        if self._tables.is_full():
            self._entries.seal()

    def _appender(self, claim: Claim, claimed: ClaimedRegion) -> LogAppender:
        interval = self._options.epoch_check_interval
        if interval is None:
            is_local = self._context.store.is_local
            interval = _LOCAL_CHECK_INTERVAL if is_local else _REMOTE_CHECK_INTERVAL
        return LogAppender(
            self._context.log_store,
            claim,
            schema=self._tables.row_schema.schema,
            convert=self._tables.row_schema.convert_logged,
            verify_epoch=claimed.verify,
            check_interval=interval,
            clock=self._context.clock,
        )
