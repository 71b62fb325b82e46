"""Status of a table: the backlog figures that policies, people and sensors act on."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Self

from memwal.boundary.text import age, html_table, plural, size
from memwal.errors import ProgressLostError
from memwal.util.records import JsonMapping, JsonObject, JsonRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionBacklog:
    """Backlog of one region."""

    region_id: str
    """UUID as text."""
    writer_epoch: int
    """Epoch of the latest claim."""
    sealed: bool
    """The region takes no more writes."""
    current_generation: int
    """Number that the next flush gets."""
    merged_generation: int
    """Newest generation that the base table contains; 0 when none."""
    backlog_generations: int
    """Generations that are flushed and not merged."""
    backlog_rows: int
    """Their rows, as far as their writers recorded them in the manifest."""
    backlog_bytes: int
    """Their size in memory, as far as their writers recorded it."""
    oldest_backlog_seconds: float | None
    """Age of the oldest generation of the backlog; None when there is none."""
    unflushed_wal_entries: int
    """Entries of the write-ahead log that no flushed generation covers; 0 when none has rows.
    A claim appends one without rows, the fence, and the newest entry of a log is never deleted."""
    retained_generations: int
    """Generations that are merged and still stored."""
    oldest_unflushed_seconds: float | None = None
    """Age of the oldest rows that are acknowledged and not flushed; None when there are none."""
    unchanged_seconds: float | None = None
    """The same, or the age of the region's manifest if that is less: a writer that claimed or
    flushed since then may live."""
    needs_recovery: bool = False
    """Such rows wait for longer than a living writer lets them wait: no reader sees them until the
    region is recovered, or claimed by another writer.
    """
    reclaimable_generations: int = 0
    """Retained generations that every maintained index covers and that are not held: the collector
    may delete them when no retained version needs them and the grace period is over."""
    reclaimable_bytes: int = 0
    """Their size in memory, as far as their writers recorded it."""
    held_generations: int = 0
    """Retained generations that the collector keeps, within the limits of the policy, because the
    newest claim of the region is not one of memwal's: its writer may still read them."""
    held_bytes: int = 0
    """Their size in memory, as far as their writers recorded it."""
    missing_wal_entry: int | None = None
    """First position of the log without an entry, although entries follow it and no flush covers
    it: the entry was lost or deleted. None when no entry is missing."""
    merged_before: int | None = None
    """Newest generation that the base table contained before it went back to an older state, which
    reads leave out until a person decides; None when it did not go back."""


_COLUMNS = "region,epoch,state,generations,rows,bytes,oldest,log entries,merged to,kept"
REGION_COLUMNS = _COLUMNS.split(",")
"""Of tables with a row for each region."""


