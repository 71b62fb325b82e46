"""What a read is going to do, without doing it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from memwal.reader.sources.collect import ReadSources
from memwal.reader.sources.pruning import PrunedRegion


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """Something that is read.

    Attributes
    ----------
    kind : {"memtable", "generation", "base"}
    region_id : UUID or None
        None for the base table.
    generation : int
        0 for the base table.
    rows : int or None
        Stored rows, superseded ones and tombstones included; None when nobody recorded it.
    """

    kind: Literal["memtable", "generation", "base"]
    region_id: UUID | None
    generation: int
    rows: int | None

    def __str__(self) -> str:
        rows = "" if self.rows is None else f", {self.rows} rows"
        if self.kind == "base":
            return f"base table{rows}"
        return f"{self.kind} {self.generation} of region {self.region_id}{rows}"


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a read sees, what of it is read, and what is not.

    Attributes
    ----------
    table : str
        URI of the table.
    version : int
        Of the base table.
    consistency : {"strong", "fresh", "eventual", "version"}
        Whether unflushed rows of this process are seen, all flushed ones, those flushed up to
        ``snapshot_time``, or the base table alone.
    snapshot_time : datetime or None
        With eventual consistency: when the regions were looked at.
    sources : tuple of PlannedSource
        What is read, newest first.
    pruned : tuple of PrunedRegion
        Regions that the filter rules out.
    left_out : tuple of PrunedRegion
        What a read of a version does not see.
    base_plan : str
        How Lance reads the base table.
    """

    table: str
    version: int
    consistency: Literal["strong", "fresh", "eventual", "version"]
    snapshot_time: datetime | None
    sources: tuple[PlannedSource, ...]
    pruned: tuple[PrunedRegion, ...]
    left_out: tuple[PrunedRegion, ...]
    base_plan: str

    def to_dict(self) -> dict[str, Any]:
        """The plan as what JSON has: ids and times as text."""
        found: dict[str, Any] = _plain(asdict(self))
        return found

    def __str__(self) -> str:
        since = f", regions as of {self.snapshot_time}" if self.snapshot_time else ""
        lines = [f"{self.table}, version {self.version} ({self.consistency}{since})", "read:"]
        lines += [f"  {source}" for source in self.sources]
        for title, regions in (("ruled out:", self.pruned), ("left out:", self.left_out)):
            lines += [title] * bool(regions)
            lines += [
                f"  region {region.region_id}, generations "
                f"{', '.join(map(str, region.generations))}: {region.reason}"
                for region in regions
            ]
        lines += ["base table:", *(f"  {line}" for line in self.base_plan.splitlines())]
        return "\n".join(lines)


def plan_of(sources: ReadSources, base_plan: str) -> ReadPlan:
    """Describe what was collected for a read.

    Parameters
    ----------
    base_plan : str
        How Lance reads the base table.
    """
    recorded = {
        (region_id, flushed.generation): flushed.rows
        for region_id, manifest in sources.manifests.items()
        for flushed in manifest.flushed
    }
    found = [
        PlannedSource(
            kind="generation" if source.is_flushed else "memtable",
            region_id=source.region_id,
            generation=source.generation,
            rows=(
                recorded.get((source.region_id, source.generation))
                if source.is_flushed or source.snapshot is None
                else source.snapshot.view.rows
            ),
        )
        for source in reversed(sources.generations)
    ]
    found.append(PlannedSource("base", None, 0, sources.base.dataset.count_rows()))
    return ReadPlan(
        table=sources.base.location.uri,
        version=sources.base.version,
        consistency=sources.consistency,
        snapshot_time=sources.snapshot_time,
        sources=tuple(found),
        pruned=sources.pruned,
        left_out=sources.left_out,
        base_plan=base_plan,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value
