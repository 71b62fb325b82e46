"""The writer of one region: writes go to the log, then to the MemTable, then to a generation."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from uuid import UUID

import pyarrow as pa

from memwal.errors import (
    BackPressureError,
    InvalidInputError,
    MemWalError,
    RegionFencedError,
    StoreError,
    WriterClosedError,
)
from memwal.memtable.unflushed import UnflushedRows
from memwal.writer.abandon import abandon_log
from memwal.writer.append import LogAppender, PreparedEntry, joined
from memwal.writer.claim import Claim, claim_region
from memwal.writer.completion import PartialRows, as_tables, known_rows
from memwal.writer.generation_rows import TableRows
from memwal.writer.handle import PendingWrite, as_error
from memwal.writer.log_queue import LogQueue
from memwal.writer.memtable import MemTable
from memwal.writer.memtables import MemTables
from memwal.writer.naming import GenerationMaker
from memwal.writer.replay import replay
from memwal.writer.rows import RowShape
from memwal.writer.stats import RegionStats
from memwal.writer.tenure import Tenure
from memwal.writer.workshop import Workshop

logger = logging.getLogger(__name__)

# A look at the epoch costs microseconds on a local disk, elsewhere a request. Both stay far below
# the grace period of the collector.
_LOCAL_CHECK_INTERVAL = 1.0
_REMOTE_CHECK_INTERVAL = 10.0

# After these the log is as it was, or holds at most an entry that nobody was told of.
_NOT_FINAL = (StoreError, InvalidInputError)


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Rows of one region with all their columns, in stored form."""

    shape: RowShape
    batches: list[pa.RecordBatch]


class _Entry:
    """A group of writes on its way into the log, in steps of which only one waits for the store.

    Whoever makes one holds the log of the region.
    """

    __slots__ = ("_group", "_prepared", "_region", "_started", "error")

    def __init__(self, region: RegionWriter, group: list[PendingWrite]) -> None:
        self._region = region
        self._group = group
        self._started = time.perf_counter()
        self._prepared: PreparedEntry | None = None
        self.error: BaseException | None = None
        try:
            self._prepared = region._prepare(group)
        except BaseException as error:
            # The group's writers wait for an answer, whatever went wrong.
            self.error = error

    def store(self) -> None:
        """Put the entry into the log; what fails is kept in ``error``."""
        if self._prepared is not None:
            try:
                self._prepared = self._region._log.put(self._prepared)
            except BaseException as error:
                self.error = error

    def end(self) -> None:
        """Acknowledge the writes, or tell them what went wrong."""
        if self.error is None:
            try:
                self._region._take_in(self._group, self._prepared, self._started)
            except BaseException as error:
                self.error = error
        group = self._group
        if self.error is not None:
            group = self._region._give_up(group, self.error)
        for write in group:
            write.finish(self.error)

    def check(self) -> None:
        """Raise what is no error, such as an interrupt."""
        if self.error is not None and not isinstance(self.error, Exception):
            raise self.error


class HeldLog:
    """A region's log that was idle, held for one write; see :meth:`RegionWriter.begin`."""

    def __init__(self, region: RegionWriter, write: PendingWrite) -> None:
        self._region = region
        self._entry = _Entry(region, [write])

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
            self._region._log_queue.give_back()
        self._entry.check()


