"""Triggers that wait for one table share its looks: one per interval, however many they are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from memwal.errors import StoreUnavailableError
from memwal_airflow.triggers.table_status import Look, TableSource, look_async

LOOKS_AT_ONCE = 8
"""Most tables that are being looked at; the others wait for their turn."""

LONGEST_LOOK = 300.0
"""Seconds after which a look that does not end counts as failed."""


class AsyncLook(Protocol):
    """As :func:`memwal_airflow.triggers.table_status.look_async`."""

    def __call__(
        self, source: TableSource, *, regions: frozenset[str] | None
    ) -> Coroutine[Any, Any, Look]: ...


class TablePolls:
    """The looks at tables of one event loop.

    A table is known here as long as somebody watches it, with its latest look or error and
    nothing older. The regions that are looked at are those that the watchers want together.

    Parameters
    ----------
    look : callable
        Looks at a table.
    clock : callable
        Seconds, never set back.
    looks_at_once : int
        See :data:`LOOKS_AT_ONCE`.
    longest_look : float
        See :data:`LONGEST_LOOK`.
    """

    def __init__(
        self,
        *,
        look: AsyncLook = look_async,
        clock: Callable[[], float] = time.monotonic,
        looks_at_once: int = LOOKS_AT_ONCE,
        longest_look: float = LONGEST_LOOK,
    ) -> None:
        self._look = look
        self._clock = clock
        self._longest_look = longest_look
        self._watched: dict[TableSource, _Poll] = {}
        self._at_once = asyncio.Semaphore(looks_at_once)

    def __len__(self) -> int:
        """How many tables are watched."""
        return len(self._watched)

    @contextlib.asynccontextmanager
    async def watching(
        self, source: TableSource, *, regions: frozenset[str] | None
    ) -> AsyncIterator[Watch]:
        """Watch a table inside the block.

        Parameters
        ----------
        source : TableSource
            Equal ones share their looks.
        regions : frozenset of str or None
            UUIDs of the regions whose figures are wanted; None for all.
        """
        poll = self._watched.setdefault(source, _Poll())
        watch = Watch(self, source, poll, regions)
        poll.watches.append(watch)
        try:
            yield watch
        finally:
            poll.watches.remove(watch)
            if not poll.watches and self._watched.get(source) is poll:
                del self._watched[source]

    async def next_look(self, watch: Watch, *, every: float) -> Look:
        """See :meth:`Watch.next`."""
        poll = watch.poll
        asked_at = self._clock()
        while True:
            age = self._clock() - poll.ended_at
            # One that ended since is fresh enough, whatever the interval.
            fresh = age < every or poll.ended_at >= asked_at
            if poll.number > watch.seen and fresh and poll.covers(watch.regions):
                watch.seen = poll.number
                return poll.result()
            if poll.number and age < every:
                await asyncio.sleep(every - age)
            elif poll.task is None:
                poll.task = asyncio.ensure_future(self._take(watch.source, poll))
            else:
                # One who stops waiting does not stop the look for the others.
                await asyncio.shield(poll.task)

    async def _take(self, source: TableSource, poll: _Poll) -> None:
        regions = poll.wanted()
        outcome: Look | Exception
        try:
            async with self._at_once, asyncio.timeout(self._longest_look):
                outcome = await self._look(source, regions=regions)
        except TimeoutError:
            limit = self._longest_look
            outcome = StoreUnavailableError(f"{source} did not answer in {limit:.0f} s")
        except Exception as error:  # Everyone who waits for this look is told.
            outcome = error
        poll.outcome = outcome
        poll.regions = regions
        poll.number += 1
        poll.ended_at = self._clock()
        poll.task = None


class Watch:
    """A place in :class:`TablePolls`, of one trigger."""

    def __init__(
        self, polls: TablePolls, source: TableSource, poll: _Poll, regions: frozenset[str] | None
    ) -> None:
        self._polls = polls
        self.source = source
        self.poll = poll
        self.regions = regions
        self.seen = 0

    async def next(self, *, every: float) -> Look:
        """Wait for a look that this watch has not seen yet.

        Parameters
        ----------
        every : float
            Seconds that lie between two looks, and that the one returned is old at most.

        Raises
        ------
        Exception
            What the look failed with; the next call waits for the next one.
        """
        return await self._polls.next_look(self, every=every)


@dataclass(eq=False, slots=True)
class _Poll:
    """The latest look at one table; ``number`` counts them."""

    watches: list[Watch] = field(default_factory=list)
    number: int = 0
    ended_at: float = 0.0
    regions: frozenset[str] | None = None
    outcome: Look | Exception | None = None
    task: asyncio.Task[None] | None = None

    def wanted(self) -> frozenset[str] | None:
        """Regions that the watches want together."""
        found: frozenset[str] = frozenset()
        for watch in self.watches:
            if watch.regions is None:
                return None
            found |= watch.regions
        return found

    def covers(self, regions: frozenset[str] | None) -> bool:
        """Whether the latest look was at these regions. One that failed concerns everyone."""
        if self.regions is None or isinstance(self.outcome, Exception):
            return True
        return regions is not None and regions <= self.regions

    def result(self) -> Look:
        """The latest look, or what it failed with."""
        if isinstance(self.outcome, Look):
            return self.outcome
        error = self.outcome or StoreUnavailableError("nobody has looked yet")
        # Else each waiter would add its own frames to one and the same error.
        raise error.with_traceback(None)


_polls: WeakKeyDictionary[asyncio.AbstractEventLoop, TablePolls] = WeakKeyDictionary()


def polls() -> TablePolls:
    """Those of the running event loop; a triggerer has one."""
    return _polls.setdefault(asyncio.get_running_loop(), TablePolls())
