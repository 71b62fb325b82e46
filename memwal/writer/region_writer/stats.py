"""Counters and stats of a writer, and a warning when a writer is dropped with buffered writes.

Counting is cheap: the counters are plain numbers, and the caller already holds the lock of the
counted object. Reading them takes no lock; counters that change at the same time may be one write
apart.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import ClassVar
from uuid import UUID

from memwal.storage.location import TableLocation
from memwal.util.concurrency import ForkGuard
from memwal.util.log import safe_error_text, secret_values
from memwal.util.records import JsonRecord

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """Sums since the writer was opened."""

    # Writes acknowledged as durable, their rows (deletes included), and Arrow bytes.
    writes: int = 0
    rows: int = 0
    bytes: int = 0
    # Log entries appended and their encoded size. ``writes / entries`` is the number of writes per
    # entry.
    entries: int = 0
    entry_bytes: int = 0
    append_seconds: float = 0.0  # of all appends, including the store
    generations: int = 0  # generations flushed, with the rows and bytes of their MemTables
    flushed_rows: int = 0
    flushed_bytes: int = 0
    flush_seconds: float = 0.0  # of all successful flushes
    failed_flushes: int = 0  # failed attempts; most are retried
    backpressure_waits: int = 0  # writes that had to wait for a flush, and how long
    backpressure_seconds: float = 0.0
    refused_writes: int = 0  # not accepted, because the wait took too long or a limit was reached

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, name) + getattr(other, name) for name in TOTAL_NAMES))


TOTAL_NAMES = tuple(f.name for f in fields(Totals))
"""Names of the counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStats(JsonRecord):
    """Snapshot of one region of a writer."""

    region_id: UUID
    """The region."""
    epoch: int
    """Epoch of this writer's claim."""
    generation: int
    """Generation number of the active MemTable."""
    next_position: int
    """Log position of the next entry."""
    totals: Totals
    """Sums over all claims of this region by this writer."""
    memtable_rows: int
    """Rows of the active MemTable, including superseded ones."""
    memtable_bytes: int
    """Their size in memory."""
    memtable_batches: int
    """Their batches."""
    memtable_age_seconds: float
    """Time since its first row; 0 while it is empty."""
    sealed_memtables: int
    """MemTables that wait for their flush or are being flushed."""
    sealed_bytes: int
    """Their size in memory."""
    unflushed_age_seconds: float
    """Age of the oldest row that no generation has yet; 0 without one."""
    buffered_writes: int
    """Writes that are not durable yet. They are lost if the process dies now."""
    buffered_bytes: int
    """Their size."""
    last_error: str | None
    """Newest failure of an append or a flush, without secrets or data."""
    fenced: bool
    """Whether another writer is known to have claimed the region."""


