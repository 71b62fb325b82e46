"""What a table's backlog looks like: the figures that policies, people and sensors act on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionBacklog:
    """Backlog of one region.

    Attributes
    ----------
    region_id : str
        UUID as text.
    writer_epoch : int
        Epoch of the latest claim.
    sealed : bool
        The region takes no more writes.
    current_generation : int
        Generation that the MemTable in memory will be flushed as.
    merged_generation : int
        Newest generation that the base table contains; 0 when none.
    backlog_generations, backlog_rows, backlog_bytes : int
        Flushed and not merged. Rows and bytes count what the manifest tells; generations of
        writers that do not record them count as 0.
    oldest_backlog_seconds : float or None
        Age of the oldest generation of the backlog; None when there is none.
    unflushed_wal_entries : int
        Entries of the write-ahead log that no flushed generation covers.
    retained_generations : int
        Generations that are merged and still stored.
    reclaimable_generations, reclaimable_bytes : int
        Of the retained ones, those that every maintained index covers: the collector may take them
        when no version that is kept needs them, and readers had their time. Bytes as above.
    """

    region_id: str
    writer_epoch: int
    sealed: bool
    current_generation: int
    merged_generation: int
    backlog_generations: int
    backlog_rows: int
    backlog_bytes: int
    oldest_backlog_seconds: float | None
    unflushed_wal_entries: int
    retained_generations: int
    reclaimable_generations: int = 0
    reclaimable_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLag:
    """How far one maintained index is behind the merge progress.

    ``generations`` counts, over all regions, merged generations that the index does not cover.
    """

    name: str
    generations: int
    regions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """Backlog of a table, read in one pass."""

    uri: str
    version: int
    regions: tuple[RegionBacklog, ...]
    indexes: tuple[IndexLag, ...]
    snapshot_age_seconds: float | None

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
        """Bytes (in memory) of generations that nothing but retention holds, over all regions."""
        return sum(region.reclaimable_bytes for region in self.regions)

    @property
    def unflushed_wal_entries(self) -> int:
        """Entries of the logs that no flushed generation covers, over all regions."""
        return sum(region.unflushed_wal_entries for region in self.regions)

    @property
    def oldest_backlog_seconds(self) -> float | None:
        """Age of the oldest generation of the backlog; None when there is none."""
        ages = [r.oldest_backlog_seconds for r in self.regions if r.oldest_backlog_seconds]
        return max(ages, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, with the sums."""
        return {
            **asdict(self),
            "backlog_generations": self.backlog_generations,
            "backlog_rows": self.backlog_rows,
            "backlog_bytes": self.backlog_bytes,
            "unflushed_wal_entries": self.unflushed_wal_entries,
            "oldest_backlog_seconds": self.oldest_backlog_seconds,
            "reclaimable_bytes": self.reclaimable_bytes,
        }
