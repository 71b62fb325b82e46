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
from memwal.table_index.base_table import open_base
from memwal.writer.append import LogAppender, joined
from memwal.writer.claim import Claim, claim_region
from memwal.writer.completion import PartialRows, stored_rows
from memwal.writer.flush_queue import FlushQueue
from memwal.writer.generation import write_generation
from memwal.writer.generation_rows import TableRows
from memwal.writer.handle import PendingWrite, as_error
from memwal.writer.log import read_log
from memwal.writer.log_queue import LogQueue
from memwal.writer.maintained import maintained_indexes
from memwal.writer.memtable import MemTable
from memwal.writer.rows import RowShape
from memwal.writer.stats import RegionStats
from memwal.writer.tenure import Tenure
from memwal.writer.workshop import Workshop

logger = logging.getLogger(__name__)

# On a local disk a look at the epoch costs microseconds, elsewhere a request.
_LOCAL_CHECK_INTERVAL = 0.0
_REMOTE_CHECK_INTERVAL = 10.0

# After these the log is as it was, or holds at most an entry that nobody was told of.
_NOT_FINAL = (StoreError, InvalidInputError)


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Rows of one region with all their columns, in stored form."""

    shape: RowShape
    batches: list[pa.RecordBatch]


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
    ) -> None:
        """Claim the region and replay its log.

        Raises
        ------
        RegionSealedError, RegionFencedError, CorruptDataError
            See :func:`memwal.writer.claim.claim_region` and :func:`memwal.writer.log.read_log`.
        """
        self.region_id = region_id
        self._workshop = workshop
        self._options = options = workshop.options
        self._counters = workshop.counters.region(region_id)
        claim = claim_region(
            workshop.store, region_id, spec_id=spec_id, region_fields=region_fields
        )
        self.epoch = claim.manifest.writer_epoch
        self._tenure = Tenure(workshop.store, claim.manifest)
        # Guards everything below. The active MemTable is changed only by whoever holds the log,
        # and with the state held.
        self._state = threading.Condition()
        self._log_queue = LogQueue(
            self._state,
            workshop.appends,
            self._write_group,
            max_bytes=options.max_entry_bytes,
            max_rows=options.max_memtable_rows,
        )
        self._sealed = FlushQueue(
            self._state, workshop.flushes, self._flush, attempts=options.flush_attempts
        )
        self._shape = shape
        self._active = self._memtable(claim.manifest.current_generation, first_row=0)
        self._failure: MemWalError | None = None
        self._last_used = time.monotonic()
        self.released = False
        self._buffer_task = workshop.upkeep.task(self._write_buffered)
        self._age_task = workshop.upkeep.task(self._seal_aged)
        self._replay(claim)
        self._log = self._appender(claim)

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

    def _write_partial(self, rows: PartialRows, *, wait: bool) -> PendingWrite:
        known, mark = self._known_rows(rows)
        while True:
            with self._state:
                self._admit()
                since = self._since(mark)
                if since is not None:
                    logged, pending = since
                    whole = rows.completed([*known, *logged, *_tables(pending)])
                    write = PendingWrite(
                        whole,
                        rows.shape,
                        buffered=not (wait or self._options.durable),
                        derived=bool(pending),
                    )
                    self._put(write)
                    break
            # So much was written meanwhile that it has left memory already.
            known, mark = self._known_rows(rows)
        if wait:
            write.wait()
        return write

    def _known_rows(self, rows: PartialRows) -> tuple[list[pa.Table], int]:
        """Stored rows of some keys as of a row number of this writer."""
        with self._state:
            mark = self._active.end_row
            tables = [table.unflushed() for table in (*self._sealed.tables(), self._active)]
        known: list[pa.Table] = []
        missing = rows.keys
        for table in reversed(tables):
            if not missing.num_rows:
                return known, mark
            snapshot = table.snapshot
            at = snapshot.lookup([column.combine_chunks() for column in missing.columns])
            known.append(snapshot.take(at[at >= 0]))
            missing = missing.filter(pa.array(at < 0))
        if missing.num_rows:
            known.append(stored_rows(self._workshop.location, self.region_id, rows.shape, missing))
        return known, mark

    def _since(self, mark: int) -> tuple[list[pa.Table], list[pa.RecordBatch]] | None:
        """What was logged since a row number, and what is about to be. The caller holds the state.

        None if some of it has left memory.
        """
        tables = [*self._sealed.tables(), self._active]
        if tables[0].first_row > mark:
            return None
        logged = [table.since(mark) for table in tables if table.end_row > mark]
        pending = [batch for write in self._log_queue.pending() for batch in write.batches]
        return logged, pending

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
            len(self._sealed) < options.max_sealed_memtables
            and self._log_queue.bytes < options.max_buffered_bytes
        ):
            self._check_usable()
            return
        started = self._last_used
        deadline = started + options.backpressure_timeout
        try:
            self._sealed.wait_for_room(
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
        started = time.perf_counter()
        error: BaseException | None = None
        try:
            self._append(group)
        except BaseException as raised:
            # The group's other writers wait for an answer, whatever went wrong.
            error = raised
        writes, rows, nbytes = 0, 0, 0
        with self._state:
            self._log_queue.settle()
            for write in group:
                if write.buffered:
                    self._counters.unbuffered(1, write.bytes)
                if write.rows:
                    writes, rows, nbytes = writes + 1, rows + write.rows, nbytes + write.bytes
            if error is None:
                self._counters.acknowledged(writes, rows, nbytes)
                if writes:
                    self._counters.appended(nbytes, time.perf_counter() - started)
            else:
                self._counters.failed(error)
                group = [*group, *self._also_failed(error)]
        for write in group:
            write.finish(error)
        if error is not None and not isinstance(error, Exception):
            raise error

    def _append(self, group: list[PendingWrite]) -> None:
        with self._state:
            self._check_usable()
        batches = [batch for write in group for batch in write.batches]
        if batches:
            shape = next(write.shape for write in group if write.shape is not None)
            batches = joined(batches)
            if shape is not self._shape or not self._fits(batches):
                self._seal(shape=shape)
            appended = self._log.append(batches, generation=self._active.generation)
            with self._state:
                self._log_queue.settle()
                self._add(appended.batches, position=appended.position)
            if self._options.indexed:
                self._active.catch_up()
        if self._is_full() or group[-1].seals:
            self._seal()

    def _add(self, batches: Sequence[pa.RecordBatch], *, position: int) -> None:
        """Take rows into the active MemTable. The caller holds the state."""
        self._active.add(batches, position=position)
        if self._options.max_memtable_age is not None:
            self._age_task.schedule(self._active.born_at + self._options.max_memtable_age)

    def _also_failed(self, error: BaseException) -> list[PendingWrite]:
        """Queued writes that fail with a group. The caller holds the state."""
        if not isinstance(error, _NOT_FINAL):
            if self._failure is None:
                self._failure = error if isinstance(error, MemWalError) else as_error(error)
            return self._log_queue.clear()
        return self._log_queue.remove_derived()

    def _fits(self, batches: Sequence[pa.RecordBatch]) -> bool:
        """Whether Lance's own writer could still replay the generation with these in it."""
        return (
            self._active.rows + sum(batch.num_rows for batch in batches)
            <= self._options.max_memtable_rows
            and self._active.batches + len(batches) <= self._options.max_memtable_batches
        )

    def _is_full(self) -> bool:
        return (
            self._active.rows >= self._options.max_memtable_rows
            or self._active.batches >= self._options.max_memtable_batches
            or self._active.bytes >= self._options.max_memtable_bytes
        )

    def _write_buffered(self) -> None:
        with self._state:
            self._log_queue.hasten()

    def _seal_aged(self) -> None:
        age = self._options.max_memtable_age
        with self._state:
            if age is None or self._failure is not None or not self._active.rows:
                return
            due = self._active.born_at + age
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
                self._sealed.wait_until_flushed(
                    self._active.generation - 1, deadline=deadline, check=self._check_usable
                )

    def _seal(self, *, shape: RowShape | None = None, next_generation: int | None = None) -> None:
        """Hand the MemTable to the flush and start a new one. The caller holds the log."""
        with self._state:
            if self._failure is not None:
                # Closed or fenced: the log keeps the rows for the next claim.
                return
            generation = self._active.generation
            if self._active.rows:
                self._sealed.add(self._active)
                generation += 1
            if shape is not None and shape is not self._shape:
                self._shape = shape
                self._log.use(shape.schema, shape.adopt)
            self._active = self._memtable(
                next_generation or generation, first_row=self._active.end_row
            )

    def _memtable(self, generation: int, *, first_row: int) -> MemTable:
        names = self._shape.schema.names
        text = {
            path: options
            for path, options in self._workshop.text.items()
            if path.partition(".")[0] in names
        }
        return MemTable(self._shape, generation, first_row=first_row, text=text)

    def _flush(self, table: MemTable) -> None:
        """Write one generation and name it in the manifest, unless the region was claimed."""
        started = time.perf_counter()
        try:
            # Columns may have come and gone since the rows were written.
            base = open_base(self._workshop.location)
            write = partial(
                write_generation,
                base,
                self.region_id,
                table.generation,
                TableRows(table.contents(), table.shape.primary_key),
                maintained_indexes(base),
            )
            self._tenure.name_generation(table, write)
        except BaseException as error:
            with self._state:
                if isinstance(error, RegionFencedError):
                    self._failure = self._failure or error
                self._counters.flush_failed(error)
            raise
        with self._state:
            self._counters.flushed(table.rows, table.bytes, time.perf_counter() - started)

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
            tables = [*self._sealed.tables(), self._active]
            found = [table.unflushed() for table in tables if table.rows]
            buffered = [
                batch
                for write in self._log_queue.pending()
                if write.buffered
                for batch in write.batches
            ]
            found += [
                UnflushedRows.of(
                    self._active.generation + 1,
                    rows.schema,
                    self._shape.primary_key,
                    rows.to_batches(),
                )
                for rows in _tables(buffered)
            ]
            return found

    def stats(self) -> RegionStats:
        """What this writer did and holds."""
        with self._state:
            sealed = self._sealed.tables()
            active = self._active
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

    def _replay(self, claim: Claim) -> None:
        """Take what is in the log and not flushed, one MemTable per generation.

        A generation number above that of the active MemTable tells that the writer before us had
        sealed the lower one. Within one generation nothing is sealed, however large it grows:
        entries behind the seal would still carry the sealed generation's number, and the next
        replay would skip them.
        """
        for position, entry in read_log(
            self._workshop.store,
            self.region_id,
            after=claim.manifest.replay_after,
            epoch=self.epoch,
        ):
            if position >= claim.next_position:
                break
            if entry.is_sentinel:
                continue
            if entry.generation is not None:
                if entry.generation < claim.manifest.current_generation:
                    continue
                if entry.generation > self._active.generation:
                    self._seal(next_generation=entry.generation)
            adopted = [row for batch in entry.batches for row in self._shape.adopt(batch)]
            with self._state:
                self._add(adopted, position=position)

    def _appender(self, claim: Claim) -> LogAppender:
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
            schema=self._shape.schema,
            adopt=self._shape.adopt,
            verify_epoch=self._tenure.verify,
            check_interval=interval,
            verified_at=claim.verified_at,
        )


def _tables(batches: list[pa.RecordBatch]) -> list[pa.Table]:
    """Batches as tables, in order; neighbours of one schema share one."""
    tables: list[list[pa.RecordBatch]] = []
    for batch in batches:
        if tables and tables[-1][0].schema == batch.schema:
            tables[-1].append(batch)
        else:
            tables.append([batch])
    return [pa.Table.from_batches(part) for part in tables]