@dataclass(frozen=True, slots=True)
class WriterStats(JsonRecord):
    """Snapshot of a table writer."""

    json_properties: ClassVar[tuple[str, ...]] = (
        "memtable_bytes",
        "sealed_memtables",
        "buffered_writes",
        "buffered_bytes",
        "unflushed_age_seconds",
    )

    uri: str
    """Address of the table."""
    totals: Totals
    """Sums over all regions, including regions that were released when idle."""
    regions: tuple[RegionStats, ...]
    """Open regions, ordered by id."""
    closed: bool
    """Whether the writer is closed."""

    @property
    def memtable_bytes(self) -> int:
        """Memory of all MemTables, sealed ones included."""
        return sum(r.memtable_bytes + r.sealed_bytes for r in self.regions)

    @property
    def sealed_memtables(self) -> int:
        """Number of MemTables that wait for their flush."""
        return sum(r.sealed_memtables for r in self.regions)

    @property
    def buffered_writes(self) -> int:
        """Number of writes that are not durable yet."""
        return sum(r.buffered_writes for r in self.regions)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the writes that are not durable yet."""
        return sum(r.buffered_bytes for r in self.regions)

    @property
    def unflushed_age_seconds(self) -> float:
        """Age of the oldest row that no generation has yet; 0 without one."""
        return max((r.unflushed_age_seconds for r in self.regions), default=0.0)


Durations = Callable[[str, float], None]
"""Records the seconds of one ``append``, ``flush`` or ``wait``: sums do not show the slow ones."""


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class RegionCounters(Totals):
    """Counters of one region. Callers hold the region's lock."""

    region_id: UUID
    durations: Durations
    secrets: tuple[str, ...]
    buffered_writes: int = 0  # accepted but not durable yet
    buffered_bytes: int = 0
    last_error: str | None = None

    def add_entry(self, writes: int, rows: int, bytes: int, seconds: float) -> None:
        """Count an entry that is in the log, and the writes that it made durable."""
        self.writes += writes
        self.rows += rows
        self.bytes += bytes
        self.entries += 1
        self.entry_bytes += bytes
        self.append_seconds += seconds
        self.durations("append", seconds)

    def add_flush(self, rows: int, bytes: int, seconds: float) -> None:
        """Count a MemTable that was published as a generation."""
        self.generations += 1
        self.flushed_rows += rows
        self.flushed_bytes += bytes
        self.flush_seconds += seconds
        self.durations("flush", seconds)

    def record_error(self, error: BaseException) -> None:
        """Set ``last_error``."""
        self.last_error = safe_error_text(error, secrets=self.secrets)

    def add_wait(self, seconds: float) -> None:
        """Count a write that waited for a flush, whether it was accepted or not."""
        self.backpressure_waits += 1
        self.backpressure_seconds += seconds
        self.durations("wait", seconds)

    def totals(self) -> Totals:
        """Return the sums so far."""
        return Totals(*(getattr(self, name) for name in TOTAL_NAMES))


class WriterCounters:
    """Counters of all regions of a writer, kept across the claims of a region.

    Holds no reference to the writer, so that it can be read after the writer was collected. The
    secrets of the table's storage options are redacted in error texts.
    """

    def __init__(
        self, location: TableLocation, *, durations: Durations = lambda _kind, _seconds: None
    ) -> None:
        self.uri = location.uri
        self._durations = durations
        self._secrets = secret_values(location.storage_options, os.environ)
        self._regions: dict[UUID, RegionCounters] = {}

    def region(self, region_id: UUID) -> RegionCounters:
        """Return the counters of a region, which are the same for all its claims."""
        counters = self._regions.get(region_id)
        if counters is None:
            new = RegionCounters(
                region_id=region_id, durations=self._durations, secrets=self._secrets
            )
            counters = self._regions.setdefault(region_id, new)
        return counters

    def regions(self) -> list[RegionCounters]:
        """Return the counters of every region that was claimed so far."""
        return list(self._regions.values())

    def totals(self) -> Totals:
        """Return the sums over all regions."""
        return sum((counters.totals() for counters in self.regions()), Totals())

    @property
    def buffered_writes(self) -> int:
        """Number of writes that are not durable yet."""
        return sum(counters.buffered_writes for counters in self.regions())

    def stats(self, regions: Iterable[RegionStats], *, closed: bool) -> WriterStats:
        """Combine the sums with snapshots of the open regions."""
        ordered = sorted(regions, key=lambda region: region.region_id)
        return WriterStats(
            uri=self.uri, totals=self.totals(), regions=tuple(ordered), closed=closed
        )


def warn_if_unclosed(writer: object, counters: WriterCounters) -> weakref.finalize[..., object]:
    """Log a warning if a writer is collected, or the process ends, before its writes are durable.

    The writes are not stored at that point: the threads that could are gone, and the end of a
    process must not wait for a store. Rows that are durable but not flushed are safe; the next
    claim replays them. The writer is not kept alive. Call ``detach()`` of the result when it is
    closed.
    """
    return weakref.finalize(writer, _warn_of_lost_writes, counters, ForkGuard("the writer"))


def _warn_of_lost_writes(counters: WriterCounters, guard: ForkGuard) -> None:
    lost = counters.buffered_writes
    if lost and not guard.inherited:
        logger.warning(
            "a writer of %s was not closed: %d buffered writes were not durable and are lost; "
            "use it as a context manager, or call flush_wal() or close()",
            counters.uri,
            lost,
        )
