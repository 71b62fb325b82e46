"""Keys of which several regions have rows that are not merged.

Nothing records which of the rows is newer: clients wrote to regions that are for the same rows, see
:mod:`memwal.lsm.region_places`. Reads show the row of the higher generation, and of the higher
region id if these are equal. The merge holds the regions, so that no row is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.jobs.job import SkippedRegion
from memwal.jobs.options import MergeOptions
from memwal.lsm.key_matches import newest_row_positions
from memwal.lsm.region_places import RegionPlaces
from memwal.reader.latest import read_keys
from memwal.reader.sources.generation import open_generation
from memwal.region.manifest_store import discover_regions, read_manifests
from memwal.region.rows import key_column


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Keys that a region shares with others."""

    count: int
    example: str
    others: tuple[UUID, ...]  # regions that have any of the keys, sorted


def find_shared_keys(
    base: BaseTable, manifests: Iterable[RegionManifest]
) -> dict[UUID, SharedKeys]:
    """Find the regions whose pending generations have a key of another region's.

    Reads nothing unless two regions with pending generations may have the same keys; then the keys
    of all these generations. Of a region, generations behind one that cannot be read do not count:
    they are not merged either. ``manifests`` are older than ``base``.
    """
    found: dict[UUID, SharedKeys] = {}
    places = RegionPlaces(base)
    pending = filter(places.is_pending, manifests)
    for group in places.rivals(pending) if base.primary_key else ():
        keys = [_pending_keys(base, manifest) for manifest in group]
        together = pa.concat_arrays(keys)
        last = newest_row_positions(together)
        if len(last) == len(together):
            continue
        repeated = pc.unique(together.take(pa.array(np.delete(np.arange(len(together)), last))))
        of_each = [pc.filter(own, pc.is_in(own, value_set=repeated)) for own in keys]
        for manifest, own in zip(group, of_each, strict=True):
            if len(own):
                others = [
                    other.region_id
                    for other, theirs in zip(group, of_each, strict=True)
                    if other is not manifest and pc.any(pc.is_in(theirs, value_set=own)).as_py()
                ]
                found[manifest.region_id] = SharedKeys(len(own), str(own[0]), tuple(sorted(others)))
    return found


def held_regions(
    base: BaseTable, manifests: Mapping[UUID, RegionManifest], options: MergeOptions
) -> tuple[SkippedRegion, ...]:
    """Return the regions that a merge leaves out because they have a key of another region.

    The merge could not know which row is newer, and would insert the key twice. A region is
    compared in full, with all regions of the table, even if the merge takes only a part of it,
    except that a sealed region is compared with sealed ones of the same merge only: its rows are
    the older ones, see :func:`memwal.retire_region`. Generations that are flushed after this are
    not in the plan.

    ``manifests`` are those of the regions that the options name. If they name some, this costs one
    listing, and the other manifests if another client has made a region.
    """
    every = manifests
    store = base.location.store
    if options.regions is not None and RegionPlaces(base).foreign(discover_regions(store)):
        every = {**read_manifests(store), **manifests}
    chosen = manifests.keys() - {*options.skip_regions}
    held = []
    for region_id, keys in find_shared_keys(base, every.values()).items():
        others = keys.others
        if every[region_id].status == RegionStatus.SEALED:
            others = tuple(
                other
                for other in others
                if other in chosen and every[other].status == RegionStatus.SEALED
            )
        if others and region_id in chosen:
            merged = base.details.merged.get(region_id, 0)
            numbers = (flushed.generation for flushed in every[region_id].flushed)
            reason = (
                f"{keys.count} keys, {keys.example} among them, also have rows in region "
                f"{', '.join(map(str, others))}, and nothing records which are newer. Retire the "
                f"region with the older rows: memwal retire-region {base.location} REGION"
            )
            first = min(number for number in numbers if number > merged)
            held.append(SkippedRegion(region_id=str(region_id), generation=first, reason=reason))
    return tuple(held)


def _pending_keys(base: BaseTable, manifest: RegionManifest) -> pa.Array:
    schema = pa.schema([base.schema.field(name) for name in base.primary_key])
    parts: Sequence[pa.Array] = [key_column(schema.empty_table(), base.primary_key)]
    for flushed in manifest.flushed:
        if flushed.generation <= base.details.merged.get(manifest.region_id, 0):
            continue
        try:
            source = open_generation(base, manifest.region_id, flushed.generation, flushed.path)
            parts = [*parts, read_keys(source, base.primary_key).keys]
        except (CorruptDataError, ObjectNotFoundError):
            break
    keys = pa.concat_arrays(parts)
    return keys.take(pa.array(newest_row_positions(keys)))
