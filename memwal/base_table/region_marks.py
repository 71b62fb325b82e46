"""Region marks: which regions a table must have, stored outside of their folders.

A mark is an empty object ``_memwal_regions/{region id}/{era}-{first}-{merged}``, whose name is the
fact. Marks show that the folder of a region is gone, or that the base table lost merge progress,
which neither of the two can show of itself. The clients of Lance do not know them.

Marks are only ever added, and the largest (era, first, merged) of a region is in force. No
compare-and-swap is therefore needed. Processes that pause, die or repeat:

* a process pauses before it writes a mark: the mark that it writes later is smaller than, or equal
  to, the one in force by then, and changes nothing. It must carry the era that was read before the
  step that it records: an era is raised by a person's decision, after which earlier facts are void;
* a process dies before it writes a mark: the mark is absent, or its ``merged`` is behind the base
  table. The next merge plan writes it, see :func:`raise_marks`. A reader therefore takes a mark
  that is behind for normal;
* a process repeats: it writes the same name.

Writers of a mark, after the step that it records: a claim after the first manifest of a region and
before it accepts a row; a merge after the commit of its progress; the merge plan for regions of
other clients, and for marks that are behind; the collector *before* it drops generations; a copy
before it is a table.

A mark may be compared with the merge progress of a version of the base table only if it was read
before that version was opened, or if a version that was opened afterwards compares in the same way:
a merge that ends between the two reads is not lost progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ProgressLostError
from memwal.format.paths import (
    REGION_MARKS_DIR,
    parse_region_mark_key,
    region_mark_key,
    region_marks_dir,
)
from memwal.region.manifest_store import parallel_reads
from memwal.storage.object_store import ObjectStore, create_settled
from memwal.util.concurrency import map_parallel


@dataclass(frozen=True, slots=True, order=True)
class RegionMark:
    """State of a region that is known outside of its folder. The larger of two marks holds."""

    era: int = 1  # raised only when a person decides that the earlier marks do not hold any more
    first: int = 1  # first generation of the region's present folder
    merged: int = 0  # highest generation known to be merged into the base table; 0 for none


UNMARKED: Final = RegionMark()
"""Mark of a region whose first generation is 1, before any merge."""


def read_marks(store: ObjectStore, *, delete_superseded: bool = False) -> dict[UUID, RegionMark]:
    """Read the mark of each region that has one. Costs one listing.

    With ``delete_superseded``, the smaller marks of each region are deleted.
    """
    return _read(store, REGION_MARKS_DIR, delete_superseded=delete_superseded)


def read_mark(store: ObjectStore, region_id: UUID) -> RegionMark | None:
    """Read the mark of a region; None if it has none. Costs one listing of its marks."""
    return _read(store, region_marks_dir(region_id)).get(region_id)


def write_marks(store: ObjectStore, marks: Mapping[UUID, RegionMark]) -> None:
    """Write one mark per region, in parallel. A mark that exists already is not an error.

    Raises OutcomeUnknownError or another StoreError if a mark may not be stored.
    """

    def write(region_id: UUID) -> None:
        mark = marks[region_id]
        create_settled(store, region_mark_key(region_id, mark.era, mark.first, mark.merged), b"")

    if len(marks) <= 1:
        for region_id in marks:
            write(region_id)
    else:
        map_parallel(write, marks, threads=parallel_reads(store))


def raise_marks(
    store: ObjectStore, marks: Mapping[UUID, RegionMark], merged: Mapping[UUID, int]
) -> dict[UUID, RegionMark]:
    """Write the marks of regions that have none, or whose mark is behind their merge progress.

    ``marks`` were read before the version of the base table whose progress is ``merged``; regions
    that are not in ``merged`` are left alone. Returns the marks in force of the regions in
    ``merged``.
    """
    in_force = {}
    to_write = {}
    for region_id, progress in merged.items():
        mark = marks.get(region_id)
        in_force[region_id] = mark or UNMARKED
        if mark is None or mark.merged < progress:
            raised = replace(in_force[region_id], merged=max(in_force[region_id].merged, progress))
            in_force[region_id] = to_write[region_id] = raised
    write_marks(store, to_write)
    return in_force


def marks_of(base: BaseTable) -> dict[UUID, RegionMark]:
    """Read marks that may be compared with the merge progress of ``base``, which is open already.

    Costs one listing. If the base table seems to lack progress, its newest version is opened: a
    merge may have ended since ``base`` was, which is then no loss. A table without MemWAL has no
    progress that it could lose.
    """
    if base.index is None:
        return {}
    store = base.location.store
    marks = read_marks(store)
    seems = lost_progress(marks, base.details.merged)
    lost = seems and lost_progress(marks, open_base(base.location).details.merged)
    for region_id in seems.keys() - lost.keys():
        merged = base.details.merged.get(region_id, 0)
        marks[region_id] = replace(marks[region_id], merged=merged)
    return marks


def lost_progress(marks: Mapping[UUID, RegionMark], merged: Mapping[UUID, int]) -> dict[UUID, int]:
    """Return the regions whose merge progress the base table lost, and how far they were merged.

    ``marks`` were read before the version of the base table with the progress ``merged``, or by
    :func:`marks_of`.
    """
    return {
        region_id: mark.merged
        for region_id, mark in marks.items()
        if mark.merged > merged.get(region_id, 0)
    }


def find_lost_progress(base: BaseTable) -> dict[UUID, int]:
    """Return the lost progress as :func:`lost_progress` does, at the cost of :func:`marks_of`."""
    return lost_progress(marks_of(base), base.details.merged)


def check_progress(lost: Mapping[UUID, int]) -> None:
    """Raise ProgressLostError if the base table lost merge progress."""
    if lost:
        raise ProgressLostError.of(lost)


def _read(
    store: ObjectStore, prefix: str, *, delete_superseded: bool = False
) -> dict[UUID, RegionMark]:
    marks: dict[UUID, list[RegionMark]] = {}
    for info in store.list(prefix):
        parsed = parse_region_mark_key(info.key)
        if parsed is not None:
            region_id, numbers = parsed
            marks.setdefault(region_id, []).append(RegionMark(*numbers))
    if delete_superseded:
        store.delete_many(
            region_mark_key(region_id, mark.era, mark.first, mark.merged)
            for region_id, of_region in marks.items()
            for mark in sorted(of_region)[:-1]
        )
    return {region_id: max(of_region) for region_id, of_region in marks.items()}
