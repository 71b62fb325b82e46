"""Sources of a read: the base table and the unmerged generations (spec: MemTable Collection).

A read during which a generation is collected starts over with a new collection of sources. The
generation is in the base table by then, so the new read finds its rows there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, TypeVar
from uuid import UUID

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ConflictError, InvalidInputError, ObjectNotFoundError
from memwal.format.region_manifest import RegionManifest
from memwal.lsm.memtable.unflushed import UnflushedRows
from memwal.reader.sources.generation import GenerationSource, open_all, open_memtable
from memwal.reader.sources.key_routing import WantedKeys
from memwal.reader.sources.pruning import PrunedRegion, RegionPruner
from memwal.reader.sources.snapshot import moment, past_base
from memwal.region.manifest_store import read_manifests
from memwal.storage.location import TableLocation

_log = logging.getLogger(__name__)

MemTables = Mapping[UUID, Sequence[UnflushedRows]]
"""What writers hold and have not flushed, by region."""

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class MergedGeneration:
    """A flushed generation that the base table contains and that is still stored.

    Until an index of the base table has caught up, the generation's own index answers for its
    rows (spec: Indexed Read Plan).
    """

    region_id: UUID
    generation: int
    path: str


@dataclass(frozen=True, slots=True)
class ReadSources:
    """Everything that one read needs, at one moment.

    Attributes
    ----------
    base : BaseTable
        Pinned version of the base table.
    generations : tuple of GenerationSource
        What the base table does not contain, oldest first within each region.
    merged : tuple of MergedGeneration
        What the base table contains and the collector has left.
    manifests : mapping of UUID to RegionManifest
        What the regions said.
    pruned : tuple of PrunedRegion
        Regions that the filter rules out.
    consistency : {"strong", "fresh", "eventual", "version"}
        With unflushed rows of this process, with all that is flushed, with what was flushed at
        ``snapshot_time``, or the base table alone.
    snapshot_time : datetime or None
    left_out : tuple of PrunedRegion
        What a read of a version does not see.
    """

    base: BaseTable
    generations: tuple[GenerationSource, ...]
    merged: tuple[MergedGeneration, ...] = ()
    manifests: Mapping[UUID, RegionManifest] = field(default_factory=dict)
    pruned: tuple[PrunedRegion, ...] = ()
    consistency: Literal["strong", "fresh", "eventual", "version"] = "fresh"
    snapshot_time: datetime | None = None
    left_out: tuple[PrunedRegion, ...] = ()


def collect_sources(
    location: TableLocation,
    memtables: MemTables | None = None,
    *,
    regions: Collection[UUID] | None = None,
    filter: str | None = None,
    keys: WantedKeys | None = None,
    max_staleness: timedelta | None = None,
) -> ReadSources:
    """Collect the sources of a read (spec: MemTable Collection).

    The order makes it right whatever runs at the same time: MemTables (which the caller took
    before), then region manifests, then the base table. A MemTable that was flushed meanwhile is
    in a manifest as well, a generation that was merged meanwhile is in the base table as well,
    and a row that is seen twice is the same row. The other way round, rows would be missed.

    Parameters
    ----------
    memtables : mapping, optional
        What writers of this process hold; with it the read sees what they acknowledged.
    regions : collection of UUID, optional
        The only regions whose generations matter to the read; all by default.
    filter : str, optional
        What the read filters by. Regions in which no row can pass are left out; the rows that are
        read still have to be filtered.
    keys : callable, optional
        The only keys that matter to the read, as columns in the types of a version of the base
        table. Regions that cannot have them are not asked, as far as that is known in advance.
    max_staleness : timedelta, optional
        How old a snapshot of the regions may be that the read makes do with; see ``moment``.

    Raises
    ------
    InvalidInputError
        MemTables were given and staleness was allowed: newer rows would be seen without older ones.
    TableSetupError
        No table, no primary key, or no MemWAL.
    ConflictError
        Generations vanish faster than they can be opened; the collector's grace is too short.
    """
    if memtables is not None and max_staleness is not None:
        raise InvalidInputError(
            "a writer's own reads see what it acknowledged and cannot be stale; read the table "
            "instead, or leave max_staleness out"
        )
    for _ in range(_ATTEMPTS):
        seen = moment(location, regions=regions, keys=keys, max_staleness=max_staleness)
        base, manifests = seen.base, seen.manifests
        merged = base.details.merged
        pruned = _pruned(base, manifests, memtables or {}, filter)
        left_out = {region.region_id for region in pruned}
        wanted = [
            (region_id, flushed)
            for region_id, manifest in manifests.items()
            if region_id not in left_out
            for flushed in manifest.flushed
            if flushed.generation > merged.get(region_id, 0)
        ]
        try:
            flushed_sources = open_all(base, wanted)
        except ObjectNotFoundError:
            # Merged and collected since the manifest was read: the base table has it by now.
            continue
        sources = flushed_sources + [
            open_memtable(base, region_id, unflushed)
            for region_id, tables in (memtables or {}).items()
            if region_id not in left_out
            for unflushed in tables
            if unflushed.generation > merged.get(region_id, 0)
            and _is_unflushed(unflushed, manifests.get(region_id))
        ]
        return ReadSources(
            base=base,
            generations=tuple(sorted(sources, key=lambda source: source.generation)),
            merged=tuple(
                MergedGeneration(region_id, flushed.generation, flushed.path)
                for region_id, manifest in manifests.items()
                for flushed in manifest.flushed
                if flushed.generation <= merged.get(region_id, 0)
            ),
            manifests=manifests,
            pruned=pruned,
            consistency=(
                "strong"
                if memtables is not None
                else "fresh"
                if seen.snapshot_time is None
                else "eventual"
            ),
            snapshot_time=seen.snapshot_time,
        )
    raise ConflictError(
        f"generations of {location} were collected before they could be read, {_ATTEMPTS} times; "
        "give the garbage collector a longer grace period; if they are lost, memwal verify "
        "--repair may make them again from the log"
    )


def _pruned(
    base: BaseTable,
    manifests: Mapping[UUID, RegionManifest],
    memtables: MemTables,
    filter: str | None,
) -> tuple[PrunedRegion, ...]:
    """Regions that a filter rules out, of those that have anything to read."""
    if filter is None:
        return ()
    pruner = RegionPruner(base, filter)
    pruned = []
    for region_id, manifest in manifests.items():
        merged = base.details.merged.get(region_id, 0)
        found = {flushed.generation for flushed in manifest.flushed}
        found |= {unflushed.generation for unflushed in memtables.get(region_id, ())}
        numbers = tuple(sorted(number for number in found if number > merged))
        if numbers and (reason := pruner.reason_against(manifest)) is not None:
            pruned.append(PrunedRegion(region_id, numbers, reason))
    return tuple(pruned)


def collect_version(location: TableLocation, version: int | str) -> ReadSources:
    """The base table alone, exactly as it was, and what that leaves out.

    What was flushed and not merged at that version is not seen; how much of it is still stored is
    logged as a warning.

    Parameters
    ----------
    version : int or str
        A version of the base table, or a tag.

    Raises
    ------
    InvalidInputError
        There is no such tag.
    TableSetupError
        There is no table, or not that version any more.
    """
    base = past_base(location, version)
    merged = base.details.merged
    left_out = tuple(
        PrunedRegion(region_id, numbers, f"not in version {base.version} of the base table")
        for region_id, manifest in read_manifests(location.store).items()
        if (
            numbers := tuple(
                flushed.generation
                for flushed in manifest.flushed
                if flushed.generation > merged.get(region_id, 0)
            )
        )
    )
    if left_out:
        _log.warning(
            "version %d of %s is read without %d generations of %d regions that were merged later "
            "or not at all",
            base.version,
            location,
            sum(len(region.generations) for region in left_out),
            len(left_out),
        )
    return ReadSources(base=base, generations=(), consistency="version", left_out=left_out)


def _is_unflushed(unflushed: UnflushedRows, manifest: RegionManifest | None) -> bool:
    """Whether no flushed generation has the rows.

    Once the manifest has moved past the generation, somebody flushed it: the writer itself since
    we looked, or one that fenced it, replayed its log and then wrote newer rows beside.
    """
    return manifest is None or unflushed.generation >= manifest.current_generation


Result = TypeVar("Result")


def while_collected(read: Callable[[], Result]) -> Result:
    """Run a read again when something that it needs is gone.

    A generation that was collected in between is in the base table by then, so that a read which
    starts over finds its rows there.

    Parameters
    ----------
    read : callable
        Collects the sources anew each time.

    Raises
    ------
    ObjectNotFoundError
        It is gone each time: the table is damaged.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(ObjectNotFoundError),
        stop=stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    return retrying(read)
