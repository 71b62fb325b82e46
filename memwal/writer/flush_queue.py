"""Sealed MemTables that wait for their flush, and the flushing in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import (
    BackPressureError,
    MemWalError,
    OutcomeUnknownError,
    StoreError,
    WriterClosedError,
)
from memwal.free_memory import release_free_memory
from memwal.writer.memtable import MemTable
from memwal.writer.shown import shown_error

logger = logging.getLogger(__name__)

# Between a flush that failed for good and its next try, while writes wait for it.
_PAUSE_SECONDS = 0.05


class FlushQueue:
    """Flushes MemTables one after another, oldest first, while the next one takes writes.

    Parameters
    ----------
    state : threading.Condition
        The writer's. It guards the queue, so that queue and active MemTable are seen together,
        and is notified whenever something here ends.
    executor : Executor
        Runs the flushes; may be shared between regions.
    flush : callable
        Flushes one MemTable, or raises. Called again with the same one after a failure.
    attempts : int
        How often one MemTable is tried before the failure is reported.
    """

    def __init__(
        self,
        state: threading.Condition,
        executor: Executor,
        flush: Callable[[MemTable], None],
        *,
        attempts: int,
    ) -> None:
        self._state = state
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
        """What waits, oldest first. The caller holds the state."""
        return list(self._tables)

    def add(self, table: MemTable) -> None:
        """Queue a MemTable. The caller holds the state."""
        self._tables.append(table)
        self._start()

    def wait_for_room(self, limit: int, *, deadline: float, check: Callable[[], None]) -> None:
        """Wait until fewer than ``limit`` MemTables are queued. The caller holds the state.

        Parameters
        ----------
        deadline : float
            Monotonic seconds.

        Raises
        ------
        BackPressureError
            There was no room in time; its cause is what the flush fails with, if it does.
        """
        while len(self._tables) >= limit:
            check()
            self._start()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise BackPressureError(
                    f"{len(self._tables)} MemTables wait for their flush; "
                    "the write was not accepted, try again later"
                ) from self._error
            self._state.wait(min(remaining, _PAUSE_SECONDS) if self._error else remaining)

    def wait_until_flushed(
        self, generation: int, *, deadline: float, check: Callable[[], None]
    ) -> None:
        """Wait for a generation and all before it, trying anew what had failed. The caller holds
        the state.

        Parameters
        ----------
        deadline : float
            Monotonic seconds; may be infinite.

        Raises
        ------
        BackPressureError
            They are not flushed in time.
        Exception
            What the oldest MemTable failed with; it stays queued.
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
                    "rows, and the next claim of the region replays what is not flushed by then"
                )
            self._state.wait(min(remaining, threading.TIMEOUT_MAX))

    def _start(self) -> None:
        if self._tables and not self._running and time.monotonic() >= self._not_before:
            try:
                self._executor.submit(self._drain)
            except RuntimeError:
                # Shut down with the table's writer, while this region was being claimed.
                self._error = WriterClosedError("the writer was closed before it could flush")
            else:
                self._running = True

    def _drain(self) -> None:
        while True:
            with self._state:
                if not self._tables:
                    self._stop(None)
                    return
                table = self._tables[0]
            try:
                self.flush_now(partial(self._flush, table))
            except BaseException as error:
                logger.warning(
                    "flush of generation %d failed: %s", table.generation, shown_error(error)
                )
                # A panic in Lance is no Exception; whoever waits must hear of it all the same.
                known = error if isinstance(error, Exception) else _panic(table, error)
                with self._state:
                    self._stop(known)
                return
            with self._state:
                self._tables.popleft()
                self._state.notify_all()
            del table
            release_free_memory()

    def _stop(self, error: Exception | None) -> None:
        self._running = False
        self._error = error
        if error is not None:
            self._not_before = time.monotonic() + _PAUSE_SECONDS
        self._state.notify_all()

    def flush_now(self, flush: Callable[[], None]) -> None:
        """Flush in this thread what no MemTable holds, tried as often as the queued ones."""
        retrying = Retrying(
            retry=retry_if_exception_type((StoreError, OutcomeUnknownError, OSError)),
            stop=stop_after_attempt(self._attempts),
            wait=wait_random_exponential(multiplier=0.1, max=5),
            reraise=True,
        )
        retrying(flush)


def _panic(table: MemTable, error: BaseException) -> MemWalError:
    return MemWalError(
        f"the flush of generation {table.generation} broke down: {shown_error(error)}; its rows "
        "stay in the log, where the next writer of the region finds them"
    )
