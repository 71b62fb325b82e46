"""Pending writes, the handle to wait for them, and the first error of a region writer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from uuid import UUID

import pyarrow as pa

from memwal.boundary.public import public_methods
from memwal.errors import (
    BackPressureError,
    MemWalError,
    OutcomeUnknownError,
    RegionFencedError,
)
from memwal.format.wal_layout import AppliedSteps
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.position import WritePosition
from memwal.util.clock import Duration, in_seconds
from memwal.util.log import safe_error_text

logger = logging.getLogger(__name__)

_FEW_ROWS = 4
_SMALL_BYTES = 1 << 16
_ASSUMED_ROW_BYTES = 256

# Guards the callbacks of all writes: few writes have any, and none is called while it is held.
_callbacks_lock = threading.Lock()


@dataclass(slots=True, eq=False, repr=False)
class PendingWrite:
    """One region's part of a write, in the queue of that region's log."""

    batches: list[pa.RecordBatch]  # empty for a barrier
    row_schema: RowSchema | None = None  # None for a barrier
    _: KW_ONLY
    seals: bool = False  # whether to seal the MemTable behind this write
    buffered: bool = False  # whether its rows count as written before they are durable
    # Whether its rows were completed from writes that were not in the log yet: if one of those
    # fails, this write must fail too.
    derived: bool = False
    # Keys of the rows that a condition left out; None for a write without rows of its own.
    changed: pa.Table | None = None
    # For a step: the newest step of each source that the region has with it. The queue holds at
    # most one such write.
    applied: AppliedSteps | None = None
    # Whether a thread waits for this write that can lead the log. Guarded by the region's lock.
    has_waiter: bool = field(default=False, init=False)
    promoted: bool = field(default=False, init=False)
    done: bool = field(default=False, init=False)
    error: BaseException | None = field(default=None, init=False)  # why the write failed
    position: int | None = field(default=None, init=False)  # of its entry in the log
    # Of the entry that may be in the log although the write failed.
    maybe_at: int | None = field(default=None, init=False)
    rows: int = field(init=False)
    bytes: int = field(init=False)
    _callbacks: tuple[Callable[[], None], ...] = field(default=(), init=False)
    # Locked until the write is done, or until its thread is to lead: cheaper than an event.
    _gate: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        for batch in self.batches:
            self.rows += batch.num_rows
            self.bytes += _batch_bytes(batch, self.row_schema)
        self._gate.acquire()

    def finish(self, error: BaseException | None = None) -> None:
        """Set the result and wake all waiting threads. Called once, by the leader of the log."""
        self.error = error
        with _callbacks_lock:
            self.done = True
            callbacks, self._callbacks = self._callbacks, ()
        self._gate.release()
        for callback in callbacks:
            _call_safely(callback)

    def promote(self) -> None:
        """Make the waiting thread the leader of the log. The caller holds the region's lock."""
        self.promoted = True
        self._gate.release()

    def decline(self) -> bool:
        """Take back a promotion; False without one. The caller holds the region's lock."""
        return self.promoted and not self.done and self._gate.acquire(blocking=False)

    def wait_for_turn(self) -> None:
        """Wait until the write is done or the calling thread is to lead."""
        self._gate.acquire()
        if self.done:
            self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the write is done; False after ``timeout`` seconds."""
        if self.done:
            return True
        # Threads can wait for some hundreds of years only.
        seconds = -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        if not self._gate.acquire(timeout=seconds):
            return False
        self._gate.release()
        return True

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the write is done; now if it is."""
        with _callbacks_lock:
            if not self.done:
                self._callbacks = (*self._callbacks, callback)
                return
        _call_safely(callback)


def finished_write(error: BaseException | None = None) -> PendingWrite:
    """Make a write without rows that is done; with ``error``, one that was refused."""
    write = PendingWrite([])
    write.finish(error)
    return write


RegionWrite = tuple[UUID, PendingWrite]
"""One region's part of a write."""


