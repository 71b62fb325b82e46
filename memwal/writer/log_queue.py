"""Group commit: writes that wait for the log of one region, and whoever writes them.

There is no thread of its own and no timer on the way of a durable write. Whoever finds the log idle
leads: it writes one entry after another, each with everything that was queued meanwhile, until its
own write is done; then it hands over to the thread whose write is the oldest. Writes that nobody
waits for are led by a thread of the pool.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from itertools import chain

from memwal.errors import WriterClosedError
from memwal.writer.handle import PendingWrite


class LogQueue:
    """The queue of one region's log.

    Parameters
    ----------
    state : threading.Condition
        The region's. It guards the queue, and is notified when buffered writes leave it.
    executor : Executor
        Runs what nobody waits for.
    write : callable
        Writes a group as one entry and finishes its members, whatever happens. Only one call runs
        at a time, without the state. It calls :meth:`settle` with the state held, in the same
        breath in which the rows appear elsewhere or the group fails.
    max_bytes, max_rows : int
        Size of a group, unless a single write is larger.
    """

    def __init__(
        self,
        state: threading.Condition,
        executor: Executor,
        write: Callable[[list[PendingWrite]], None],
        *,
        max_bytes: int,
        max_rows: int,
    ) -> None:
        self._state = state
        self._executor = executor
        self._write = write
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._waiting: deque[PendingWrite] = deque()
        self._in_flight: list[PendingWrite] = []
        # How many of those in front are to be written now; the others may still gather.
        self._due = 0
        self._led = False
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being written. The caller holds the state."""
        return not self._led and not self._waiting

    def pending(self) -> Iterator[PendingWrite]:
        """What is not in the log yet, oldest first. The caller holds the state."""
        return chain(self._in_flight, self._waiting)

    def settle(self) -> None:
        """The group that is being written is done with. The caller holds the state."""
        self._in_flight = []

    def clear(self) -> list[PendingWrite]:
        """Take everything out that is not being written yet. The caller holds the state."""
        taken = list(self._waiting)
        self._waiting.clear()
        self._due = self.bytes = 0
        self._state.notify_all()
        return taken

    def remove_derived(self) -> list[PendingWrite]:
        """Take out what was completed from writes that might have failed. The caller holds the
        state."""
        taken = [write for write in self._waiting if write.derived]
        for write in taken:
            self._due -= self._waiting.index(write) < self._due
            self._waiting.remove(write)
            self.bytes -= write.bytes
        return taken

    def run(self, write: PendingWrite, *, admit: Callable[[], None]) -> None:
        """Queue a write and return when it is done.

        Parameters
        ----------
        admit : callable
            Called with the state held, just before the write is queued; may wait, or refuse by an
            exception.
        """
        write.attended = True
        with self._state:
            admit()
            self._append(write)
            self._due = len(self._waiting)
            leads = not self._led
            self._led = True
        if not leads:
            self._follow(write)
        if not write.done:
            self._lead(write)

    def take(self, write: PendingWrite) -> bool:
        """Give the log to a write if nobody has or wants it; the caller then leads until it calls
        :meth:`give_back`. The caller holds the state."""
        if self._led or self._waiting:
            return False
        self._led = True
        self._in_flight = [write]
        return True

    def give_back(self) -> None:
        """End what :meth:`take` began."""
        with self._state:
            self._pass_on()

    def put(self, write: PendingWrite, *, due: bool) -> None:
        """Queue a write that nobody waits for here. The caller holds the state.

        Parameters
        ----------
        due : bool
            Whether it, and all before it, are to be written now.
        """
        self._append(write)
        if due:
            self.hasten()

    def hasten(self) -> None:
        """Have everything that waits written now. The caller holds the state."""
        self._due = len(self._waiting)
        if self._due and not self._led:
            self._led = True
            self._lead_in_background()

    def _append(self, write: PendingWrite) -> None:
        self._waiting.append(write)
        self.bytes += write.bytes

    def _follow(self, write: PendingWrite) -> None:
        try:
            write.wait_for_turn()
        except BaseException:
            # Interrupted: somebody else must lead in its place.
            with self._state:
                write.attended = False
                if write.decline():
                    self._pass_on()
            raise

    def _lead(self, own: PendingWrite) -> None:
        try:
            while not own.done:
                self._write_next()
        finally:
            with self._state:
                self._pass_on()

    def _lead_in_background(self) -> None:
        try:
            self._executor.submit(self._lead_while_due)
        except RuntimeError:
            # Shut down with the table's writer, while this region was being claimed.
            self._led = False
            for write in self.clear():
                write.finish(WriterClosedError("the writer was closed before it could write"))

    def _lead_while_due(self) -> None:
        try:
            while self._due:
                self._write_next()
        finally:
            with self._state:
                self._pass_on()

    def _pass_on(self) -> None:
        """Find the next leader. The caller holds the state and leads."""
        if not self._due:
            self._led = False
        elif self._waiting[0].attended:
            self._waiting[0].promote()
        else:
            self._lead_in_background()

    def _write_next(self) -> None:
        with self._state:
            self._in_flight = group = self._next_group()
            # Somebody may wait for the queue to become shorter.
            self._state.notify_all()
        if group:
            self._write(group)

    def _next_group(self) -> list[PendingWrite]:
        group: list[PendingWrite] = []
        size = rows = 0
        shape = None
        while self._due:
            write = self._waiting[0]
            size += write.bytes
            rows += write.rows
            if group and (
                size > self._max_bytes
                or rows > self._max_rows
                or (shape is not None and write.shape not in (None, shape))
            ):
                break
            shape = shape or write.shape
            group.append(self._waiting.popleft())
            self.bytes -= write.bytes
            self._due -= 1
            if write.seals:
                break
        return group
