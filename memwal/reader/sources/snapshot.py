"""Table snapshots for reads: latest, bounded-stale, or a fixed base-table version."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from memwal.base_table.fragments import FragmentStates
from memwal.base_table.refs import user_tag_names
from memwal.base_table.region_marks import RegionMark, lost_progress, read_marks
from memwal.base_table.region_snapshot import (
    MAX_CLOCK_SKEW_SECONDS,
    read_usable_snapshot,
    snapshot_age,
)
from memwal.base_table.required_regions import check_regions
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import InvalidInputError, ObjectNotFoundError, StoreUnavailableError
from memwal.format.lance_files import fragment_states
from memwal.format.lance_manifest import manifest_message
from memwal.format.paths import REGION_MARKS_DIR
from memwal.format.region_manifest import RegionManifest
from memwal.reader.sources.cache import LruCache, VersionTag, invalidate_stale, version_key
from memwal.reader.sources.pruning import KeyBuilder, candidate_regions, routes_alike
from memwal.region.manifest_store import forget_manifests, read_manifests
from memwal.storage.location import TableLocation
from memwal.storage.object_store import STAMP_SETTLES_NS
from memwal.util.clock import boot_seconds

_OPEN_BASES: Final = 4
_MARKS_SECONDS: Final = 60.0


class _SeenMarks(NamedTuple):
    """Region marks as a process listed them, after a version of the base table was opened."""

    at: float
    marks: Mapping[UUID, RegionMark]
    lost: Mapping[UUID, int]  # progress that the version lost
    found: frozenset[UUID]  # regions that reads of the version have found since
    # When a region got its first mark last, on a local disk; None if another one may have since.
    stamp: int | None


_bases: LruCache[BaseTable] = LruCache(_OPEN_BASES)
# The newest version of each table that a read has seen.
_newest_seen: LruCache[BaseTable] = LruCache(_OPEN_BASES)
# Versions that were read by their number or tag.
_past: LruCache[BaseTable] = LruCache(_OPEN_BASES, never_stale=True)
# The version of each table for which stale values were removed last.
_invalidated: LruCache[VersionTag] = LruCache(10_000, never_stale=True)
_region_snapshots: LruCache[dict[UUID, RegionManifest]] = LruCache(8)
_region_marks: LruCache[_SeenMarks] = LruCache(1_000)
_fragments: LruCache[FragmentStates] = LruCache(8)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A base-table version and the region manifests that were read before it."""

    base: BaseTable
    # Never newer than the base table: a generation that was merged and dropped from them is
    # in it. Empty for a version that is read alone.
    manifests: Mapping[UUID, RegionManifest]
    # When the region snapshot of the MemWAL index was made; None if the manifests were read.
    snapshot_time: datetime | None = None
    marks: Mapping[UUID, RegionMark] = field(default_factory=dict)  # of the regions, and others
    # Regions that were merged further than the base table tells, and how far: see ``progress``.
    lost: Mapping[UUID, int] = field(default_factory=dict)

    @property
    def progress(self) -> Mapping[UUID, int]:
        """Newest generation of each region that is not read beside the base table.

        That is the newest one that was ever merged into it, also if the base table went back since:
        its rows would hide newer ones of the base table, or bring back rows that were deleted
        there.
        """
        merged = self.base.details.merged
        return {**merged, **self.lost} if self.lost else merged


