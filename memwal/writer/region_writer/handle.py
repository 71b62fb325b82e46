"""Pending writes, the handle that tells when a write is durable, and the writer's first error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

import pyarrow as pa

from memwal.errors import BackPressureError, MemWalError, OutcomeUnknownError
from memwal.format.wal_layout import AppliedSteps
from memwal.util.log import safe_error_text
from memwal.writer.region_writer.rows import RowSchema

logger = logging.getLogger(__name__)

_FEW_ROWS = 4
_SMALL_BYTES = 1 << 16
_ASSUMED_ROW_BYTES = 256

# Guards the callbacks of all writes: few have any, and nothing is called while it is held.
_callbacks = threading.Lock()


class PendingWrite:
    """One region's part of a write, in the queue of that region's log.

    Attributes
    ----------
    batches : list of pyarrow.RecordBatch
        Stored rows; empty for a barrier.
    row_schema : RowSchema or None
        Form of the rows; None for a barrier.
    derived : bool
        Whether its rows were completed from writes that were not in the log yet: when one of those
        fails, this one must.
    applied : mapping of str to int or None
        For a step, the newest one of each source that the region has with it. The queue holds at
        most one such write.
    seals : bool
        Whether the MemTable is sealed behind this write.
    buffered : bool
        Whether its rows count as written before they are durable.
    attended : bool
        Whether a thread waits that can take over the log. Guarded by the region's state.
    rows, bytes : int
        What is queued.
    error : BaseException or None
        What went wrong, once it is done.
    """

    __slots__ = (
        "_calls",
        "_gate",
        "applied",
        "attended",
        "batches",
        "buffered",
        "bytes",
        "derived",
        "done",
        "error",
        "promoted",
        "row_schema",
        "rows",
        "seals",
    )

    def __init__(
        self,
        batches: list[pa.RecordBatch],
        row_schema: RowSchema | None = None,
        *,
        seals: bool = False,
        buffered: bool = False,
        derived: bool = False,
        applied: AppliedSteps | None = None,
    ) -> None:
        self.batches = batches
        self.row_schema = row_schema
        self.derived = derived
        self.applied = applied
        self.seals = seals
        self.buffered = buffered
        self.attended = False
        self.promoted = False
        self.done = False
        self.error: BaseException | None = None
        self.rows = 0
        self.bytes = 0
        for batch in batches:
            self.rows += batch.num_rows
            self.bytes += _batch_bytes(batch)
        self._calls: tuple[Callable[[], None], ...] = ()
        # Held until the write is done, or until its thread is to lead: cheaper than an event.
        self._gate = threading.Lock()
        self._gate.acquire()

    def finish(self, error: BaseException | None = None) -> None:
        """Wake everybody who waits. Called once, by whoever holds the log."""
        self.error = error
        with _callbacks:
            self.done = True
            calls, self._calls = self._calls, ()
        self._gate.release()
        for call in calls:
            _call_safely(call)

    def promote(self) -> None:
        """Have the waiting thread take over the log. The caller holds the region's state."""
        self.promoted = True
        self._gate.release()

    def decline(self) -> bool:
        """Take back a promotion; False if there is none. The caller holds the region's state."""
        return self.promoted and not self.done and self._gate.acquire(blocking=False)

    def wait_for_turn(self) -> None:
        """Wait until the write is done or the calling thread is to lead."""
        self._gate.acquire()
        if self.done:
            self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the write is done; False when it is not in time."""
        if self.done:
            return True
        if not self._gate.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return False
        self._gate.release()
        return True

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Call something once, now if the write is done."""
        with _callbacks:
            if not self.done:
                self._calls = (*self._calls, call)
                return
        _call_safely(call)


def finished_write(error: BaseException | None = None) -> PendingWrite:
    """A write without rows that is done; with an error, one that was not accepted."""
    write = PendingWrite([])
    write.finish(error)
    return write


Part = tuple[UUID, PendingWrite]
"""One region's part of a write."""


class WriteHandle:
    """Tells when a write became durable.

    A write that returned in durable mode is done; a buffered one is done once the log has it.

    Parameters
    ----------
    parts : sequence of (UUID, PendingWrite)
        The write's part in each region.
    settle : callable
        Raises what the parts' failures mean for the caller.
    """

    __slots__ = ("_parts", "_settle")

    def __init__(
        self,
        parts: Sequence[Part],
        settle: Callable[[Sequence[Part]], None],
    ) -> None:
        self._parts = parts
        self._settle = settle

    def done(self) -> bool:
        """Whether the write is durable or has failed."""
        return all(part.done for _, part in self._parts)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the write is durable.

        Parameters
        ----------
        timeout : float, optional
            Seconds; for ever by default.

        Raises
        ------
        BackPressureError
            It is not durable in time. It may still become so: wait again.
        MemWalError
            Why it failed; see :meth:`memwal.writer.table_writer.TableWriter.upsert`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for _, part in self._parts:
            if not part.wait(None if deadline is None else deadline - time.monotonic()):
                raise BackPressureError(
                    f"the write is not durable after {timeout} s; it still may become so, "
                    "wait for it again"
                )
        self._settle(self._parts)

    def exception(self) -> MemWalError | None:
        """Why the write failed; None when it did not, or is not done yet."""
        if not self.done():
            return None
        try:
            self._settle(self._parts)
        except MemWalError as error:
            return error
        return None

    def add_done_callback(self, call: Callable[[WriteHandle], None]) -> None:
        """Call something with this handle once the write is done, from whichever thread.

        Parameters
        ----------
        call : callable
            Given this handle; it must not block, and what it raises is logged.
        """
        left = len(self._parts)
        if not left:
            _call_safely(lambda: call(self))
            return
        lock = threading.Lock()

        def one_done() -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                call(self)

        for _, part in self._parts:
            part.call_when_done(one_done)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"WriteHandle({state}, {len(self._parts)} regions)"


def copy_error(error: BaseException) -> MemWalError:
    """An error of the same kind for another caller, with a trace of its own."""
    if isinstance(error, MemWalError):
        copy = type(error)(str(error))
    else:
        copy = OutcomeUnknownError(
            f"an append failed, and its rows may be in the log: {type(error).__name__}"
        )
    copy.__cause__ = error
    return copy


def _batch_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of a batch; of a few small rows about.

    Arrow gives the interpreter to other threads while it measures exactly, which costs a producer
    of single rows more than all the rest.
    """
    if batch.num_rows <= _FEW_ROWS and batch.get_total_buffer_size() <= _SMALL_BYTES:
        return int(_ASSUMED_ROW_BYTES * batch.num_rows)
    return int(batch.nbytes)


def _call_safely(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        logger.warning("a callback of a finished write failed: %s", safe_error_text(error))


class FailureLatch:
    """First error that stopped a region writer. Callers hold the region's lock.

    Attributes
    ----------
    error : MemWalError or None
        None while the writer works.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: MemWalError | None = None

    def set(self, error: BaseException) -> None:
        """Record an error unless one is recorded already."""
        if self.error is None:
            self.error = error if isinstance(error, MemWalError) else copy_error(error)

    def raise_if_set(self) -> None:
        """Raise a fresh copy of the recorded error."""
        if self.error is not None:
            raise copy_error(self.error)