def region_cells(region: RegionBacklog) -> tuple[object, ...]:
    """Return the cells of a region's row, by :data:`REGION_COLUMNS`."""
    return (
        region.region_id,
        region.writer_epoch,
        "sealed" if region.sealed else "active",
        region.backlog_generations,
        region.backlog_rows,
        size(region.backlog_bytes),
        age(region.oldest_backlog_seconds),
        region.unflushed_wal_entries,
        region.merged_generation,
        region.retained_generations,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLag:
    """Lag of one index behind the merge progress."""

    name: str
    """Name of the index."""
    generations: int
    """Merged generations that the index does not cover; 0 if it is not maintained."""
    regions: int
    """Regions that have such generations."""
    rows: int | None = None
    """Rows of the base table that it does not cover; None when it does not exist."""
    maintained: bool = True
    """Generations carry it, and stay stored until it covers them."""
    stale: bool = False
    """It misses rows that it covers. Reads and merges do not use it; an index build replaces it."""
    damaged: bool = False
    """A file of it is missing or was cut off. Reads do without it; an index build replaces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatus:
    """A consumer of the changes of a table."""

    name: str
    """Name of the consumer."""
    epoch: int
    """Claims so far."""
    owner: str
    """Machine and process of the newest claim."""
    version: int | None
    """Version of the base table that its token names; None before its first commit, or since a
    reset, unless it begins with "now"."""
    idle_seconds: float
    """Time since it was created, reset, committed, or read up to the newest state."""
    held_bytes: int
    """Bytes that could be freed if the version of its token was not kept."""
    expired: str | None = None
    """Reason of its expiry; None while changes are kept for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus(JsonRecord):
    """Backlog of a table, read in one pass."""

    json_properties: ClassVar[tuple[str, ...]] = (
        "backlog_generations",
        "backlog_rows",
        "backlog_bytes",
        "unflushed_wal_entries",
        "oldest_unflushed_seconds",
        "regions_to_recover",
        "oldest_backlog_seconds",
        "reclaimable_bytes",
        "held_bytes",
        "expired_consumers",
        "deleted_percent",
        "gains",
    )

    uri: str
    """Address of the table."""
    version: int
    """Version of the base table."""
    regions: tuple[RegionBacklog, ...]
    """Backlog of each region that was read."""
    indexes: tuple[IndexLag, ...]
    """Lag of each maintained index, then of each other index that index builds extend."""
    consumers: tuple[ConsumerStatus, ...] = ()
    """Status of each consumer, by name; empty when only some regions were read."""
    unwritten_regions: int = 0
    """Regions that the region spec knows in advance and that nothing was written to yet; 0 if that
    depends on the rows, or when only some regions were read."""
    mem_wal: bool = True
    """True if MemWAL is enabled; without it there are no regions, and no jobs of regions."""
    stable_row_ids: bool | None = None
    """True if a row of the base table keeps its id when it is updated or compacted; None if not
    read."""
    snapshot_age_seconds: float | None
    """Age of the region snapshot; None if there is none, or its time is in the future by a minute
    or more."""
    changed_regions: int | None = None
    """Regions whose manifest is not the one of the snapshot, all regions if there is no snapshot.
    None when only some regions were read."""
    fragments: int | None = None
    """Fragments of the base table; None if not read."""
    small_fragments: int | None = None
    """Small fragments of the base table, which a compaction would join; None if not read."""
    min_fragments: int | None = None
    """Small fragments that a compaction leaves alone if there are fewer; None if it joins none."""
    deleted_rows: int | None = None
    """Deleted rows that the fragments of the base table still store; None if not read."""
    base_rows: int | None = None
    """Rows of the base table; None if not read."""
    base_bytes: int | None = None
    """Size on storage of the data files of the version, without indexes; None if not read, or if a
    writer did not record it."""
    versions: int | None = None
    """Stored versions of the base table; None if not read, or if there are some 2,000 or more in an
    object store and ``old_bytes`` was not asked for."""
    oldest_version_seconds: float | None = None
    """Age of the oldest of them."""
    expired_versions: int | None = None
    """Older versions than the collection's version retention; None without one."""
    old_bytes: int | None = None
    """Bytes of files that the version does not name: those of older versions, and of writes that
    are under way or died. None if not read."""
    lost_refs: tuple[str, ...] = ()
    """Problems of tags and branches that cannot be followed, each with what to do. Empty for a
    table in an object store, where they are not read: ``verify`` and the collection name them."""
    enabled_anew: bool = False
    """MemWAL was taken away and enabled again, with other rows in the base table, before anything
    was merged: a person decides whether generations that were flushed before count."""
    read_cache_bytes: int | None = field(default=None, compare=False)
    """Memory of the caches that the reads of this process keep for later reads, over all tables."""
    read_cache_budget: int | None = field(default=None, compare=False)
    """Limit of that memory: the environment variable ``MEMWAL_READ_CACHE_BYTES``."""

    def __repr__(self) -> str:
        files = f"{plural(self.fragments or 0, 'fragment')}, {self.small_fragments or 0} small"
        jobs = f"; jobs with a gain: {', '.join(self.gains)}" if self.gains else ""
        return f"TableStatus({self.uri!r}, version {self.version}, {self._log}; {files}{jobs})"

    def _repr_html_(self) -> str:
        columns = ["index", "generations behind", "rows behind"]
        rows: list[tuple[object, ...]] = [
            (lag.name, lag.generations, lag.rows) for lag in self.indexes
        ]
        if self.mem_wal:
            columns = REGION_COLUMNS
            by_bytes = sorted(self.regions, key=lambda region: -region.backlog_bytes)
            rows = [region_cells(region) for region in by_bytes]
        dead = f"{plural(self.regions_to_recover, 'region')} to recover"
        return html_table(
            f"{self.uri} at version {self.version}: {self._log}",
            columns,
            rows,
            notes=[
                self.stored,
                *(f"{job}: {gain}" for job, gain in self.gains.items()),
                *([dead] if self.regions_to_recover else []),
                *self.lost_refs,
            ],
        )

    @property
    def _log(self) -> str:
        if not self.mem_wal:
            return "without MemWAL"
        return (
            f"{plural(self.region_count, 'region')}, {plural(self.backlog_rows, 'row')} in "
            f"{plural(self.backlog_generations, 'generation')} to merge"
        )

    @property
    def stored(self) -> str:
        """Fragments, rows, bytes and versions of the base table, as a sentence."""
        many = "some 2,000 versions or more"
        parts = [
            f"{plural(self.fragments or 0, 'fragment')}, {self.small_fragments or 0} small",
            *(["stable row ids"] if self.stable_row_ids else []),
            f"{self.deleted_percent or 0:.0f} % of the stored rows deleted",
            many if self.versions is None else plural(self.versions, "version"),
        ]
        if self.oldest_version_seconds is not None:
            parts.append(f"the oldest {age(self.oldest_version_seconds)} old")
        if self.old_bytes is not None:
            parts.append(f"{size(self.old_bytes)} not of the newest")
        return ", ".join(parts)

    @property
    def gains(self) -> dict[str, str]:
        """Gain of a run of each job, as a phrase; jobs that would gain nothing are left out."""
        gains = {}
        if self.backlog_generations:
            generations = plural(self.backlog_generations, "generation")
            gains["merge"] = f"{plural(self.backlog_rows, 'row')} in {generations}"
        behind = [lag for lag in self.indexes if lag.rows or lag.generations]
        if behind:
            rows = plural(max(lag.rows or 0 for lag in behind), "row")
            gains["index"] = f"{rows} that {', '.join(lag.name for lag in behind)} may lack"
        least = self.min_fragments
        if self.small_fragments and least is not None and self.small_fragments >= least:
            gains["compact"] = f"could join {self.small_fragments} of {self.fragments} fragments"
        if collected := self._collected():
            gains["gc"] = ", ".join(collected)
        return gains

    def _collected(self) -> list[str]:
        parts = []
        old = max((self.versions or 1) - 1, 0)
        freed = f", {size(self.old_bytes)}" if self.old_bytes else ""
        if self.expired_versions is None and old:
            parts.append(f"{plural(old, 'version')}{freed}, given a version retention")
        elif self.expired_versions:
            expired = plural(self.expired_versions, "version")
            parts.append(expired + (freed if self.expired_versions == old else ""))
        if self.reclaimable_bytes:
            parts.append(f"merged generations of {size(self.reclaimable_bytes)}")
        return parts

    def aged(self, seconds: float) -> Self:
        """Return the status that a table which did not change has some ``seconds`` later."""
        regions = tuple(
            replace(
                region,
                oldest_backlog_seconds=_aged_seconds(region.oldest_backlog_seconds, seconds),
                oldest_unflushed_seconds=_aged_seconds(region.oldest_unflushed_seconds, seconds),
                unchanged_seconds=_aged_seconds(region.unchanged_seconds, seconds),
            )
            for region in self.regions
        )
        return replace(
            self,
            regions=regions,
            snapshot_age_seconds=_aged_seconds(self.snapshot_age_seconds, seconds),
            oldest_version_seconds=_aged_seconds(self.oldest_version_seconds, seconds),
            consumers=tuple(
                replace(consumer, idle_seconds=consumer.idle_seconds + seconds)
                for consumer in self.consumers
            ),
        )

    @property
    def region_count(self) -> int:
        """Number of regions, including regions that nothing was written to yet."""
        return len(self.regions) + self.unwritten_regions

    @property
    def backlog_generations(self) -> int:
        """Generations flushed and not merged, over all regions."""
        return sum(region.backlog_generations for region in self.regions)

    @property
    def backlog_rows(self) -> int:
        """Rows in the backlog, over all regions."""
        return sum(region.backlog_rows for region in self.regions)

    @property
    def backlog_bytes(self) -> int:
        """Bytes (in memory) in the backlog, over all regions."""
        return sum(region.backlog_bytes for region in self.regions)

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes (in memory) of reclaimable generations, over all regions."""
        return sum(region.reclaimable_bytes for region in self.regions)

    @property
    def held_bytes(self) -> int:
        """Bytes (in memory) of generations held for writers of other clients, over all regions."""
        return sum(region.held_bytes for region in self.regions)

    @property
    def expired_consumers(self) -> int:
        """Consumers that have to begin again."""
        return sum(consumer.expired is not None for consumer in self.consumers)

    @property
    def deleted_percent(self) -> float | None:
        """Part of the rows that the base table stores which is deleted; None if not read."""
        if self.deleted_rows is None or self.base_rows is None:
            return None
        return 100 * self.deleted_rows / max(self.base_rows + self.deleted_rows, 1)

    @property
    def unflushed_wal_entries(self) -> int:
        """Log entries that no flushed generation covers, of all regions with unflushed rows."""
        return sum(region.unflushed_wal_entries for region in self.regions)

    @property
    def oldest_unflushed_seconds(self) -> float | None:
        """Age of the oldest rows that are not flushed; None when all are."""
        ages = [r.oldest_unflushed_seconds for r in self.regions]
        return max((age for age in ages if age is not None), default=None)

    @property
    def regions_to_recover(self) -> int:
        """Regions with unflushed rows of a writer that is closed or dead."""
        return sum(region.needs_recovery for region in self.regions)

    @property
    def log_problem(self) -> str | None:
        """The missing log entry with its region and the instruction; None when none is missing."""
        for region in self.regions:
            if region.missing_wal_entry is not None:
                return (
                    f"CorruptDataError: the log of region {region.region_id} lacks entry "
                    f"{region.missing_wal_entry}, and goes on behind it. Acknowledged rows are "
                    "lost with it. Restore the object from a backup, or give up every unflushed "
                    f"row of the region: memwal abandon TABLE {region.region_id} --yes"
                )
        return None

    @property
    def lost_progress(self) -> str | None:
        """The error of jobs if the base table went back behind merged generations, else None."""
        lost = {r.region_id: r.merged_before for r in self.regions if r.merged_before is not None}
        if not (lost or self.enabled_anew):
            return None
        return f"ProgressLostError: {ProgressLostError.of(lost)}"

    @property
    def oldest_backlog_seconds(self) -> float | None:
        """Age of the oldest generation of the backlog; None without a backlog."""
        ages = [r.oldest_backlog_seconds for r in self.regions if r.oldest_backlog_seconds]
        return max(ages, default=None)

    @classmethod
    def from_dict(cls, values: JsonMapping) -> Self:
        """Make a status of ``values`` as :meth:`to_dict` returns; unknown keys are ignored."""
        return cls(
            **{
                **_attributes(cls, values),
                "regions": tuple(
                    RegionBacklog(**_attributes(RegionBacklog, region))
                    for region in values["regions"]
                ),
                "indexes": tuple(
                    IndexLag(**_attributes(IndexLag, lag)) for lag in values["indexes"]
                ),
                "consumers": tuple(
                    ConsumerStatus(**_attributes(ConsumerStatus, consumer))
                    for consumer in values.get("consumers", ())
                ),
                "lost_refs": tuple(values.get("lost_refs", ())),
            }
        )


def _aged_seconds(age_seconds: float | None, seconds: float) -> float | None:
    return None if age_seconds is None else age_seconds + seconds


def _attributes(
    kind: type[TableStatus | RegionBacklog | IndexLag | ConsumerStatus], values: JsonMapping
) -> JsonObject:
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}
