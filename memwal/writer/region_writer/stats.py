"""Counters and stats of a writer, and a warning when a writer is lost with unflushed writes.

Counting costs an addition or two per call: the numbers are plain integers, and the caller that
counts holds the lock of what is counted. Reading them takes no lock; numbers that change meanwhile
may be one write apart from each other.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol
from uuid import UUID

from memwal.storage.location import TableLocation
from memwal.util.concurrency import ForkGuard
from memwal.util.log import safe_error_text
from memwal.util.redaction import secret_values
from memwal.util.timers import logger


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the writer was opened.

    Attributes
    ----------
    writes, rows, bytes : int
        Acknowledged as durable: calls, their rows (deletes included), and Arrow bytes.
    entries, entry_bytes : int
        Log entries appended and their encoded size. ``writes / entries`` tells how many writes
        shared one.
    append_seconds : float
        Time in appends, the store's included.
    generations, flushed_rows, flushed_bytes : int
        Generations flushed, with the rows and bytes of their MemTables.
    flush_seconds : float
        Time in flushes that succeeded.
    failed_flushes : int
        Tries of a flush that failed; most are tried again.
    backpressure_waits : int
        Writes that had to wait for a flush.
    backpressure_seconds : float
        Time that they waited.
    refused_writes : int
        Writes that were not accepted: the wait took too long, or a limit was reached.
    """

    writes: int = 0
    rows: int = 0
    bytes: int = 0
    entries: int = 0
    entry_bytes: int = 0
    append_seconds: float = 0.0
    generations: int = 0
    flushed_rows: int = 0
    flushed_bytes: int = 0
    flush_seconds: float = 0.0
    failed_flushes: int = 0
    backpressure_waits: int = 0
    backpressure_seconds: float = 0.0
    refused_writes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, name) + getattr(other, name) for name in TOTAL_NAMES))


