"""Share the readings of a table between triggers: one read per interval for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from memwal.errors import StoreUnavailableError
from memwal_airflow.triggers.table_status import TableReading, TableSource, read_table_status_async

if TYPE_CHECKING:
    from memwal.fleet.polls import ReadLimits


class SharedReadings:
    """The latest readings of tables, shared by the triggers of one event loop.

    A table has an entry while a trigger watches it. Each read covers the regions that its watches
    need together. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        *,
        read: Callable[..., Awaitable[TableReading]] = read_table_status_async,
        limits: ReadLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from memwal.fleet.polls import ReadLimits

        self._read = read
        self._limits = limits or ReadLimits()
        self.clock = clock
        self._tables: dict[TableSource, _SharedTable] = {}

    def __len__(self) -> int:
        """Return how many tables are watched."""
        return len(self._tables)

    @contextlib.asynccontextmanager
    async def watching(
        self, source: TableSource, *, regions: frozenset[str] | None
    ) -> AsyncIterator[Watch]:
        """Watch regions (None: all) of a table in the block; equal sources share their reads."""
        table = self._tables.setdefault(source, _SharedTable(source))
        watch = Watch(self, table, regions)
        table.watches.append(watch)
        try:
            yield watch
        finally:
            table.watches.remove(watch)
            if not table.watches and self._tables.get(source) is table:
                del self._tables[source]

    async def read(self, table: _SharedTable) -> None:
        """Read a table, and keep the reading or the error for its watches."""
        regions = table.watched_regions()
        try:
            async with self._limits.reading(str(table.source)):
                table.outcome = await self._read(table.source, regions=regions)
        except Exception as error:  # Raised again in every trigger that waits for this read.
            table.outcome = error
        table.regions = regions
        table.number += 1
        table.ended_at = self.clock()
        table.task = None


class Watch:
    """One trigger's interest in a table of :class:`SharedReadings`."""

    def __init__(
        self, readings: SharedReadings, table: _SharedTable, regions: frozenset[str] | None
    ) -> None:
        self._readings = readings
        self._table = table
        self.regions = regions
        self._seen = 0

    async def next(self, *, every: float) -> TableReading:
        """Wait for a reading that this watch has not seen yet, at most ``every`` seconds old.

        Raises the error of a failed read; the next call waits for the next read.
        """
        table, clock = self._table, self._readings.clock
        requested_at = clock()
        while True:
            age = clock() - table.ended_at
            # A read that ended since this call is fresh enough, whatever the interval.
            fresh = age < every or table.ended_at >= requested_at
            if table.number > self._seen and fresh and table.covers(self.regions):
                self._seen = table.number
                return table.result()
            if table.number and age < every:
                await asyncio.sleep(every - age)
                continue
            if table.task is None:
                table.task = asyncio.ensure_future(self._readings.read(table))
            # A trigger that is cancelled does not cancel the read for the others.
            await asyncio.shield(table.task)


@dataclass(eq=False, slots=True)
class _SharedTable:
    """The latest reading of one table, or its error; ``number`` counts the reads."""

    source: TableSource
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


_readings: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedReadings] = WeakKeyDictionary()


def shared_readings() -> SharedReadings:
    """Return the readings of the running event loop; a triggerer has one loop."""
    return _readings.setdefault(asyncio.get_running_loop(), SharedReadings())
