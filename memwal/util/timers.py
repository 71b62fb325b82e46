"""Timer thread that calls methods at deadlines."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable

from memwal.util.concurrency import ForkGuard, interpreter_is_ending
from memwal.util.log import safe_error_text

logger = logging.getLogger(__name__)

_NEVER = math.inf


class TimerThread:
    """Calls methods at deadlines, on one daemon thread that starts with the first deadline.

    The thread holds only weak references: it keeps neither this object nor the objects whose
    methods it calls alive, and ends when this object is closed or collected. It does not keep the
    process alive either. Times are monotonic seconds of ``clock``; a test that moves its clock
    calls :meth:`wake` to make the thread read it again.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue = _TimerQueue(clock)
        self._finalizer = weakref.finalize(self, self._queue.stop)
        # Daemon threads end with the process; there is nothing to stop by then.
        self._finalizer.atexit = False

    def new_timer(self, method: Callable[[], None]) -> Timer:
        """Make a timer that calls a bound method.

        The method runs on the timer thread, never twice at a time, and must be short: longer work
        goes to an executor. An exception that it raises is logged; the timer can be scheduled
        again.
        """
        return Timer(self._queue, method)

    def wake(self) -> None:
        """Make the thread read the clock again."""
        self._queue.wake()

    def close(self, *, timeout: float | None = None) -> None:
        """Cancel all timers, and wait up to ``timeout`` seconds for a call that is running.

        A second call does nothing, and a call from the timer thread itself does not wait.
        """
        self._queue.stop()
        self._queue.join(timeout)


class Timer:
    """A method that is called once per deadline ``at``, infinite if unset. Thread-safe."""

    __slots__ = ("_method", "_queue", "at")

    def __init__(self, queue: _TimerQueue, method: Callable[[], None]) -> None:
        self._queue = queue
        self._method: weakref.WeakMethod[Callable[[], None]] = weakref.WeakMethod(method)
        self.at = _NEVER

    def schedule(self, at: float) -> None:
        """Set the deadline, in seconds of the clock, unless an earlier one is set."""
        if at < self.at:
            self._queue.put(self, at)

    def cancel(self) -> None:
        """Remove the deadline. A call that is running goes on."""
        self.at = _NEVER

    def run(self) -> None:
        """Call the method, unless its object was collected."""
        method = self._method()
        if method is not None:
            method()


class _TimerQueue:
    """Deadlines and their thread. Holds no reference to the :class:`TimerThread`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Reentrant: the garbage collector may call stop() in a thread that holds this lock.
        self._changed = threading.Condition(threading.RLock())
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._guard = ForkGuard("the timer thread")

    def put(self, timer: Timer, at: float) -> None:
        with self._changed:
            if self._stopped or at >= timer.at:
                return
            if self._thread is None and interpreter_is_ending():
                # No thread can be started any more; writers do later work at once.
                return
            timer.at = at
            heapq.heappush(self._heap, (at, next(self._numbers), timer))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="memwal-timers", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    # The process has no more threads: the next timer tries again.
                    logger.warning("timers do not run: %s", safe_error_text(error))
                    return
                self._thread = thread
            elif self._heap[0][2] is timer:
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
        while (timer := self._next_due()) is not None:
            try:
                timer.run()
            except Exception as error:
                logger.warning("a timer failed, other timers go on: %s", safe_error_text(error))
            # Hold no reference to this timer while waiting for the next one.
            del timer

    def _next_due(self) -> Timer | None:
        """Wait for the next deadline and return its timer; None after stop()."""
        with self._changed:
            while not self._stopped:
                if not self._heap:
                    self._changed.wait()
                    continue
                at, _, timer = self._heap[0]
                if timer.at != at:
                    # Cancelled, or called already for an earlier deadline.
                    heapq.heappop(self._heap)
                elif (remaining := at - self._clock()) > 0:
                    del timer
                    self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
                else:
                    heapq.heappop(self._heap)
                    timer.at = _NEVER
                    return timer
            return None