def open_snapshot(
    location: TableLocation,
    *,
    regions: Collection[UUID] | None = None,
    keys: KeyBuilder | None = None,
    reuse: bool = True,
    unchecked: bool = False,
) -> TableSnapshot:
    """Open the snapshot for a read that starts now.

    A region that must exist and is not found is an error: one listing of the region marks, for each
    version of the base table, once a minute, and when a region is missing that was found, shows it.

    With ``regions``, only their manifests are read. ``keys`` are those of a lookup: if they
    determine the regions, no manifest of another region is read. The first read of a process opens
    the base table before them to find that out. With ``reuse``, manifests that
    this process read some seconds ago are used if they still are the newest; with ``unchecked``,
    they are used as they are.

    Raises TableSetupError without a table, and errors as
    :func:`memwal.base_table.required_regions.check_regions` does.
    """
    before, keyed = _newest_seen.use(_location_key(location)), None
    if keys is not None and regions is None:
        before = before or _newest(location)
        keyed = candidate_regions(location, before, keys)
    candidates = regions if keyed is None else keyed.regions
    # The manifests first: a generation that is merged in between is then in the base table too.
    manifests = read_manifests(location.store, candidates, reuse=reuse, unchecked=unchecked)
    base = _newest(location)
    # Versions only go on: otherwise the table was replaced by another one.
    if before is not None and (
        base.version < before.version
        or (base.version == before.version and base.digest != before.digest)
    ):
        forget_manifests(location.store)
        manifests = read_manifests(location.store, candidates)
        base = _newest(location)
    if before is not None and keyed is not None and not routes_alike(before, base):
        # The regions of the keys were determined by a routing that has changed since: read all.
        keyed = None
        manifests = read_manifests(location.store)
        base = _newest(location)
    left_out = frozenset[UUID]() if keyed is None else keyed.left_out
    seen_marks = _read_marks(base, manifests, regions=regions, left_out=left_out)
    check_regions(base, seen_marks.marks, manifests, regions=regions, left_out=left_out)
    required = seen_marks.marks.keys() - left_out
    required = required if regions is None else required.intersection(regions)
    if required - manifests.keys():
        # It is found by now: its folder was away for a moment, or it was claimed since.
        manifests = read_manifests(location.store, regions if keyed is None else keyed.regions)
        base = _newest(location)
        if required - manifests.keys():
            raise StoreUnavailableError(f"regions of {location} are not in their place; try again")
        seen_marks = _read_marks(base, manifests, regions=regions, left_out=left_out)
        check_regions(base, seen_marks.marks, manifests, regions=regions, left_out=left_out)
    if seen_marks.lost and _newest(location).version != base.version:
        return open_snapshot(location, regions=regions, keys=keys, reuse=reuse)
    return TableSnapshot(base, manifests, None, seen_marks.marks, seen_marks.lost)


def open_stale_snapshot(
    location: TableLocation,
    max_age: timedelta,
    *,
    keys: KeyBuilder | None = None,
    reuse: bool = True,
    clock: Callable[[], float] = time.time,
) -> TableSnapshot:
    """Open a snapshot whose regions may be as old as ``max_age``.

    If the region snapshot in the MemWAL index is not older, it replaces the manifests, and no
    request goes to any region. The read then misses generations that were flushed since, and sees
    generations that were merged since. Without such a snapshot the manifests are read:
    :func:`open_snapshot`, which explains the other parameters and the errors. How the age is
    bounded although clocks differ: :func:`_is_younger`. ``clock`` returns seconds since the epoch.
    """
    base = _newest(location)
    is_usable = _is_younger(base, max_age.total_seconds(), clock())
    published = _read_region_snapshot(base) if is_usable else None
    if published is None:
        return open_snapshot(location, keys=keys, reuse=reuse)
    seen_marks = _read_marks(base, published)
    if seen_marks.lost and _newest(location).version != base.version:
        return open_stale_snapshot(location, max_age, keys=keys, reuse=reuse, clock=clock)
    snapshot_time = datetime.fromtimestamp(base.details.snapshot_ts_millis / 1000, UTC)
    return TableSnapshot(base, published, snapshot_time, seen_marks.marks, seen_marks.lost)


