"""Writer of one region: rows go to the log, then to the MemTable, then to a generation."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import pyarrow as pa

from memwal.errors import (
    BackPressureError,
    RegionFencedError,
    WriterClosedError,
)
from memwal.format.memwal_index import StoredRegionSpec
from memwal.format.paths import wal_dir
from memwal.format.wal_layout import AppliedSteps
from memwal.lsm.flush.generation import write_generation
from memwal.lsm.flush.rows import GenerationRows, TableRows
from memwal.lsm.indexes.maintained import maintained_indexes
from memwal.lsm.memtable.indexes import UnflushedRows
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.abandon import abandon_log
from memwal.lsm.wal.appender import LogAppender
from memwal.lsm.wal.applied_steps import Step, StepSequencer
from memwal.lsm.wal.claim import (
    Claim,
    ClaimedRegion,
    check_not_lost,
    claim_region,
    claimed_folders,
)
from memwal.lsm.wal.logged_rows import convert_entry
from memwal.lsm.wal.replay import ReplayedGeneration, has_replayed, replay
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import interpreter_is_ending
from memwal.writer.region_writer.context import WriterContext
from memwal.writer.region_writer.group_commit import EntryWriter, GroupEntry, LogQueue
from memwal.writer.region_writer.handle import (
    FailureLatch,
    PendingWrite,
    copy_error,
    finished_write,
)
from memwal.writer.region_writer.memtables import MemTable, MemTables
from memwal.writer.region_writer.partial_rows import PartialRows, current_rows, group_by_schema
from memwal.writer.region_writer.stats import RegionStats

# Checking the epoch costs microseconds on a local disk, and a request elsewhere. Both intervals are
# far below the grace period of the garbage collector.
_LOCAL_CHECK_INTERVAL = 1.0
_REMOTE_CHECK_INTERVAL = 10.0


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Stored rows of one region, with all columns of the table."""

    row_schema: RowSchema
    batches: list[pa.RecordBatch]


