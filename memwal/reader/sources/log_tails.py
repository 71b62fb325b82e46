"""Unflushed rows of all regions, read from their logs: sources of a fresh read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ObjectNotFoundError
from memwal.format.region_manifest import RegionManifest
from memwal.lsm.memtable.indexes import UnflushedRows
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.follow import LogFollower
from memwal.reader.cache.lru import LruCache
from memwal.util.concurrency import run_all

# Of all rows that fresh reads keep, and of those of one region.
_CACHE_BYTES: Final = 1 << 30
_MAX_REGION_BYTES: Final = 1 << 30
_FOLLOWER_BYTES: Final = 4 << 10

_followers: LruCache[LogFollower] = LruCache(
    _CACHE_BYTES, lambda follower: _FOLLOWER_BYTES + follower.nbytes
)


def read_tails(
    base: BaseTable, manifests: Mapping[UUID, RegionManifest]
) -> dict[UUID, Sequence[UnflushedRows]]:
    """Read the rows that the logs have and no generation of the manifests, by region.

    ``base`` was opened after the manifests were read. If it has a generation of a region that its
    manifest does not list, the manifest is too old to tell which rows are unflushed: then, and if
    entries were collected meanwhile, ObjectNotFoundError is raised, and the caller begins again.
    """
    for region_id, manifest in manifests.items():
        if base.details.merged.get(region_id, 0) >= manifest.current_generation:
            raise ObjectNotFoundError(f"region {region_id} was flushed and merged meanwhile")
    row_schema = RowSchema.of(base)

    def read(region_id: UUID, manifest: RegionManifest) -> Sequence[UnflushedRows]:
        key = _key(base, region_id)
        store = base.location.store
        follower = _followers.get(key, lambda: LogFollower(store, region_id))
        rows = follower.follow(manifest, row_schema, max_bytes=_MAX_REGION_BYTES)
        # With its new weight.
        _followers.put(key, follower)
        return rows

    found = run_all([partial(read, *item) for item in manifests.items()])
    return dict(zip(manifests, found, strict=True))


def _key(base: BaseTable, region_id: UUID) -> tuple[object, ...]:
    location = base.location
    return location.uri, tuple(sorted(location.storage_options.items())), region_id
