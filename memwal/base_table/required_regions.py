"""Compare the regions that a table must have with the regions found.

A folder that is not found is not an empty one: its disk may not be mounted, or it was deleted. A
reader that took it for empty would return replaced and deleted rows, and a claim would start the
region over, with generation numbers that the lost folder has too.

A region must exist if it has a mark (:mod:`memwal.base_table.region_marks`) or merge progress. Its
newest manifest must then be of the incarnation that the mark names, and ahead of the merge
progress. Regions that were sealed, abandoned or trimmed keep their manifests, so none of this
concerns them.

The order of the reads does not matter: objects that compare wrongly are read again before an error
is raised. A region that was claimed, flushed or merged between the reads compares rightly then,
since its manifest was written before its mark, and before the progress. The caller goes on with the
state that it read: a new region, and generations that are merged by now, are not needed beside the
base table. A manifest of an earlier incarnation, however, must not be used: the caller has to read
again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from memwal.base_table.region_marks import (
    UNMARKED,
    RegionMark,
    check_progress,
    find_lost_progress,
    read_marks,
)
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    RegionLostError,
    TableSetupError,
)
from memwal.format.paths import MEM_WAL_DIR, REGION_MARKS_DIR, manifest_dir, region_dir
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import (
    RegionManifestStore,
    discover_regions,
    forget_manifests,
    read_manifests,
)
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore

_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class TableRegions:
    """Regions of a table as one read found them, and the version of the base table after them."""

    base: BaseTable
    manifests: Mapping[UUID, RegionManifest]  # the newest of each region that was read
    marks: Mapping[UUID, RegionMark]  # read before the base table


def read_regions(
    location: TableLocation,
    regions: Collection[UUID] | None = None,
    *,
    delete_superseded_marks: bool = False,
    without_log: bool = False,
) -> TableRegions:
    """Read the marks, the newest manifests, and then the base table, and compare them.

    With ``regions``, only these are read and compared. Costs one listing more than
    :func:`memwal.region.manifest_store.read_manifests` and
    :func:`memwal.base_table.snapshot.open_base`.

    Raises errors as :func:`check_regions` does, and TableSetupError without MemWAL, unless the
    caller can do ``without_log``: then such a table has no regions.
    """
    again = False
    while True:
        marks = read_marks(location.store, delete_superseded=delete_superseded_marks)
        manifests = read_manifests(location.store, regions)
        base = open_base(location)
        if without_log:
            base.check_supported()
        else:
            base.require_mem_wal()
        try:
            check_regions(base, marks, manifests, regions=regions)
        except ObjectNotFoundError:
            if again:
                raise
            again = True
            continue
        return TableRegions(base, manifests, marks)


def check_regions(
    base: BaseTable,
    marks: Mapping[UUID, RegionMark],
    manifests: Mapping[UUID, RegionManifest],
    *,
    regions: Collection[UUID] | None = None,
    left_out: Collection[UUID] = (),
) -> None:
    """Raise an error if a region that must exist was not found, or is older than it must be.

    ``manifests`` are the found manifests of ``regions``, by default of all regions that are not
    ``left_out``. Costs no request unless a manifest compares wrongly.

    Raises
    ------
    TableSetupError
        There are regions, but MemWAL is not enabled.
    RegionLostError
        A region has no folder or no manifest.
    CorruptDataError
        The manifest of a region is older than its mark or its merge progress.
    ObjectNotFoundError
        A manifest is of an earlier incarnation, and the newest one is not, by now: read again.
    """
    if base.index is None:
        check_no_regions(base, {*marks, *manifests, *left_out})
        return
    merged = base.details.merged
    required = {*marks, *(region_id for region_id, number in merged.items() if number)}
    if regions is not None:
        required.intersection_update(regions)
    store = base.location.store
    errors: dict[UUID, CorruptDataError] = {}
    for region_id in sorted(required.difference(left_out)):
        mark, progress = marks.get(region_id), merged.get(region_id, 0)
        found = manifests.get(region_id)
        if found is not None and _is_as_required(found, mark, progress):
            continue
        newest = RegionManifestStore(store, region_id).read_latest()
        error = region_error(store, region_id, newest, mark, progress)
        if error is not None:
            errors[region_id] = error
        elif found is not None and found.current_generation < _least(mark, progress)[0]:
            forget_manifests(store)
            raise ObjectNotFoundError(
                f"an earlier incarnation of region {region_id} was in the place of the present one "
                "a moment ago; read again"
            )
    lost = [region_id for region_id, error in errors.items() if isinstance(error, RegionLostError)]
    if lost:
        raise lost_error(store, lost)
    for error in errors.values():
        raise error


def check_no_regions(base: BaseTable, found: Collection[UUID]) -> None:
    """Raise TableSetupError if a table has regions although MemWAL is not enabled.

    Another client took the spec away: the rows that it did not merge are in no version.
    """
    if found:
        raise TableSetupError(
            f"MemWAL is not enabled on {base.location}, but it was: there are regions, such as "
            f"{min(found)}, and rows of theirs that are not merged would be missed. Enable it "
            f"again, memwal enable {base.location.uri}, or, if nobody needs these rows, delete the "
            f"folders {MEM_WAL_DIR} and {REGION_MARKS_DIR}"
        )


def check_not_held(base: BaseTable) -> None:
    """Raise an error if jobs on the base table are held: MemWAL was taken away, or progress lost.

    Costs one listing, and one more without MemWAL.
    """
    base.check_supported()
    store = base.location.store
    if base.index is None:
        check_no_regions(base, {*read_marks(store), *discover_regions(store)})
    check_progress(find_lost_progress(base))


def check_any_found(store: ObjectStore) -> None:
    """Raise RegionLostError if nothing at all is found of the regions of a table.

    For the claim of a new region, which must not be made in an empty folder where regions were,
    such as the place where a disk is to be mounted. Costs two requests, or one.
    """
    # In this order: of a region that another claim makes now, the manifest is stored first.
    if _has_any(store, REGION_MARKS_DIR) and not _has_any(store, MEM_WAL_DIR):
        raise lost_error(store, list(read_marks(store)))


def region_error(
    store: ObjectStore,
    region_id: UUID,
    newest: RegionManifest | None,
    mark: RegionMark | None,
    progress: int,
) -> CorruptDataError | None:
    """Return the error for a region that is lost, or is older than it must be; None for others.

    ``newest`` is its newest manifest, read after the mark and the merge progress; None for none.
    """
    if newest is None:
        return lost_error(store, [region_id]) if mark is not None or progress else None
    if _is_as_required(newest, mark, progress):
        return None
    first, merged = _least(mark, progress)
    generation = newest.current_generation
    if generation < first:
        return CorruptDataError(
            f"{region_dir(region_id)} has an earlier incarnation of region {region_id}, which was "
            f"given up as lost: it ends before generation {generation}, and the incarnation that "
            f"replaced it begins at generation {first}. Nothing was changed: move the earlier "
            "folder away, or unmount it, put the later one back, and write the rows again that "
            "only the earlier one has"
        )
    return CorruptDataError(
        f"the manifest of region {region_id} is at generation {generation}, but generation "
        f"{merged} is merged into the base table: the manifest is older than the base table. "
        f"Nothing was changed: restore both from one backup, or {_give_up(region_id)}"
    )


def _least(mark: RegionMark | None, progress: int) -> tuple[int, int]:
    """Return the first generation that a region may be at, and the last one that is merged."""
    mark = mark or UNMARKED
    return mark.first, max(mark.merged, progress)


def _is_as_required(manifest: RegionManifest, mark: RegionMark | None, progress: int) -> bool:
    first, merged = _least(mark, progress)
    return manifest.current_generation >= first and manifest.current_generation > merged


def _has_any(store: ObjectStore, prefix: str) -> bool:
    return next(iter(store.list(prefix)), None) is not None


def lost_error(store: ObjectStore, lost: Sequence[UUID]) -> RegionLostError:
    """Return the error for regions that must exist and are not found. Costs a few requests."""
    named = lost[:_MAX_NAMED]
    names = ", ".join(map(str, named))
    more = f" and {len(lost) - len(named)} others" if len(lost) > len(named) else ""
    if _has_any(store, MEM_WAL_DIR):
        where = "; ".join(_missing_part(store, region_id) for region_id in named)
    else:
        where = f"nothing is below {MEM_WAL_DIR}"
    return RegionLostError(
        f"{store.uri} must have region {names}{more}, which is not found: {where}. Nothing was "
        "changed. If its disk is not mounted, mount it; if it was moved or deleted, put it back, "
        f"or restore it from a backup. If it is lost for good, {_give_up(lost[0])}"
    )


def _missing_part(store: ObjectStore, region_id: UUID) -> str:
    if _has_any(store, region_dir(region_id)):
        return f"{manifest_dir(region_id)} has no manifest"
    return f"{region_dir(region_id)} is missing"


def _give_up(region_id: UUID) -> str:
    return (
        f"memwal recover TABLE --region-lost {region_id} gives its unmerged rows up and starts it "
        "over"
    )