class RegionWriter:
    """The only writer of a region until another one claims it.

    Writes from many threads share log entries, see :mod:`memwal.writer.region_writer.group_commit`.
    A durable write returns when its entry is safe and its rows are visible to :meth:`memtables`.
    """

    def __init__(
        self,
        context: WriterContext,
        region_id: UUID,
        row_schema: RowSchema,
        *,
        spec: StoredRegionSpec | None = None,
        region_fields: tuple[tuple[str, bytes], ...] = (),
        merged: int = 0,
        keep: bool = True,
    ) -> None:
        """Claim the region, and replay its log, or without ``keep`` abandon the unflushed rows."""
        started = time.monotonic()
        self.region_id = region_id
        self._context = context
        self._settings = settings = context.settings
        self._counters = context.counters.region(region_id)
        store, log_store = _hold(context, region_id, merged)
        claim = claim_region(
            store,
            region_id,
            spec_id=spec.spec_id if spec is not None else 0,
            region_fields=region_fields,
            merged=merged,
            replay=keep,
            clock=context.clock,
        )
        if not keep:
            claim = abandon_log(store, claim)
        self.epoch = claim.manifest.writer_epoch
        self.writer_id = claim.writer_id
        self.claimed_seconds = 0.0  # duration of the claim and the replay
        self._claimed_manifest = claim.manifest
        # Lock of the region: it guards everything below.
        self._lock = threading.Condition()
        self._failure = FailureLatch()
        self._store = store  # holds the folders of the region
        self._claimed = claimed = ClaimedRegion(store, claim.manifest)
        self._log_queue = LogQueue(
            self._lock,
            context.appends,
            lambda group: self._entry_writer.write_group(group),
            max_bytes=settings.max_entry_bytes,
            max_rows=settings.max_memtable_rows,
        )
        if claim.has_entries:
            # They may have columns that were added since the writer opened the table. The claim has
            # fenced who wrote them, so that the version that is read now has all their columns.
            row_schema = context.newest_row_schema(row_schema)
        self._tables = MemTables(
            context,
            row_schema,
            generation=claim.manifest.current_generation,
            lock=self._lock,
            flush=lambda table: self._flush(
                table,
                TableRows(table.contents(), table.row_schema.primary_key),
                complete_at=table.sealed_at,
            ),
        )
        self._last_used = time.monotonic()
        self.released = False
        self._buffer_timer = context.timers.new_timer(self._write_buffered)
        self._age_timer = context.timers.new_timer(self._seal_aged)
        self._entry_writer = EntryWriter(
            region_id,
            lock=self._lock,
            failure=self._failure,
            settings=settings,
            log=self._new_appender(log_store, claim, claimed, spec),
            queue=self._log_queue,
            tables=self._tables,
            counters=self._counters,
            schedule_seal=self._age_timer.schedule,
        )
        self._steps = StepSequencer(store, region_id, self._entry_writer.log, verify=claimed.verify)
        self._replay(claim)
        self.claimed_seconds = time.monotonic() - started

    # Writes

    def write(self, rows: WholeRows | PartialRows, *, wait: bool = True) -> PendingWrite:
        """Write rows, and with ``wait`` return when that is done.

        Otherwise the rows count as written at once if the writer buffers, and when they are durable
        if it does not. A failure is in the result's ``error``. Raises BackPressureError,
        RegionFencedError or WriterClosedError if the rows were not accepted.
        """
        if isinstance(rows, PartialRows):
            return self._write_partial(rows, wait=wait)
        write = PendingWrite(
            rows.batches, rows.row_schema, buffered=not (wait or self._settings.durable)
        )
        if wait:
            self._log_queue.enqueue_and_wait(write, admit=self._wait_for_room)
        else:
            with self._lock:
                self._wait_for_room()
                self._enqueue(write)
        return write

    def begin(
        self, rows: WholeRows, *, applied: AppliedSteps | None = None
    ) -> tuple[PendingWrite, GroupEntry | None]:
        """Start a durable write that the caller completes, along with writes of other regions.

        Returns the entry of the write in the log, which is reserved for it: the caller stores and
        ends it. It is None if the log is busy: the write is then queued like any other. For a step,
        ``applied`` is what its entry records. Raises the errors of :meth:`write`.
        """
        write = PendingWrite(rows.batches, rows.row_schema, applied=applied)
        with self._lock:
            self._wait_for_room()
            if not self._log_queue.try_reserve(write):
                self._enqueue(write)
                return write, None
        return write, GroupEntry(self._entry_writer, [write], reserved=self._log_queue)

    def check_step(self, step: Step) -> None:
        """Raise SourceRestartedError if the region refuses a step."""
        self._steps.check(step)

    def begin_step(self, rows: WholeRows, *, step: Step) -> tuple[PendingWrite, GroupEntry | None]:
        """Start a step of a source, as :meth:`begin` starts a durable write.

        Waits for a step that is in progress. The rows go into one entry, which records the step. If
        the region has the step already, the write is done and has no rows.
        """
        applied = self._steps.begin(step)
        if applied is None:
            return finished_write(), None
        try:
            write, entry = self.begin(rows, applied=applied)
        except BaseException:
            self._steps.end(None)
            raise
        write.call_when_done(lambda: self._steps.end(applied if write.error is None else None))
        return write, entry

    def _write_partial(self, rows: PartialRows, *, wait: bool) -> PendingWrite:
        dropped: set[bytes] = set()
        while True:
            with self._lock:
                first_new_row = self._tables.active.end_row
                unflushed = self._tables.unflushed()
            current = current_rows(self._context.location, self.region_id, rows, unflushed)
            unknown: set[bytes] = set()
            with self._lock:
                self._wait_for_room()
                logged = self._tables.since(first_new_row)
                if logged is not None:
                    pending = group_by_schema(
                        [batch for w in self._log_queue.pending() for batch in w.batches]
                    )
                    current += [*logged, *pending]
                    unknown = rows.unknown_fields(current)
                if logged is not None and unknown <= dropped:
                    batches, changed = rows.complete(current)
                    write = PendingWrite(
                        batches,
                        rows.row_schema,
                        buffered=not (wait or self._settings.durable),
                        derived=bool(pending),
                        changed=changed,
                    )
                    self._enqueue(write)
                    break
            if unknown:
                # Added since the writer opened the table, and then the rows must keep their values;
                # or dropped, if the version that is read now lacks them too.
                schema = self._context.newest_row_schema(self._tables.row_schema, rows.row_schema)
                rows, dropped = rows.convert(schema), unknown
            # Otherwise some rows that were written in the meantime are flushed, and not in memory.
        if changed.num_rows and not batches:
            # No entry will tell whether the rows were compared with the newest ones.
            self._claimed.verify()
        if wait:
            write.wait()
        return write

    def _enqueue(self, write: PendingWrite) -> None:
        """Queue a write that this thread does not lead. The caller holds the lock."""
        settings = self._settings
        self._log_queue.enqueue(write, due=not write.buffered)
        if not write.buffered:
            return
        self._counters.buffered_writes += 1
        self._counters.buffered_bytes += write.bytes
        if (
            self._log_queue.bytes >= settings.buffer_bytes
            or len(self._log_queue) >= settings.buffer_writes
            # There may be no later moment: the timer thread ends with the interpreter.
            or interpreter_is_ending()
        ):
            self._log_queue.make_all_due()
        else:
            self._buffer_timer.schedule(time.monotonic() + settings.buffer_interval)

    def _wait_for_room(self) -> None:
        """Wait until a write may be queued, or BackPressureError. The caller holds the lock."""
        settings = self._settings
        self._last_used = time.monotonic()
        if (
            len(self._tables.sealed) < settings.max_sealed_memtables
            and self._log_queue.bytes < settings.max_buffered_bytes
        ):
            self._failure.raise_if_set()
            return
        started = self._last_used
        deadline = started + settings.backpressure_timeout
        try:
            self._tables.sealed.wait_for_room(
                settings.max_sealed_memtables, deadline=deadline, check=self._failure.raise_if_set
            )
            while self._log_queue.bytes >= settings.max_buffered_bytes:
                self._failure.raise_if_set()
                self._log_queue.make_all_due()
                remaining = max(deadline - time.monotonic(), 0)
                if not self._lock.wait(min(remaining, threading.TIMEOUT_MAX)):
                    raise BackPressureError(
                        f"{self._log_queue.bytes:,} bytes wait for the log of region "
                        f"{self.region_id} (limit {settings.max_buffered_bytes:,}); the write was "
                        "not accepted, try again later"
                    )
            self._failure.raise_if_set()
        except BackPressureError:
            self._counters.refused_writes += 1
            raise
        finally:
            self._counters.add_wait(time.monotonic() - started)

    # The log

    def _write_buffered(self) -> None:
        with self._lock:
            self._log_queue.make_all_due()

    def _seal_aged(self) -> None:
        age = self._settings.max_memtable_age
        with self._lock:
            if self._failure.error is not None or not self._tables.active.rows:
                return
            due = self._tables.active.born_at + age
            if due > time.monotonic():
                self._age_timer.schedule(due)
            else:
                self._log_queue.enqueue(PendingWrite([], seals=True), due=True)

    # Flush

    def start_barrier(self, *, seals: bool) -> PendingWrite:
        """Queue a barrier, which may seal the MemTable, behind earlier writes; do not wait."""
        barrier = PendingWrite([], seals=seals)
        with self._lock:
            self._failure.raise_if_set()
            self._log_queue.enqueue(barrier, due=True)
        return barrier

    def finish_barrier(self, barrier: PendingWrite, *, deadline: float) -> None:
        """Wait for a barrier, and for the flush if it seals the MemTable.

        The deadline is in monotonic seconds and may be infinite. If it passes, BackPressureError is
        raised, and the flush goes on in the background. Raises RegionFencedError if another writer
        claimed the region, which then replays the unflushed rows. Raises MemWalError or OSError,
        the error of the last of several attempts: the rows stay in memory and in the log, and the
        next flush tries again.
        """
        if not barrier.wait(None if deadline == math.inf else deadline - time.monotonic()):
            raise BackPressureError(
                f"the log of region {self.region_id} does not answer in time; the next claim "
                "replays the rows that are in it"
            )
        if barrier.error is not None:
            raise copy_error(barrier.error)
        if barrier.seals:
            with self._lock:
                self._tables.sealed.wait_until_flushed(
                    self._tables.active.generation - 1,
                    deadline=deadline,
                    check=self._failure.raise_if_set,
                )

    def _flush(
        self,
        sealed: MemTable | ReplayedGeneration,
        contents: GenerationRows,
        *,
        complete_at: float,
    ) -> None:
        """Write one generation, which has all its rows since ``complete_at``, and publish it.

        Raises RegionFencedError if another writer claimed the region, which then replays the rows.
        Raises MemWalError or OSError if the generation could not be written: the flush can be
        retried.
        """
        started = time.perf_counter()
        try:
            # Lance makes folders that do not exist: it must not make those of a table that was
            # moved. If the table is moved after this check, the generation becomes an orphan there,
            # and is not published.
            self._claimed.check_held()
            # The table's columns may have changed since the rows were written.
            base = self._context.newest_base.open(since=complete_at)
            write = partial(
                write_generation,
                base,
                self.region_id,
                sealed.generation,
                contents,
                maintained_indexes(base),
                held=self._store,
            )
            self._claimed.publish_generation(sealed, write)
        except BaseException as error:
            self._context.newest_base.forget()
            with self._lock:
                self._counters.failed_flushes += 1
                self._counters.record_error(error)
                if isinstance(error, RegionFencedError):
                    self._failure.set(error)
            raise
        with self._lock:
            self._counters.add_flush(sealed.rows, sealed.nbytes, time.perf_counter() - started)

    # Close

    def abort(self) -> None:
        """Refuse further writes, without a flush: the log keeps the rows for the next claim.

        Buffered writes that are not in the log fail.
        """
        with self._lock:
            self._failure.set(WriterClosedError(f"the writer of region {self.region_id} is closed"))
            self._log_queue.make_all_due()
            self._lock.notify_all()
        self._buffer_timer.cancel()
        self._age_timer.cancel()

    def has_replayed(self, position: int, writer_id: str) -> bool | None:
        """Return whether the claim found an entry that an earlier writer may have stored.

        See :func:`memwal.lsm.wal.replay.has_replayed`.
        """
        return has_replayed(self._context.store, self._claimed_manifest, position, writer_id)

    def seal(self) -> None:
        """Start to flush the MemTables."""
        with self._lock:
            self._log_queue.enqueue(PendingWrite([], seals=True), due=True)

    def last_used(self) -> float:
        """Return the monotonic time of the last write, or infinity while a write is in flight."""
        with self._lock:
            return self._last_used if self._log_queue.is_idle else math.inf

    def close_if_idle(self, since: float) -> bool:
        """Flush and close if nothing was written after ``since``; return whether it was closed."""
        if self.last_used() > since:
            return False
        self.finish_barrier(self.start_barrier(seals=True), deadline=math.inf)
        with self._lock:
            if self._last_used > since or not self._log_queue.is_idle:
                return False
            self.released = True
            self._failure.set(WriterClosedError(f"region {self.region_id} was released when idle"))
        return True

    # State

    def memtables(self) -> list[UnflushedRows]:
        """Return the unflushed rows, including buffered ones, oldest generation first."""
        with self._lock:
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
        """Return a snapshot of the region's counters and MemTables."""
        counters = self._counters
        with self._lock:
            *sealed, active = self._tables.all()
            now = time.monotonic()
            oldest = min(table.born_at for table in (*sealed, active))
            return RegionStats(
                region_id=self.region_id,
                epoch=self.epoch,
                generation=active.generation,
                next_position=self._entry_writer.log.next_position,
                totals=counters.totals(),
                memtable_rows=active.rows,
                memtable_bytes=active.nbytes,
                memtable_batches=active.batches,
                memtable_age_seconds=max(now - active.born_at, 0.0),
                sealed_memtables=len(sealed),
                sealed_bytes=sum(table.nbytes for table in sealed),
                unflushed_age_seconds=max(now - oldest, 0.0),
                buffered_writes=counters.buffered_writes,
                buffered_bytes=counters.buffered_bytes,
                last_error=counters.last_error,
                fenced=isinstance(self._failure.error, RegionFencedError),
            )

    # Recovery

    def _replay(self, claim: Claim) -> None:
        """Replay the rows of the log that no generation has.

        Generations that do not fit into memory are flushed here, before the writer opens.
        """
        for generation in replay(
            self._context.store,
            claim,
            row_schema=self._tables.row_schema,
            max_bytes=self._settings.max_memtable_bytes,
        ):
            if generation.batches is None:
                flush = partial(
                    self._flush, generation, generation.contents, complete_at=time.monotonic()
                )
                self._tables.sealed.flush_now(flush)
                self._entry_writer.seal_memtable(generation=generation.generation + 1)
                continue
            self._entry_writer.seal_memtable(generation=generation.generation)
            self._entry_writer.log.use_target(generation.generation, generation.target)
            with self._lock:
                self._entry_writer.add_to_memtable(
                    generation.batches,
                    position=generation.last_position,
                    log_batches=generation.log_batches,
                )
        if self._tables.is_full():
            self._entry_writer.seal_memtable()

    def _new_appender(
        self,
        log_store: ObjectStore,
        claim: Claim,
        claimed: ClaimedRegion,
        spec: StoredRegionSpec | None,
    ) -> LogAppender:
        interval = self._settings.epoch_check_interval
        if interval is None:
            is_local = self._context.store.is_local
            interval = _LOCAL_CHECK_INTERVAL if is_local else _REMOTE_CHECK_INTERVAL
        return LogAppender(
            log_store,
            claim,
            schema=self._tables.row_schema.schema,
            logged=self._tables.row_schema.logged,
            convert=partial(convert_entry, self._tables.row_schema, self.region_id),
            verify_epoch=claimed.verify,
            start_check=partial(self._context.spec_check.start, spec),
            check_interval=interval,
            clock=self._context.clock,
            has_keys=bool(self._tables.row_schema.primary_key),
        )


def _hold(context: WriterContext, region_id: UUID, merged: int) -> tuple[ObjectStore, ObjectStore]:
    """Return the stores of the context, which write into the folders that are there now, or fail.

    The log is held first: if the table is replaced before the other store holds it, the claim is
    made in the new table, and no append succeeds. A local store makes the folders that are not
    there; in the place of a region that is lost, or of a disk that is not mounted, it must not.
    """
    if context.store.folder_stamp(wal_dir(region_id)) == 0:
        check_not_lost(context.store, region_id, merged)
    folders = claimed_folders(region_id)
    log_store = context.log_store.hold(folders)
    if context.log_store is context.store:
        return log_store, log_store
    return context.store.hold(folders), log_store
