"""Share the polls of a table between triggers: one read per interval for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary

from memwal.errors import StoreUnavailableError
from memwal_airflow.triggers.table_status import TableReading, TableSource, read_table_status_async

MAX_CONCURRENT_READS = 8  # Further tables wait.
READ_TIMEOUT_SECONDS = 300.0


class ReadTableStatus(Protocol):
    """Signature of :func:`memwal_airflow.triggers.table_status.read_table_status_async`."""

    def __call__(
        self, source: TableSource, *, regions: frozenset[str] | None
    ) -> Awaitable[TableReading]: ...


class TablePolls:
    """The polls of tables in one event loop.

    A table has an entry while a trigger watches it, with the latest reading or error only. Each
    read covers the regions that its watches need together. Times are in seconds of a monotonic
    ``clock``.
    """

    def __init__(
        self,
        *,
        read: ReadTableStatus = read_table_status_async,
        clock: Callable[[], float] = time.monotonic,
        max_concurrent_reads: int = MAX_CONCURRENT_READS,
        read_timeout: float = READ_TIMEOUT_SECONDS,
    ) -> None:
        self._read = read
        self._clock = clock
        self._read_timeout = read_timeout
        self._polls: dict[TableSource, _TablePoll] = {}
        self._read_slots = asyncio.Semaphore(max_concurrent_reads)

    def __len__(self) -> int:
        """Return how many tables are watched."""
        return len(self._polls)

    @contextlib.asynccontextmanager
    async def watching(
        self, source: TableSource, *, regions: frozenset[str] | None
    ) -> AsyncIterator[Watch]:
        """Watch regions (None: all) of a table in the block; equal sources share their reads."""
        poll = self._polls.setdefault(source, _TablePoll())
        watch = Watch(self, source, poll, regions)
        poll.watches.append(watch)
        try:
            yield watch
        finally:
            poll.watches.remove(watch)
            if not poll.watches and self._polls.get(source) is poll:
                del self._polls[source]

    async def next_reading(self, watch: Watch, *, every: float) -> TableReading:
        """Wait for a reading that a watch has not seen; see :meth:`Watch.next`."""
        poll = watch.poll
        requested_at = self._clock()
        while True:
            age = self._clock() - poll.ended_at
            # A read that ended since this call is fresh enough, whatever the interval.
            fresh = age < every or poll.ended_at >= requested_at
            if poll.number > watch.seen and fresh and poll.covers(watch.regions):
                watch.seen = poll.number
                return poll.result()
            if poll.number and age < every:
                await asyncio.sleep(every - age)
            elif poll.task is None:
                poll.task = asyncio.ensure_future(self._take(watch.source, poll))
            else:
                # A trigger that is cancelled does not cancel the read for the others.
                await asyncio.shield(poll.task)

    async def _take(self, source: TableSource, poll: _TablePoll) -> None:
        regions = poll.watched_regions()
        outcome: TableReading | Exception
        try:
            async with self._read_slots, asyncio.timeout(self._read_timeout):
                outcome = await self._read(source, regions=regions)
        except TimeoutError:
            limit = self._read_timeout
            outcome = StoreUnavailableError(f"{source} did not answer in {limit:.0f} s")
        except Exception as error:  # Raised again in every trigger that waits for this read.
            outcome = error
        poll.outcome = outcome
        poll.regions = regions
        poll.number += 1
        poll.ended_at = self._clock()
        poll.task = None


class Watch:
    """One trigger's interest in a table of :class:`TablePolls`."""

    def __init__(
        self,
        polls: TablePolls,
        source: TableSource,
        poll: _TablePoll,
        regions: frozenset[str] | None,
    ) -> None:
        self._polls = polls
        self.source = source
        self.poll = poll
        self.regions = regions
        self.seen = 0

    async def next(self, *, every: float) -> TableReading:
        """Wait for a reading that this watch has not seen yet, at most ``every`` seconds old.

        Raises the error of a failed read; the next call waits for the next read.
        """
        return await self._polls.next_reading(self, every=every)


@dataclass(eq=False, slots=True)
class _TablePoll:
    """The latest reading of one table, or its error; ``number`` counts the reads."""

    watches: list[Watch] = field(default_factory=list)
    number: int = 0
    ended_at: float = 0.0
    regions: frozenset[str] | None = None
    outcome: TableReading | Exception | None = None
    task: asyncio.Task[None] | None = None

    def watched_regions(self) -> frozenset[str] | None:
        """Return the regions that the watches need together; None for all."""
        regions: frozenset[str] = frozenset()
        for watch in self.watches:
            if watch.regions is None:
                return None
            regions |= watch.regions
        return regions

    def covers(self, regions: frozenset[str] | None) -> bool:
        """True if the latest read included these regions. An error counts for every region."""
        if self.regions is None or isinstance(self.outcome, Exception):
            return True
        return regions is not None and regions <= self.regions

    def result(self) -> TableReading:
        """Return the latest reading, or raise the error of the read."""
        if isinstance(self.outcome, TableReading):
            return self.outcome
        error = self.outcome or StoreUnavailableError("the table has not been read yet")
        # Otherwise each trigger would add its own frames to the same error.
        raise error.with_traceback(None)


_shared_polls: WeakKeyDictionary[asyncio.AbstractEventLoop, TablePolls] = WeakKeyDictionary()


def shared_polls() -> TablePolls:
    """Return the polls of the running event loop; a triggerer has one loop."""
    return _shared_polls.setdefault(asyncio.get_running_loop(), TablePolls())
