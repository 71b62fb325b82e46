"""Read the status of a table for sensors and triggers; triggers share one read per interval."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID
from weakref import WeakKeyDictionary

import memwal.catalog
from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus
from memwal.storage.location import TableLocation, allow_external
from memwal_airflow.hooks.storage_options import read_options, read_options_async

if TYPE_CHECKING:
    from memwal.fleet.polls import ReadLimits
    from memwal.table import Table

# Catalog and Lance take a second to import, so only the functions that read import them.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A table to read: its name in the catalog, or its address with its storage options.

    ``storage_options_ref`` is the path of a JSON file, or ``airflow:{connection id}``. The catalog
    of ``$MEMWAL_CATALOG_URL`` holds the address, storage options, policy and skipped regions of a
    named table.
    """

    table: str | None = None
    table_uri: str | None = None
    storage_options_ref: str | None = None

    def __post_init__(self) -> None:
        if (self.table is None) == (self.table_uri is None):
            raise InvalidInputError("give table= (a name in the catalog) or table_uri=, not both")
        if self.table is not None and self.storage_options_ref is not None:
            raise InvalidInputError(
                "the catalog knows where the storage options of a managed table are; "
                "storage_options_ref= goes with table_uri="
            )

    def __str__(self) -> str:
        return str(self.table or self.table_uri)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReading:
    """The status of the requested regions of a table at a time in UTC, with its policy."""

    status: TableStatus
    policy: Policy
    regions_in_backoff: frozenset[str]
    last_runs: Mapping[str, datetime]
    """When each job last succeeded; empty for a table that is in no catalog."""
    at: datetime


# Address, policy, the skipped regions whose next try is still to come, and the last successes.
_Found = tuple[TableSource, Policy, frozenset[str], Mapping[str, datetime]]


def _find(source: TableSource) -> _Found:
    """Find a table; raise ObjectNotFoundError if the catalog has no such name."""
    if source.table is None:
        return source, Policy(), frozenset(), {}
    with closing(memwal.catalog.Catalog()) as catalog:
        managed = catalog.get(source.table)
        skipped = catalog.backoffs.skipped_regions(source.table)
        last_runs = catalog.last_runs(source.table)
    place = TableSource(table_uri=managed.uri, storage_options_ref=managed.storage_options_ref)
    return place, managed.policy, frozenset(r.region_id for r in skipped if r.waiting), last_runs


def read_table_status(
    source: TableSource, *, regions: Collection[str] | None = None
) -> TableReading:
    """Read the status of a table and of some regions (default: all) now.

    Raises MemWalError if the catalog, the storage options or the table cannot be read.
    """
    found = _find(source)
    return _read_found(found, read_options(found[0].storage_options_ref), regions)


async def read_table_status_async(
    source: TableSource, *, regions: Collection[str] | None = None
) -> TableReading:
    """Read the status without blocking the event loop; see :func:`read_table_status`."""
    found = await asyncio.to_thread(_find, source)
    options = await read_options_async(found[0].storage_options_ref)
    return await asyncio.to_thread(_read_found, found, options, regions)


async def open_table_async(source: TableSource) -> Table:
    """Open a table without blocking the event loop; errors are those of :func:`memwal.open`."""
    place, policy, *_ = await asyncio.to_thread(_find, source)
    options = await read_options_async(place.storage_options_ref)
    return await asyncio.to_thread(
        memwal.open,
        str(place.table_uri),
        storage_options=options,
        allow_external=policy.allow_external,
    )


def _read_found(
    found: _Found, options: Mapping[str, str] | None, regions: Collection[str] | None
) -> TableReading:
    from memwal.jobs.backlog import read_status

    place, policy, regions_in_backoff, last_runs = found
    status = read_status(
        TableLocation(str(place.table_uri), allow_external(options, policy.allow_external)),
        regions=None if regions is None else [UUID(region) for region in sorted(regions)],
        collection=policy.gc_options(),
        compaction=policy.compact_options(),
    )
    return TableReading(
        status=status,
        policy=policy,
        regions_in_backoff=regions_in_backoff,
        last_runs=last_runs,
        at=datetime.now(UTC),
    )


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
        wanted = [watch.regions for watch in table.watches]
        regions = None if None in wanted else frozenset[str]().union(*filter(None, wanted))
        try:
            async with self._limits.reading(str(table.source)):
                table.outcome = await self._read(table.source, regions=regions)
        except Exception as error:  # Raised again in every trigger that waits for this read.
            table.outcome = error
        table.regions = regions
        table.number += 1
        table.ended_at = self.clock()


@dataclass(eq=False, slots=True)
class _SharedTable:
    """The latest reading of one table, or its error; ``number`` counts the reads."""

    source: TableSource
    watches: list[Watch] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while the table is read
    number: int = 0
    ended_at: float = 0.0
    regions: frozenset[str] | None = None
    outcome: TableReading | Exception | None = None


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
            async with table.lock:
                age = clock() - table.ended_at
                # A read that ended since this call is fresh enough, for every interval.
                fresh = age < every or table.ended_at >= requested_at
                outcome = table.outcome
                is_new = table.number > self._seen
                if outcome is not None and is_new and fresh and self._is_covered():
                    self._seen = table.number
                    break
                if outcome is None or age >= every:
                    await self._readings.read(table)
                    continue
            await asyncio.sleep(every - age)
        if isinstance(outcome, Exception):
            # Otherwise each trigger would add its own frames to the same error.
            raise outcome.with_traceback(None)
        return outcome

    def _is_covered(self) -> bool:
        """Return whether the latest read included the regions; an error counts for every region."""
        read = self._table.regions
        if read is None or isinstance(self._table.outcome, Exception):
            return True
        return self.regions is not None and self.regions <= read


_readings: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedReadings] = WeakKeyDictionary()


def shared_readings() -> SharedReadings:
    """Return the readings of the running event loop; a triggerer has one loop."""
    return _readings.setdefault(asyncio.get_running_loop(), SharedReadings())
