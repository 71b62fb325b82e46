"""Timer thread that calls methods at deadlines.

One daemon thread, started with the first deadline. The thread holds only weak references: it keeps
neither the timer object nor the objects whose methods it calls alive, and ends when the timer
object is closed or collected. It does not keep the process alive either.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable

from memwal.util.concurrency import ForkGuard
from memwal.util.log import shown_error

logger = logging.getLogger(__name__)

_NEVER = math.inf


class Upkeep:
    """Calls methods at deadlines, on one daemon thread that starts with the first deadline.

    The thread keeps neither this object nor the objects whose methods it calls alive: it ends when
    this object is closed or collected. It does not keep the process alive either.

    Parameters
    ----------
    clock : callable
        Monotonic seconds. With a clock that a test moves, :meth:`wake` makes the thread look at
        it again.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._agenda = _Agenda(clock)
        self._finalizer = weakref.finalize(self, self._agenda.stop)
        # Daemon threads end with the process; there is nothing to stop by then.
        self._finalizer.atexit = False

    @property
    def clock(self) -> Callable[[], float]:
        """What deadlines are measured by."""
        return self._clock

    def task(self, method: Callable[[], None]) -> Task:
        """Make a task of a bound method.

        The method is called on the upkeep thread, never twice at a time, and must be short: longer
        work goes to an executor. What it raises is logged; it is called again when its task is
        scheduled again.
        """
        return Task(self._agenda, method)

    def wake(self) -> None:
        """Have the thread look at the clock again."""
        self._agenda.wake()

    def close(self, *, timeout: float | None = None) -> None:
        """Call nothing any more; wait for a call that runs.

        A second call does nothing, and a call from the upkeep thread itself does not wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.
        """
        self._agenda.stop()
        self._agenda.join(timeout)


class Task:
    """A method that is called once per deadline. Safe to use from many threads.

    Attributes
    ----------
    at : float
        Its deadline; infinite while there is none.
    """

    __slots__ = ("_agenda", "_method", "at")

    def __init__(self, agenda: _Agenda, method: Callable[[], None]) -> None:
        self._agenda = agenda
        self._method: weakref.WeakMethod[Callable[[], None]] = weakref.WeakMethod(method)
        self.at = _NEVER

    def schedule(self, at: float) -> None:
        """Have it called at this time of the clock, unless it will be called earlier anyway."""
        if at < self.at:
            self._agenda.put(self, at)

    def cancel(self) -> None:
        """Forget the deadline. A call that runs goes on."""
        self.at = _NEVER

    def run(self) -> None:
        """Call the method if its object is still there."""
        method = self._method()
        if method is not None:
            method()


class _Agenda:
    """Deadlines and the thread that keeps them, which knows nothing else."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Reentrant: the collector may stop an agenda from inside of anything that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._heap: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._guard = ForkGuard("the upkeep")

    def put(self, task: Task, at: float) -> None:
        with self._changed:
            if self._stopped or at >= task.at:
                return
            task.at = at
            heapq.heappush(self._heap, (at, next(self._numbers), task))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="memwal-upkeep", daemon=True)
                self._thread.start()
            elif self._heap[0][2] is task:
                self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        # In the child of a fork the lock may be held for ever, and there is no thread to stop.
        if self._guard.inherited:
            return
        with self._changed:
            self._stopped = True
            self._heap.clear()
            self._changed.notify_all()

    def join(self, timeout: float | None) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                task.run()
            except Exception as error:
                logger.warning("upkeep of a writer failed, and goes on: %s", shown_error(error))
            # Until the next one is due, nothing of this one is held.
            del task

    def _next(self) -> Task | None:
        """Wait for what is due first; None at the end."""
        with self._changed:
            while not self._stopped:
                if not self._heap:
                    self._changed.wait()
                    continue
                at, _, task = self._heap[0]
                if task.at != at:
                    # Cancelled, or scheduled for an earlier time and called then.
                    heapq.heappop(self._heap)
                elif (remaining := at - self._clock()) > 0:
                    del task
                    self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
                else:
                    heapq.heappop(self._heap)
                    task.at = _NEVER
                    return task
            return None
