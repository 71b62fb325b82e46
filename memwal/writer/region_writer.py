"""The writer of one region: writes go to the log, then to the MemTable, then to a generation."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from uuid import UUID

import pyarrow as pa

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    OutcomeUnknownError,
    RegionFencedError,
    StoreError,
    WriterClosedError,
)
from memwal.region.row_schema import UnflushedRows
from memwal.table_index.base_table import BaseTable
from memwal.writer.append import LogAppender
from memwal.writer.claim import Claim, claim_region
from memwal.writer.flush_queue import FlushQueue
from memwal.writer.generation import MaintainedIndex, write_generation
from memwal.writer.log import read_log
from memwal.writer.memtable import MemTable
from memwal.writer.options import WriterOptions
from memwal.writer.rows import RowShape
from memwal.writer.tenure import Tenure

# On a local disk a look at the epoch costs microseconds, elsewhere a request.
_LOCAL_CHECK_INTERVAL = 0.0
_REMOTE_CHECK_INTERVAL = 10.0

# After these the log is as it was, or holds at most an entry that nobody was told of.
_NOT_FINAL = (StoreError, InvalidInputError)


@dataclass(frozen=True, slots=True)
class TableContext:
    """What the writers of one table share."""

    base: BaseTable
    shape: RowShape
    indexes: tuple[MaintainedIndex, ...]
    options: WriterOptions
    executor: Executor


@dataclass(slots=True, eq=False)
class _Pending:
    """A write that waits for its group."""

    batches: list[pa.RecordBatch]
    done: bool = False
    error: BaseException | None = None
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = sum(batch.nbytes for batch in self.batches)


class RegionWriter:
    """The one writer of a region, until another one claims it.

    Writes from many threads share log entries: whoever holds the log takes along what the others
    have queued. A write returns when its entry is durable and its rows are visible to
    :meth:`memtables`.
    """

    def __init__(
        self,
        context: TableContext,
        region_id: UUID,
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
        self._context = context
        self._store = context.base.location.store
        claim = claim_region(self._store, region_id, spec_id=spec_id, region_fields=region_fields)
        self.epoch = claim.manifest.writer_epoch
        self._tenure = Tenure(self._store, claim.manifest)
        # Guards everything below that is not guarded by the log lock.
        self._state = threading.Condition()
        self._log_lock = threading.Lock()
        self._queue: deque[_Pending] = deque()
        self._sealed = FlushQueue(
            self._state, context.executor, self._flush, attempts=context.options.flush_attempts
        )
        self._active = MemTable(context.shape.schema, claim.manifest.current_generation)
        self._failure: MemWalError | None = None
        self._replay(claim)
        self._log = self._appender(claim)

    def upsert(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write stored rows (see :class:`memwal.writer.rows.RowShape`) durably.

        Raises
        ------
        RegionFencedError, OutcomeUnknownError
            The writer is finished; the rows may or may not be in the log.
        BackPressureError, StoreFullError, StoreAccessError
            The rows were not accepted; the writer goes on.
        """
        if not any(batch.num_rows for batch in batches):
            return
        pending = _Pending(list(batches))
        options = self._context.options
        with self._state:
            self._sealed.wait_for_room(
                options.max_sealed_memtables,
                timeout=options.backpressure_timeout,
                check=self._check_usable,
            )
            self._check_usable()
            self._queue.append(pending)
        with self._log_lock:
            while not pending.done:
                self._write_group()
        if pending.error is not None:
            raise _again(pending.error) from pending.error

    def flush(self) -> None:
        """Seal the MemTable and wait until every sealed one is a flushed generation.

        Raises
        ------
        RegionFencedError
            Another writer has the region; it replays what was not flushed.
        MemWalError, OSError
            What the last of several tries failed with. The rows stay in memory and in the log,
            and the next flush tries again.
        """
        with self._log_lock:
            with self._state:
                self._check_usable()
            self._seal()
            last = self._active.generation - 1
        with self._state:
            self._sealed.wait_until_flushed(last, self._check_usable)

    def close(self) -> None:
        """Flush, and take no more writes. A second call does nothing."""
        with self._state:
            if isinstance(self._failure, WriterClosedError):
                return
        try:
            self.flush()
        finally:
            self.abort()

    def abort(self) -> None:
        """Take no more writes, without a flush: the log keeps the rows for the next claim."""
        with self._state:
            if self._failure is None:
                self._failure = WriterClosedError(
                    f"the writer of region {self.region_id} is closed"
                )
            self._state.notify_all()

    def memtables(self) -> list[UnflushedRows]:
        """What is not flushed yet, oldest generation first."""
        with self._state:
            tables = [*self._sealed.tables(), self._active]
            return [
                UnflushedRows(table.generation, table.contents()) for table in tables if table.rows
            ]

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

    # Claim

    def _replay(self, claim: Claim) -> None:
        """Bring back what the log holds and no generation does.

        A higher generation in the log means that the writer before us had sealed the lower one.
        Within one generation nothing is sealed, however large it grows: entries behind the seal
        would still carry the sealed generation's number, and the next replay would skip them.
        """
        for position, entry in read_log(
            self._store, self.region_id, after=claim.manifest.replay_after, epoch=self.epoch
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
            adopted = [row for batch in entry.batches for row in self._context.shape.adopt(batch)]
            with self._state:
                self._active.add(adopted, position=position)

    def _appender(self, claim: Claim) -> LogAppender:
        interval = self._context.options.epoch_check_interval
        if interval is None:
            interval = _LOCAL_CHECK_INTERVAL if self._store.is_local else _REMOTE_CHECK_INTERVAL
        return LogAppender(
            self._store,
            self.region_id,
            epoch=self.epoch,
            writer_id=claim.writer_id,
            next_position=claim.next_position,
            schema=self._context.shape.schema,
            verify_epoch=self._tenure.verify,
            check_interval=interval,
            adopt=self._context.shape.adopt,
        )

    # Writes

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise _again(self._failure) from self._failure

    def _write_group(self) -> None:
        """Append one entry with the oldest queued writes. The caller holds the log lock."""
        group = self._next_group()
        try:
            with self._state:
                self._check_usable()
            batches = _joined([batch for pending in group for batch in pending.batches])
            if not self._fits(batches):
                self._seal()
            appended = self._log.append(batches, generation=self._active.generation)
        except BaseException as error:
            # The group's other writers wait for an answer, whatever went wrong.
            self._fail(group, error)
            if not isinstance(error, Exception):
                raise
            return
        with self._state:
            self._active.add(appended.batches, position=appended.position)
            for pending in group:
                pending.done = True
        if self._is_full():
            self._seal()

    def _fits(self, batches: Sequence[pa.RecordBatch]) -> bool:
        """Whether Lance's own writer could still replay the generation with these in it."""
        options = self._context.options
        return (
            self._active.rows + sum(batch.num_rows for batch in batches)
            <= options.max_memtable_rows
            and self._active.batches + len(batches) <= options.max_memtable_batches
        )

    def _is_full(self) -> bool:
        options = self._context.options
        return (
            self._active.rows >= options.max_memtable_rows
            or self._active.batches >= options.max_memtable_batches
            or self._active.bytes >= options.max_memtable_bytes
        )

    def _next_group(self) -> list[_Pending]:
        with self._state:
            limit = self._context.options.max_entry_bytes
            group = [self._queue.popleft()]
            size = group[0].bytes
            while self._queue and size + self._queue[0].bytes <= limit:
                group.append(self._queue.popleft())
                size += group[-1].bytes
            return group

    def _fail(self, group: list[_Pending], error: BaseException) -> None:
        """Tell the group's writers, and everybody else too when the writer is finished."""
        with self._state:
            if not isinstance(error, _NOT_FINAL):
                if self._failure is None:
                    self._failure = (
                        error
                        if isinstance(error, MemWalError)
                        else OutcomeUnknownError(f"an append failed: {error!r}")
                    )
                group = [*group, *self._queue]
                self._queue.clear()
            for pending in group:
                pending.error, pending.done = error, True
            self._state.notify_all()

    # Flush

    def _seal(self, *, next_generation: int | None = None) -> None:
        """Hand the MemTable to the flush and start a new one. Writes are excluded by the caller."""
        with self._state:
            if self._failure is not None:
                # Closed or fenced: the log keeps the rows for the next claim.
                return
            if not self._active.rows:
                if next_generation is not None:
                    self._active.generation = next_generation
                return
            self._sealed.add(self._active)
            generation = next_generation or self._active.generation + 1
            self._active = MemTable(self._context.shape.schema, generation)

    def _flush(self, table: MemTable) -> None:
        """Write one generation and name it in the manifest, unless the region was claimed."""
        context = self._context
        write = partial(
            write_generation,
            context.base,
            self.region_id,
            table.generation,
            table.contents(),
            context.indexes,
        )
        try:
            self._tenure.name_generation(table, write)
        except RegionFencedError as error:
            with self._state:
                self._failure = self._failure or error
            raise


def _again(error: BaseException) -> MemWalError:
    """An error of the same kind for another caller, with a trace of its own."""
    if isinstance(error, MemWalError):
        return type(error)(str(error))
    return OutcomeUnknownError(f"an append failed, and its rows may be in the log: {error!r}")


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Many small batches as few: an entry's size and reading time go by its batches."""
    if len(batches) == 1:
        return batches
    table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    return list(table.to_batches())