@public_methods
class WriteHandle:
    """Handle to wait until a write is durable.

    In durable mode the write is done when it returns; a buffered write is done when the log has it.
    ``parts`` are the write's part in each region, and ``raise_failures`` raises the error that
    their failures mean for the caller.
    """

    __slots__ = ("_parts", "_raise_failures")

    def __init__(
        self,
        parts: Sequence[RegionWrite],
        raise_failures: Callable[[Sequence[RegionWrite]], None],
    ) -> None:
        self._parts = parts
        self._raise_failures = raise_failures

    def done(self) -> bool:
        """Return whether the write is durable or has failed."""
        return all(part.done for _, part in self._parts)

    def wait(self, timeout: Duration | None = None) -> None:
        """Wait until the write is durable.

        Parameters
        ----------
        timeout : float or timedelta, optional
            Maximum wait, in seconds; unlimited by default.

        Raises
        ------
        BackPressureError
            The write is not durable in time. It may still become durable: wait again.
        MemWalError
            Why it failed; see :meth:`memwal.writer.table_writer.TableWriter.upsert`.
        """
        deadline = None if timeout is None else time.monotonic() + in_seconds(timeout)
        for _, part in self._parts:
            if not part.wait(None if deadline is None else deadline - time.monotonic()):
                raise BackPressureError(
                    f"the write is not durable after {in_seconds(timeout or 0):g} s; it still may "
                    "become so, wait for it again"
                )
        self._raise_failures(self._parts)

    @property
    def position(self) -> WritePosition:
        """Position of the write in the logs; waits until it is durable, and raises as :meth:`wait`.

        Give it, or its text, to a read in another process that has to see this write: ``at_least``
        of :meth:`memwal.Table.fresh`.
        """
        self.wait()
        return WritePosition(
            tuple(
                (region_id, part.position)
                for region_id, part in self._parts
                if part.position is not None
            )
        )

    @property
    def changed(self) -> pa.Table:
        """Keys of the rows that ``only_if_unchanged`` left out; waits, and raises as :meth:`wait`.

        A table of the key columns; without columns if every row was written.
        """
        self.wait()
        changed = [part.changed for _, part in self._parts if part.changed]
        return pa.concat_tables(changed) if changed else pa.table({})

    def exception(self) -> MemWalError | None:
        """Return why the write failed; None if it succeeded or is not done yet."""
        if not self.done():
            return None
        try:
            self._raise_failures(self._parts)
        except MemWalError as error:
            return error
        return None

    def add_done_callback(self, call: Callable[[WriteHandle], None]) -> None:
        """Call a function with this handle when the write is done, on any thread.

        ``call`` must not block; an exception that it raises is logged.
        """
        remaining = len(self._parts)
        if not remaining:
            _call_safely(lambda: call(self))
            return
        lock = threading.Lock()

        def part_done() -> None:
            nonlocal remaining
            with lock:
                remaining -= 1
                is_last = remaining == 0
            if is_last:
                call(self)

        for _, part in self._parts:
            part.call_when_done(part_done)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"WriteHandle({state}, {len(self._parts)} regions)"


class FailureLatch:
    """First error that stopped a region writer, and refuses later writes.

    Callers hold the region's lock.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: MemWalError | None = None

    def set(self, error: BaseException) -> None:
        """Record an error unless one is recorded already."""
        if self.error is None:
            # A write that was fenced may be in the log. Writes that it refuses are not.
            if type(error) is RegionFencedError:
                error = RegionFencedError(str(error), not_logged=True)
            self.error = error if isinstance(error, MemWalError) else copy_error(error)

    def raise_if_set(self) -> None:
        """Raise a fresh copy of the recorded error."""
        if self.error is not None:
            raise copy_error(self.error)


def copy_error(error: BaseException) -> MemWalError:
    """Copy an error for another caller, so that each has its own traceback."""
    if isinstance(error, MemWalError):
        copy = type(error)(str(error))
        vars(copy).update(vars(error))
    else:
        copy = OutcomeUnknownError(
            f"an append failed, and its rows may be in the log: {type(error).__name__}"
        )
    copy.__cause__ = error
    return copy


def _batch_bytes(batch: pa.RecordBatch, row_schema: RowSchema | None) -> int:
    """Return the bytes of a batch, of a slice its own; an estimate for a few small rows.

    Arrow releases the GIL while it measures exactly, which costs a producer of single rows more
    than the rest of a write.
    """
    if batch.num_rows <= _FEW_ROWS and batch.get_total_buffer_size() <= _SMALL_BYTES:
        return int(_ASSUMED_ROW_BYTES * batch.num_rows)
    if row_schema is None or row_schema.has_dictionaries:
        return int(batch.nbytes)
    try:
        # As encoded, in a tenth of the time of nbytes, but without the dictionaries.
        return int(pa.ipc.get_record_batch_size(batch))
    except pa.ArrowException:
        # It cannot be encoded: the log will refuse it.
        return int(batch.nbytes)


def _call_safely(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        logger.warning("a callback of a finished write failed: %s", safe_error_text(error))
