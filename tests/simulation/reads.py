"""How every reader of a simulated table reads: manifests, then base table, then generations."""

import pickle
from collections.abc import Iterable, Mapping
from uuid import UUID

from simulation.base import BaseClient, Version
from simulation.lake import DELETED, Memory, RowFormat, Rows, rows_key
from simulation.store import SimulatedStore

from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import RegionManifestStore

Manifests = Mapping[UUID, RegionManifest | None]


def read_table(
    store: SimulatedStore,
    base: BaseClient,
    regions: Iterable[UUID],
    memory: Memory,
    form: RowFormat,
) -> Rows:
    """What somebody sees who puts generations over the base table, and memory over them.

    Raises
    ------
    ObjectNotFoundError
        A generation is gone: it was merged meanwhile, and everything is to be read again.
    """
    manifests = read_manifests(store, regions)
    return read_through(store, base.open(), manifests, memory, form)


def read_manifests(store: SimulatedStore, regions: Iterable[UUID]) -> Manifests:
    """The newest manifest of each region, one after the other."""
    return {region: RegionManifestStore(store, region).read_latest() for region in regions}


def read_through(
    store: SimulatedStore,
    version: Version,
    manifests: Manifests,
    memory: Memory,
    form: RowFormat,
) -> Rows:
    """The same with what was looked up before.

    Raises
    ------
    ObjectNotFoundError
        As above.
    """
    seen = dict(version.rows)
    for region, manifest in manifests.items():
        for flushed in manifest.flushed if manifest is not None else ():
            if flushed.generation > version.merged.get(region, 0):
                form.join(seen, pickle.loads(store.get(rows_key(region, flushed.path))))
        first = 0 if manifest is None else manifest.current_generation
        for generation, rows in memory.get(region, ()):
            # Of earlier ones the manifest names the flushed ones, or the base table has them.
            if generation >= first and generation > version.merged.get(region, 0):
                form.join(seen, rows)
    return {key: value for key, value in seen.items() if value != DELETED}
