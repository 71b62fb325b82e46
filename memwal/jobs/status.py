"""Status of a table: the backlog figures that policies, people and sensors act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self


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
        Number that the next flush gets.
    merged_generation : int
        Newest generation that the base table contains; 0 when none.
    backlog_generations, backlog_rows, backlog_bytes : int
        Flushed and not merged. Rows and bytes are those that the manifest records; a generation of
        a writer that does not record them counts as 0.
    oldest_backlog_seconds : float or None
        Age of the oldest generation of the backlog; None when there is none.
    unflushed_wal_entries : int
        Entries of the write-ahead log that no flushed generation covers.
    retained_generations : int
        Generations that are merged and still stored.
    reclaimable_generations, reclaimable_bytes : int
        Retained generations that every maintained index covers: the collector may delete them when
        no retained version needs them and the grace period is over. Bytes as above.
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

    Attributes
    ----------
    name : str
        Of the index.
    generations, regions : int
        Merged generations that the index does not cover, and in how many regions.
    rows : int or None
        Rows of the base table that it does not cover; None when it does not exist.
    """

    name: str
    generations: int
    regions: int
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """Backlog of a table, read in one pass.

    Attributes
    ----------
    uri : str
    version : int
        Of the base table.
    regions : tuple of RegionBacklog
    indexes : tuple of IndexLag
        One for each maintained index.
    snapshot_age_seconds : float or None
        Age of the region snapshot; None if there is none, or its time is in the future by a minute
        or more.
    changed_regions : int or None
        Regions whose manifest is not the one of the snapshot, all regions if there is no snapshot.
        None when only some regions were read.
    small_fragments : int or None
        Fragments of the base table that a compaction would replace; None if not read.
    base_rows : int or None
        Rows of the base table; None if not read.
    base_bytes : int or None
        Size on storage of the data files of the version, without indexes; None if not read, or if a
        writer did not record it.
    """

    uri: str
    version: int
    regions: tuple[RegionBacklog, ...]
    indexes: tuple[IndexLag, ...]
    snapshot_age_seconds: float | None
    changed_regions: int | None = None
    small_fragments: int | None = None
    base_rows: int | None = None
    base_bytes: int | None = None

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
    def unflushed_wal_entries(self) -> int:
        """Log entries that no flushed generation covers, over all regions."""
        return sum(region.unflushed_wal_entries for region in self.regions)

    @property
    def oldest_backlog_seconds(self) -> float | None:
        """Age of the oldest generation of the backlog; None without a backlog."""
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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a status from its plain values; unknown keys are ignored.

        Parameters
        ----------
        values : mapping
            From :meth:`to_dict`, also by way of JSON.
        """
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
            }
        )


def _attributes(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}
