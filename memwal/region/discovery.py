"""Which regions a table has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from memwal.format.names import MEM_WAL_DIR, parse_region_name
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.base import ObjectStore

_PARALLEL_LOCAL_READS = 16
_PARALLEL_READS = 64
_KNOWN_REGIONS = 100_000

# The version that this process met last of each region's manifest, by the table's address. Never
# trusted, only where to look first; when there are too many, all are forgotten.
_met: dict[tuple[str, UUID], int] = {}


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
    *,
    known: Mapping[UUID, int] | None = None,
) -> dict[UUID, RegionManifest]:
    """Newest manifest of each region, read side by side.

    Two requests are enough for one that is still the one that this process met last.

    Parameters
    ----------
    regions : collection of UUID, optional
        Regions to read; by default all that have a folder. One without a manifest (a claim that
        died before its first write) is left out.
    known : mapping of UUID to int, optional
        A version of the manifest of some regions, as a snapshot has it. An exact one makes two
        requests of three.
    """
    wanted = list(discover_regions(store) if regions is None else regions)
    if not wanted:
        return {}

    def read(region: UUID) -> RegionManifest | None:
        told = known.get(region, 0) if known else 0
        version = max(told, _met.get((store.uri, region), 0))
        return RegionManifestStore(store, region).read_latest(known=version or None)

    with ThreadPoolExecutor(min(parallel_reads(store), len(wanted))) as pool:
        manifests = list(pool.map(read, wanted))
    found = {
        region: manifest
        for region, manifest in zip(wanted, manifests, strict=True)
        if manifest is not None
    }
    if len(_met) + len(found) > _KNOWN_REGIONS:
        _met.clear()
    _met.update(((store.uri, region), manifest.version) for region, manifest in found.items())
    return found
