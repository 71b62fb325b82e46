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
from memwal.lsm.wal.claim import Claim, Tenure, claim_region
from memwal.writer.region_writer.context import Workshop
from memwal.writer.region_writer.flusher import GenerationMaker
from memwal.writer.region_writer.group_commit import HeldLog, LogEntries, LogQueue
from memwal.writer.region_writer.handle import PendingWrite, Standing, as_error, done
from memwal.writer.region_writer.memtables import MemTable, MemTables
from memwal.writer.region_writer.partial_rows import PartialRows, as_tables, known_rows
from memwal.writer.region_writer.replay import replay
from memwal.writer.region_writer.rows import RowShape
from memwal.writer.region_writer.stats import RegionStats
from memwal.writer.region_writer.steps import RegionSteps

logger = logging.getLogger(__name__)

# A look at the epoch costs microseconds on a local disk, elsewhere a request. Both stay far below
# the grace period of the collector.
_LOCAL_CHECK_INTERVAL = 1.0
_REMOTE_CHECK_INTERVAL = 10.0


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Rows of one region with all their columns, in stored form."""

    shape: RowShape
    batches: list[pa.RecordBatch]


class RegionWriter:
    """The one writer of a region, until another one claims it.

    Writes from many threads share log entries, see :mod:`memwal.writer.region_writer.group_commit`.
    A durable write returns when its entry is safe and its rows are visible to :meth:`memtables`.
    """

    def __init__(
        self,
        workshop: Workshop,
        region_id: UUID,
        shape: RowShape,
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
        self._workshop = workshop
        self._options = options = workshop.options
        self._counters = workshop.counters.region(region_id)
        claim = claim_region(
            workshop.store,
            region_id,
            spec_id=spec_id,
            region_fields=region_fields,
            merged=merged,
            replay=keep,
            clock=workshop.clock,
        )
        if not keep:
            claim = abandon_log(workshop.store, claim)
        self.epoch = claim.manifest.writer_epoch
        # Guards everything below.
        self._state = threading.Condition()
        self._standing = Standing()
        tenure = Tenure(workshop.store, claim.manifest)
        self._maker = GenerationMaker(
            workshop, tenure, self._counters, state=self._state, failed=self._flush_failed
        )
        self._log_queue = LogQueue(
            self._state,
            workshop.appends,
            self._write_group,
            max_bytes=options.max_entry_bytes,
            max_rows=options.max_memtable_rows,
        )
        self._tables = MemTables(
            workshop,
            shape,
            generation=claim.manifest.current_generation,
            state=self._state,
            flush=self._flush,
        )
        self._last_used = time.monotonic()
        self.released = False
        self._buffer_task = workshop.upkeep.task(self._write_buffered)
        self._age_task = workshop.upkeep.task(self._seal_aged)
        self._entries = LogEntries(
            region_id,
            state=self._state,
            standing=self._standing,
            options=options,
            log=self._appender(claim, tenure),
            queue=self._log_queue,
            tables=self._tables,
            counters=self._counters,
            aging=self._age_task.schedule,
        )
        self._steps = RegionSteps(
            workshop.store,
            region_id,
            tip=lambda: self._entries.next_position,
            foreign=lambda: self._entries.foreign_steps,
            verify=tenure.verify,
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
        write = PendingWrite(rows.batches, rows.shape, buffered=not (wait or self._options.durable))
        if wait:
            self._log_queue.run(write, admit=self._admit)
        else:
            with self._state:
                self._admit()
                self._put(write)
        return write

    def begin(self, rows: WholeRows) -> tuple[PendingWrite, HeldLog | None]:
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
        return self._begin(PendingWrite(rows.batches, rows.shape))

    def begin_step(self, rows: WholeRows, *, step: Step) -> tuple[PendingWrite, HeldLog | None]:
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
            return done(), None
        write = PendingWrite(rows.batches, rows.shape, applied=applied)
        try:
            started = self._begin(write)
        except BaseException:
            self._steps.end(None)
            raise
        write.call_when_done(lambda: self._steps.end(applied if write.error is None else None))
        return started

    def _begin(self, write: PendingWrite) -> tuple[PendingWrite, HeldLog | None]:
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
            known = known_rows(self._workshop.location, self.region_id, rows, unflushed)
            with self._state:
                self._admit()
                logged = self._tables.since(mark)
                if logged is not None:
                    pending = as_tables(
                        [batch for w in self._log_queue.pending() for batch in w.batches]
                    )
                    write = PendingWrite(
                        rows.completed([*known, *logged, *pending]),
                        rows.shape,
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
            self._buffer_task.schedule(time.monotonic() + options.buffer_interval)

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
            self._standing.check()
            return
        started = self._last_used
        deadline = started + options.backpressure_timeout
        try:
            self._tables.sealed.wait_for_room(
                options.max_sealed_memtables, deadline=deadline, check=self._standing.check
            )
            while self._log_queue.bytes >= options.max_buffered_bytes:
                self._standing.check()
                self._log_queue.hasten()
                if not self._state.wait(max(deadline - time.monotonic(), 0)):
                    raise BackPressureError(
                        f"{self._log_queue.bytes:,} bytes wait for the log of region "
                        f"{self.region_id}; the write was not accepted, try again later"
                    )
            self._standing.check()
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
            if age is None or self._standing.failure is not None or not self._tables.active.rows:
                return
            due = self._tables.active.born_at + age
            if due > time.monotonic():
                self._age_task.schedule(due)
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
            self._standing.check()
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
            raise as_error(barrier.error)
        if barrier.seals:
            with self._state:
                self._tables.sealed.wait_until_flushed(
                    self._tables.active.generation - 1,
                    deadline=deadline,
                    check=self._standing.check,
                )

    def _flush(self, table: MemTable) -> None:
        self._maker.flush(table, TableRows(table.contents(), table.shape.primary_key))

    def _flush_failed(self, error: BaseException) -> None:
        if isinstance(error, RegionFencedError):
            self._standing.end(error)

    # End

    def close(self) -> None:
        """Flush, and take no more writes. A second call does nothing.

        Raises
        ------
        MemWalError, OSError
            See :meth:`flush`. The next claim replays what was not flushed.
        """
        with self._state:
            if isinstance(self._standing.failure, WriterClosedError):
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
            self._standing.end(
                WriterClosedError(f"the writer of region {self.region_id} is closed")
            )
            self._log_queue.hasten()
            self._state.notify_all()
        self._buffer_task.cancel()
        self._age_task.cancel()

    def used_at(self) -> float:
        """Monotonic seconds of the last write; infinite while one is on its way."""
        with self._state:
            return self._last_used if self._log_queue.is_idle else math.inf

    def release(self, since: float) -> bool:
        """Flush and close unless there was a write after a moment; whether it was closed."""
        if self.used_at() > since:
            return False
        self.flush()
        with self._state:
            if self._last_used > since or not self._log_queue.is_idle:
                return False
            self.released = True
            self._standing.end(WriterClosedError(f"region {self.region_id} was released when idle"))
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
            primary_key = self._tables.shape.primary_key
            return [
                *self._tables.unflushed(),
                *(
                    UnflushedRows.of(following, rows.schema, primary_key, rows.to_batches())
                    for rows in as_tables(buffered)
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
                fenced=isinstance(self._standing.failure, RegionFencedError),
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
            self._workshop.store,
            claim,
            shape=self._tables.shape,
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

    def _appender(self, claim: Claim, tenure: Tenure) -> LogAppender:
        interval = self._options.epoch_check_interval
        if interval is None:
            is_local = self._workshop.store.is_local
            interval = _LOCAL_CHECK_INTERVAL if is_local else _REMOTE_CHECK_INTERVAL
        return LogAppender(
            self._workshop.log_store,
            self.region_id,
            epoch=self.epoch,
            writer_id=claim.writer_id,
            next_position=claim.next_position,
            schema=self._tables.shape.schema,
            adopt=self._tables.shape.adopt,
            verify_epoch=tenure.verify,
            check_interval=interval,
            verified_at=claim.verified_at,
            clock=self._workshop.clock,
        )