def _read_marks(
    base: BaseTable,
    found: Collection[UUID],
    *,
    regions: Collection[UUID] | None = None,
    left_out: Collection[UUID] = (),
) -> _SeenMarks:
    """Return the marks of all regions, and the merge progress that the version lost.

    They are as they were when the version was first read, or a minute ago: one listing each. A
    version does not lose progress later, only a newer version goes back. On a local disk, where a
    folder may go away, they are listed again once a region was claimed since. In an object store
    the loss of such a region is noticed by processes that have found it, which list them again.

    ``found`` has the manifests of ``regions`` that were found, by default of all regions that are
    not ``left_out``.

    If progress is lost and a newer version exists, the caller begins again with it: a merge ended
    since ``base`` was opened, whose rows it lacks, or the progress of rows that it has was decided.
    """
    key = version_key(base)
    seen = _region_marks.use(key)
    stamp = base.location.store.folder_stamp(REGION_MARKS_DIR)
    if seen is not None and seen.stamp == stamp and boot_seconds() - seen.at < _MARKS_SECONDS:
        missing = seen.found.difference(found, left_out)
        if not (missing if regions is None else missing.intersection(regions)):
            if not seen.found.issuperset(found):
                seen = seen._replace(found=seen.found.union(found))
                _region_marks.put(key, seen)
            return seen
    if stamp is not None and time.time_ns() - stamp < STAMP_SETTLES_NS:
        # Another mark may get the same time.
        stamp = None
    at, marks = boot_seconds(), read_marks(base.location.store)
    lost = lost_progress(marks, base.details.merged)
    seen = _SeenMarks(at, marks, lost, frozenset(found), stamp)
    _region_marks.put(key, seen)
    return seen


def open_version(location: TableLocation, version: int | str) -> BaseTable:
    """Open the base table at a version or a tag."""
    if isinstance(version, int):
        return _cached_past(open_base(location, version=version))
    tags = open_base(location).dataset.tags.list()
    tag = tags.get(version)
    if tag is None or tag["branch"]:
        raise InvalidInputError(
            f"{location} has no tag {version!r}; it has {user_tag_names(tags) or 'none'}"
        )
    return _cached_past(open_base(location, version=int(tag["version"])))


def _read_region_snapshot(base: BaseTable) -> dict[UUID, RegionManifest] | None:
    data = base.details.inline_snapshots

    def read() -> dict[UUID, RegionManifest]:
        manifests = read_usable_snapshot(base.location.store, base.details)
        if manifests is None:
            raise ObjectNotFoundError("the file of the snapshot is gone")
        return manifests

    try:
        return _region_snapshots.get(data, read) if data else None
    except ObjectNotFoundError:
        return None


def _is_younger(base: BaseTable, seconds: float, now: float) -> bool:
    """Return whether the region snapshot of a version was certainly taken so recently.

    Its time is by the clock of the machine that made it, from before it read the first region. That
    clock differs from the one of this machine by up to ``MAX_CLOCK_SKEW_SECONDS``, which count as
    age. When a version with the snapshot was first seen proves nothing: a job that was paused may
    have published it long after it had read the regions. ``now`` is in seconds since the epoch.
    """
    age = snapshot_age(base.details, now)
    return age is not None and age + MAX_CLOCK_SKEW_SECONDS <= seconds


def _newest(location: TableLocation) -> BaseTable:
    """Open the newest version, and remove cached values that it makes stale."""
    key = _location_key(location)
    base = cached_base(
        open_base(
            location,
            seen=_newest_seen.use(key),
            find_open=lambda version, digest: _bases.use(
                (VersionTag(location.uri, version, digest), key)
            ),
        )
    )
    base.check_supported()
    _newest_seen.put(key, base)
    version = version_key(base)
    if _invalidated.use(location.uri) != version:
        _invalidated.put(location.uri, version)
        invalidate_stale(base, _past.values())
    return base


def _cached_past(base: BaseTable) -> BaseTable:
    base = cached_base(base)
    _past.put(version_key(base), base)
    return base


def cached_base(base: BaseTable) -> BaseTable:
    """Return the version as it was first opened: Lance keeps its caches in the data set."""
    return _bases.get((version_key(base), _location_key(base.location)), lambda: base)


def fragments_of(base: BaseTable) -> FragmentStates:
    """Return the states of the fragments of a version; cached."""
    return _fragments.get(
        version_key(base),
        lambda: FragmentStates.of(fragment_states(manifest_message(base.manifest))),
    )


def _location_key(location: TableLocation) -> Hashable:
    return location.uri, tuple(sorted(location.storage_options.items()))
