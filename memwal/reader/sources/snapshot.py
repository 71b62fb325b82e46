"""Table snapshots for reads: latest, bounded-stale, or a fixed base-table version."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from memwal.base_table.read_tags import shown_tags
from memwal.base_table.region_snapshot import snapshot_age, usable_snapshot
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import InvalidInputError, ObjectNotFoundError
from memwal.format.region_manifest import RegionManifest
from memwal.reader.cache.invalidation import invalidate_stale
from memwal.reader.cache.keys import VersionTag, version_key
from memwal.reader.cache.lru import LruCache
from memwal.reader.sources.key_routing import KeyBuilder, candidate_regions, routes_alike
from memwal.region.manifest_store import read_manifests
from memwal.storage.location import TableLocation

_OPEN_BASES: Final = 4
_SNAPSHOTS: Final = 8
_SWEPT_TABLES: Final = 10_000

_bases: LruCache[BaseTable] = LruCache(_OPEN_BASES)
# The newest version of each table that a read has seen.
_seen: LruCache[BaseTable] = LruCache(_OPEN_BASES)
# Versions that were asked for by their number.
_past: LruCache[BaseTable] = LruCache(_OPEN_BASES, never_stale=True)
# The version of each table for which what it left behind was forgotten last.
_swept: LruCache[VersionTag] = LruCache(_SWEPT_TABLES, never_stale=True)
_snapshots: LruCache[dict[UUID, RegionManifest]] = LruCache(_SNAPSHOTS)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A version of the base table and what the regions say beside it.

    Attributes
    ----------
    base : BaseTable
    manifests : mapping of UUID to RegionManifest
        Never newer than the base table: whatever was merged out of them is in it.
    snapshot_time : datetime or None
        When the manifests were read that the MemWAL index carries; None when they were read now.
    """

    base: BaseTable
    manifests: Mapping[UUID, RegionManifest]
    snapshot_time: datetime | None = None


def open_snapshot(
    location: TableLocation,
    *,
    regions: Collection[UUID] | None = None,
    keys: KeyBuilder | None = None,
    max_staleness: timedelta | None = None,
    clock: Callable[[], float] = time.time,
) -> TableSnapshot:
    """What a read sees that begins now.

    Parameters
    ----------
    regions : collection of UUID, optional
        The only regions that matter; all by default.
    keys : callable, optional
        The only keys that matter, in the types of a version of the base table: where they tell
        the regions, no manifest of another region is read.
    max_staleness : timedelta, optional
        The read may take the regions as the snapshot in the MemWAL index has them, if that is not
        older, and then sends no request to any region. What was flushed since is not seen, what
        was merged since is. By default, and without such a snapshot, the manifests are read.
    clock : callable
        Seconds since the epoch.

    Raises
    ------
    TableSetupError
        No table, no primary key, or no MemWAL.
    """
    if max_staleness is not None:
        base = _newest(location)
        age = snapshot_age(base.details, clock())
        found = None
        if age is not None and age <= max_staleness.total_seconds():
            found = _published(base)
        if found is not None:
            chosen = found.keys() if regions is None else found.keys() & set(regions)
            return TableSnapshot(
                base,
                {region_id: found[region_id] for region_id in chosen},
                datetime.fromtimestamp(base.details.snapshot_ts_millis / 1000, UTC),
            )
    seen = _seen.peek(_name(location)) if keys is not None and regions is None else None
    needed = candidate_regions(location, seen, keys) if seen is not None and keys else regions
    # The manifests first: a generation that is merged in between is then in the base table too.
    manifests = read_manifests(location.store, needed)
    base = _newest(location)
    if seen is not None and needed is not None and not routes_alike(seen, base):
        manifests = read_manifests(location.store)
        base = _newest(location)
    return TableSnapshot(base, manifests)


def open_version(location: TableLocation, version: int | str) -> BaseTable:
    """The base table at a version or a tag.

    Raises
    ------
    InvalidInputError
        There is no such tag.
    TableSetupError
        There is no table, or not that version any more.
    """
    if isinstance(version, int):
        return _kept_past(open_base(location, version=version))
    tags = open_base(location).dataset.tags.list()
    tag = tags.get(version)
    if tag is None or tag["branch"]:
        raise InvalidInputError(
            f"{location} has no tag {version!r}; it has {shown_tags(tags) or 'none'}"
        )
    return _kept_past(open_base(location, version=int(tag["version"])))


def _published(base: BaseTable) -> dict[UUID, RegionManifest] | None:
    """The region snapshot of a version; None when there is none."""
    data = base.details.inline_snapshots

    def read() -> dict[UUID, RegionManifest]:
        found = usable_snapshot(base.location.store, base.details)
        if found is None:
            raise ObjectNotFoundError("the file of the snapshot is gone")
        return found

    try:
        return _snapshots.get(data, read) if data else None
    except ObjectNotFoundError:
        return None


def _newest(location: TableLocation) -> BaseTable:
    """The newest version; what those before have left in memory is forgotten."""
    base = cached_base(open_base(location))
    base.require_mem_wal()
    _seen.put(_name(location), base)
    version = version_key(base)
    if _swept.peek(location.uri) != version:
        _swept.put(location.uri, version)
        invalidate_stale(base, _past.values())
    return base


def _kept_past(base: BaseTable) -> BaseTable:
    base = cached_base(base)
    _past.put(version_key(base), base)
    return base


def cached_base(base: BaseTable) -> BaseTable:
    """The same version as it was opened before: its data set holds what reads have cached."""
    return _bases.get((version_key(base), _name(base.location)), lambda: base)


def _name(location: TableLocation) -> Hashable:
    return location.uri, tuple(sorted(location.storage_options.items()))
