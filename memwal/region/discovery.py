"""Which regions a table has."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from uuid import UUID

from memwal.boot_clock import boot_seconds
from memwal.format.names import MEM_WAL_DIR, parse_region_name
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.base import ObjectStore

_PARALLEL_LOCAL_READS = 16
_PARALLEL_READS = 64
_KNOWN_REGIONS = 100_000

_RECENT_SECONDS = 120.0
"""Shorter than any collector's grace should be."""


class _Met(NamedTuple):
    """A version of a region's manifest, and when it was the newest."""

    version: int
    at: float


# What this process met last of each region's manifest, by the table's address. Never trusted, only
# where to look first; when there are too many, all are forgotten.
_met: dict[tuple[str, UUID], _Met] = {}


def discover_regions(store: ObjectStore) -> list[UUID]:
    """Ids of the regions that have a folder, in the order of their ids: one listing."""
    found = (parse_region_name(name) for name in store.list_folders(MEM_WAL_DIR))
    return sorted(region_id for region_id in found if region_id is not None)


def parallel_reads(store: ObjectStore) -> int:
    """How many regions are read at once: objects are waited for, files of this machine are not."""
    return _PARALLEL_LOCAL_READS if store.is_local else _PARALLEL_READS


def read_manifests(
    store: ObjectStore,
    regions: Collection[UUID] | None = None,
) -> dict[UUID, RegionManifest]:
    """Newest manifest of each region, read side by side.

    Two requests are enough for one that this process met in the last two minutes, and that is
    still the newest; others take three.

    Parameters
    ----------
    regions : collection of UUID, optional
        Regions to read; by default all that have a folder. One without a manifest (a claim that
        died before its first write) is left out.
    """
    wanted = list(discover_regions(store) if regions is None else regions)
    if not wanted:
        return {}

    now = boot_seconds()

    def read(region: UUID) -> RegionManifest | None:
        met = _met.get((store.uri, region))
        recent = met.version if met is not None and now - met.at < _RECENT_SECONDS else None
        return RegionManifestStore(store, region).read_latest(recent=recent)

    with ThreadPoolExecutor(min(parallel_reads(store), len(wanted))) as pool:
        manifests = list(pool.map(read, wanted))
    found = {
        region: manifest
        for region, manifest in zip(wanted, manifests, strict=True)
        if manifest is not None
    }
    if len(_met) + len(found) > _KNOWN_REGIONS:
        _met.clear()
    _met.update(
        ((store.uri, region), _Met(manifest.version, now)) for region, manifest in found.items()
    )
    return found