class RegionWriter:
    """The one writer of a region, until another one claims it.

    Writes from many threads share log entries, see :mod:`memwal.writer.log_queue`. A durable write
    returns when its entry is safe and its rows are visible to :meth:`memtables`.
    """

    def __init__(
        self,
        workshop: Workshop,
        region_id: UUID,
        shape: RowShape,
        *,
        spec_id: int = 0,
        region_fields: tuple[tuple[str, bytes], ...] = (),
        keep: bool = True,
    ) -> None:
        """Claim the region and replay its log, or abandon the log unless it is to be kept.

        Raises
        ------
        RegionSealedError, RegionFencedError, CorruptDataError
            See :func:`memwal.writer.claim.claim_region`, :func:`memwal.writer.replay.replay` and
            :func:`memwal.writer.abandon.abandon_log`.
        """
        self.region_id = region_id
        self._workshop = workshop
        self._options = options = workshop.options
        self._counters = workshop.counters.region(region_id)
        claim = claim_region(
            workshop.store, region_id, spec_id=spec_id, region_fields=region_fields, replay=keep
        )
        if not keep:
            claim = abandon_log(workshop.store, claim)
        self.epoch = claim.manifest.writer_epoch
        # Guards everything below.
        self._state = threading.Condition()
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
        self._failure: MemWalError | None = None
        self._last_used = time.monotonic()
        self.released = False
        self._buffer_task = workshop.upkeep.task(self._write_buffered)
        self._age_task = workshop.upkeep.task(self._seal_aged)
        self._take_over(claim)
        self._log = self._appender(claim, tenure)

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
        write = PendingWrite(rows.batches, rows.shape)
        with self._state:
            self._admit()
            if not self._log_queue.take(write):
                self._put(write)
                return write, None
        return write, HeldLog(self, write)

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
            self._check_usable()
            return
        started = self._last_used
        deadline = started + options.backpressure_timeout
        try:
            self._tables.sealed.wait_for_room(
                options.max_sealed_memtables, deadline=deadline, check=self._check_usable
            )
            while self._log_queue.bytes >= options.max_buffered_bytes:
                self._check_usable()
                self._log_queue.hasten()
                if not self._state.wait(max(deadline - time.monotonic(), 0)):
                    raise BackPressureError(
                        f"{self._log_queue.bytes:,} bytes wait for the log of region "
                        f"{self.region_id}; the write was not accepted, try again later"
                    )
            self._check_usable()
        except BackPressureError:
            self._counters.refused()
            raise
        finally:
            self._counters.waited(time.monotonic() - started)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise as_error(self._failure)

    # The log

    def _write_group(self, group: list[PendingWrite]) -> None:
        """Write a group as one entry. Only whoever holds the log calls this."""
        entry = _Entry(self, group)
        entry.store()
        entry.end()
        entry.check()

    def _prepare(self, group: list[PendingWrite]) -> PreparedEntry | None:
        """Encode a group; None if it has no rows."""
        self._check_usable()
        batches = [batch for write in group for batch in write.batches]
        if not batches:
            return None
        shape = next(write.shape for write in group if write.shape is not None)
        batches = joined(batches)
        if shape is not self._tables.shape or not self._tables.fits(batches):
            self._seal(shape=shape)
        return self._log.prepare(batches, generation=self._tables.active.generation)

    def _take_in(
        self, group: list[PendingWrite], stored: PreparedEntry | None, started: float
    ) -> None:
        """Take up what the log has by now."""
        appended = None if stored is None else self._log.acknowledge(stored)
        nbytes = 0 if appended is None else sum(batch.nbytes for batch in appended.batches)
        with self._state:
            self._log_queue.settle()
            if appended is not None:
                self._add(appended.batches, position=appended.position, nbytes=nbytes)
                self._count(group, nbytes, time.perf_counter() - started)
        if self._options.indexed:
            self._index()
        if self._tables.is_full() or group[-1].seals:
            self._seal()

    def _give_up(self, group: list[PendingWrite], error: BaseException) -> list[PendingWrite]:
        """Tell what fails when a group does."""
        with self._state:
            self._log_queue.settle()
            self._counters.failed(error)
            group = [*group, *self._also_failed(error)]
            for write in group:
                self._no_longer_buffered(write)
        return group

    def _add(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        position: int,
        log_batches: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Take rows into the active MemTable. The caller holds the state."""
        self._tables.active.add(batches, position=position, log_batches=log_batches, nbytes=nbytes)
        if self._options.max_memtable_age is not None:
            born_at = self._tables.active.born_at
            self._age_task.schedule(born_at + self._options.max_memtable_age)

    def _index(self) -> None:
        """Index what is durable by now: whatever goes wrong, the write has not failed."""
        try:
            self._tables.active.catch_up()
        except MemWalError as error:
            logger.warning("rows of region %s are not indexed yet: %s", self.region_id, error)

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
            if self._failure is None:
                self._failure = error if isinstance(error, MemWalError) else as_error(error)
            return self._log_queue.clear()
        return self._log_queue.remove_derived()

    def _write_buffered(self) -> None:
        with self._state:
            self._log_queue.hasten()

    def _seal_aged(self) -> None:
        age = self._options.max_memtable_age
        with self._state:
            if age is None or self._failure is not None or not self._tables.active.rows:
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
            self._check_usable()
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
                    self._tables.active.generation - 1, deadline=deadline, check=self._check_usable
                )

    def _seal(self, *, shape: RowShape | None = None, generation: int | None = None) -> None:
        """Hand the MemTable to the flush and start a new one. The caller holds the log."""
        with self._state:
            # Closed or fenced, the log keeps the rows for the next claim.
            if self._failure is None:
                if shape is not None and shape is not self._tables.shape:
                    self._log.use(shape.schema, shape.adopt)
                self._tables.seal(shape=shape, generation=generation)

    def _flush(self, table: MemTable) -> None:
        self._maker.flush(table, TableRows(table.contents(), table.shape.primary_key))

    def _flush_failed(self, error: BaseException) -> None:
        if isinstance(error, RegionFencedError):
            self._failure = self._failure or error

    # End

    def close(self) -> None:
        """Flush, and take no more writes. A second call does nothing.

        Raises
        ------
        MemWalError, OSError
            See :meth:`flush`. The next claim replays what was not flushed.
        """
        with self._state:
            if isinstance(self._failure, WriterClosedError):
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
            if self._failure is None:
                self._failure = WriterClosedError(
                    f"the writer of region {self.region_id} is closed"
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
            self._failure = WriterClosedError(f"region {self.region_id} was released when idle")
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
                next_position=self._log.next_position,
                memtable_rows=active.rows,
                memtable_bytes=active.bytes,
                memtable_batches=active.batches,
                memtable_age_seconds=max(now - active.born_at, 0.0),
                sealed_memtables=len(sealed),
                sealed_bytes=sum(table.bytes for table in sealed),
                unflushed_age_seconds=max(now - oldest, 0.0),
                fenced=isinstance(self._failure, RegionFencedError),
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
                self._seal(generation=found.generation + 1)
                continue
            self._seal(generation=found.generation)
            with self._state:
                self._add(
                    found.batches, position=found.last_position, log_batches=found.log_batches
                )
        if self._tables.is_full():
            self._seal()

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
        )