TOTAL_NAMES = tuple(f.name for f in fields(Totals))
"""Names of what is summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStats:
    """One region of a writer at one moment.

    Attributes
    ----------
    region_id : UUID
    epoch : int
        Of this writer's claim.
    generation : int
        What the active MemTable will be flushed as.
    next_position : int
        Position of the log that the next entry takes.
    totals : Totals
        Earlier claims of this region by the same writer included.
    memtable_rows, memtable_bytes, memtable_batches : int
        The active MemTable, superseded rows included.
    memtable_age_seconds : float
        Since its first row; 0 while it is empty.
    sealed_memtables, sealed_bytes : int
        MemTables that wait for their flush or are being flushed.
    unflushed_age_seconds : float
        Since the oldest row that no generation has yet; 0 when there is none.
    buffered_writes, buffered_bytes : int
        Handed over and not durable yet. They are lost when the process dies now.
    last_error : str or None
        The newest failure of an append or a flush, without secrets or data.
    fenced : bool
        Whether another writer is known to have claimed the region.
    """

    region_id: UUID
    epoch: int
    generation: int
    next_position: int
    totals: Totals
    memtable_rows: int
    memtable_bytes: int
    memtable_batches: int
    memtable_age_seconds: float
    sealed_memtables: int
    sealed_bytes: int
    unflushed_age_seconds: float
    buffered_writes: int
    buffered_bytes: int
    last_error: str | None
    fenced: bool

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {**asdict(self), "region_id": str(self.region_id)}


@dataclass(frozen=True, slots=True)
class WriterStats:
    """A writer of a table at one moment.

    Attributes
    ----------
    uri : str
        Of the table.
    totals : Totals
        Over all regions, those that were released when idle included.
    regions : tuple of RegionStats
        Those that the writer holds now, by id.
    closed : bool
    """

    uri: str
    totals: Totals
    regions: tuple[RegionStats, ...]
    closed: bool

    @property
    def memtable_bytes(self) -> int:
        """Memory of all MemTables, sealed ones included."""
        return sum(r.memtable_bytes + r.sealed_bytes for r in self.regions)

    @property
    def sealed_memtables(self) -> int:
        """MemTables that wait for their flush."""
        return sum(r.sealed_memtables for r in self.regions)

    @property
    def buffered_writes(self) -> int:
        """Writes that were handed over and are not durable yet."""
        return sum(r.buffered_writes for r in self.regions)

    @property
    def buffered_bytes(self) -> int:
        """Their bytes."""
        return sum(r.buffered_bytes for r in self.regions)

    @property
    def unflushed_age_seconds(self) -> float:
        """Age of the oldest row that no generation has yet; 0 when there is none."""
        return max((r.unflushed_age_seconds for r in self.regions), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "uri": self.uri,
            "closed": self.closed,
            "totals": asdict(self.totals),
            "memtable_bytes": self.memtable_bytes,
            "sealed_memtables": self.sealed_memtables,
            "buffered_writes": self.buffered_writes,
            "buffered_bytes": self.buffered_bytes,
            "unflushed_age_seconds": self.unflushed_age_seconds,
            "regions": [region.to_dict() for region in self.regions],
        }


class Durations(Protocol):
    """Where single durations go; sums alone do not show the slow ones. Seconds."""

    def append(self, seconds: float) -> None: ...

    def flush(self, seconds: float) -> None: ...

    def wait(self, seconds: float) -> None: ...


class RegionCounters:
    """Counts for one region. Callers hold the region's lock."""

    __slots__ = (*TOTAL_NAMES, "_durations", "_secrets", "buffered_bytes", "buffered_writes",
                 "last_error", "region_id")  # fmt: skip

    writes: int
    rows: int
    bytes: int
    entries: int
    entry_bytes: int
    append_seconds: float
    generations: int
    flushed_rows: int
    flushed_bytes: int
    flush_seconds: float
    failed_flushes: int
    backpressure_waits: int
    backpressure_seconds: float
    refused_writes: int

    def __init__(
        self,
        region_id: UUID,
        *,
        durations: Durations | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        for name in TOTAL_NAMES:
            setattr(self, name, 0)
        self.region_id = region_id
        self.buffered_writes = 0
        self.buffered_bytes = 0
        self.last_error: str | None = None
        self._durations = durations
        self._secrets = secrets

    def buffered(self, writes: int, bytes: int) -> None:
        """Writes were handed over that are not durable yet."""
        self.buffered_writes += writes
        self.buffered_bytes += bytes

    def unbuffered(self, writes: int, bytes: int) -> None:
        """Such writes became durable, or failed."""
        self.buffered_writes -= writes
        self.buffered_bytes -= bytes

    def acknowledged(self, writes: int, rows: int, bytes: int) -> None:
        """Writes became durable: once per group, with the group's sums."""
        self.writes += writes
        self.rows += rows
        self.bytes += bytes

    def appended(self, bytes: int, seconds: float) -> None:
        """An entry of so many encoded bytes is in the log."""
        self.entries += 1
        self.entry_bytes += bytes
        self.append_seconds += seconds
        if self._durations is not None:
            self._durations.append(seconds)

    def flushed(self, rows: int, bytes: int, seconds: float) -> None:
        """A MemTable of so many rows and bytes is a generation that the manifest names."""
        self.generations += 1
        self.flushed_rows += rows
        self.flushed_bytes += bytes
        self.flush_seconds += seconds
        if self._durations is not None:
            self._durations.flush(seconds)

    def flush_failed(self, error: BaseException) -> None:
        """One try of a flush failed."""
        self.failed_flushes += 1
        self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Keep an error of an append or of the whole region to be shown."""
        self.last_error = safe_error_text(error, secrets=self._secrets)

    def waited(self, seconds: float) -> None:
        """A write waited for a flush, in vain or not."""
        self.backpressure_waits += 1
        self.backpressure_seconds += seconds
        if self._durations is not None:
            self._durations.wait(seconds)

    def refused(self, writes: int = 1) -> None:
        """Writes were not accepted."""
        self.refused_writes += writes

    def totals(self) -> Totals:
        """The sums so far."""
        return Totals(*(getattr(self, name) for name in TOTAL_NAMES))

    def stats(
        self,
        *,
        epoch: int,
        generation: int,
        next_position: int,
        memtable_rows: int,
        memtable_bytes: int,
        memtable_batches: int,
        memtable_age_seconds: float,
        sealed_memtables: int,
        sealed_bytes: int,
        unflushed_age_seconds: float,
        fenced: bool,
    ) -> RegionStats:
        """The counts together with what the region holds: see :class:`RegionStats`."""
        return RegionStats(
            region_id=self.region_id,
            epoch=epoch,
            generation=generation,
            next_position=next_position,
            totals=self.totals(),
            memtable_rows=memtable_rows,
            memtable_bytes=memtable_bytes,
            memtable_batches=memtable_batches,
            memtable_age_seconds=memtable_age_seconds,
            sealed_memtables=sealed_memtables,
            sealed_bytes=sealed_bytes,
            unflushed_age_seconds=unflushed_age_seconds,
            buffered_writes=self.buffered_writes,
            buffered_bytes=self.buffered_bytes,
            last_error=self.last_error,
            fenced=fenced,
        )


class WriterCounters:
    """Counts for all regions of a writer; outlives the claims of its regions.

    It knows nothing of the writer, so that it can be looked at when the writer is gone.

    Parameters
    ----------
    location : TableLocation
        Its address is shown; the secrets among its options are blanked out of error texts.
    durations : Durations, optional
        Gets each single duration.
    """

    def __init__(self, location: TableLocation, *, durations: Durations | None = None) -> None:
        self.uri = location.uri
        self._durations = durations
        self._secrets = secret_values(location.storage_options, os.environ)
        self._regions: dict[UUID, RegionCounters] = {}

    def region(self, region_id: UUID) -> RegionCounters:
        """The counters of a region, the same ones whenever it is claimed again."""
        found = self._regions.get(region_id)
        if found is None:
            made = RegionCounters(region_id, durations=self._durations, secrets=self._secrets)
            found = self._regions.setdefault(region_id, made)
        return found

    def regions(self) -> list[RegionCounters]:
        """Of every region that was ever claimed."""
        return list(self._regions.values())

    def totals(self) -> Totals:
        """The sums over all regions."""
        return sum((counters.totals() for counters in self.regions()), Totals())

    @property
    def buffered_writes(self) -> int:
        """Writes that were handed over and are not durable yet."""
        return sum(counters.buffered_writes for counters in self.regions())

    def stats(self, regions: Iterable[RegionStats], *, closed: bool) -> WriterStats:
        """The counts together with what the regions hold now."""
        ordered = sorted(regions, key=lambda region: region.region_id)
        return WriterStats(
            uri=self.uri, totals=self.totals(), regions=tuple(ordered), closed=closed
        )


def warn_if_unclosed(writer: Any, counters: WriterCounters) -> weakref.finalize[..., None]:
    """Log a warning if a writer goes away, or the interpreter ends, with writes not yet durable.

    Nothing is written then: the threads that could are gone, and the end of a process must not
    wait for a store. Rows that are durable but not flushed are safe; the next claim replays them.

    Parameters
    ----------
    writer : object
        Watched, not kept alive.
    counters : WriterCounters
        Tells how many writes are lost.

    Returns
    -------
    weakref.finalize
        Call ``detach()`` when the writer is closed.
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
