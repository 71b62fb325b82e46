"""Merge progress, catch-up and the snapshot of the regions, against the regions themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from memwal.errors import CorruptDataError
from memwal.format.names import MEM_WAL_INDEX_NAME, manifest_key
from memwal.format.region_manifest import RegionManifest
from memwal.maintenance.index_build import index_names, maintained_index_names
from memwal.maintenance.verify.findings import Finding
from memwal.table_index.base_table import BaseTable
from memwal.table_index.region_snapshot import read_snapshot


def check_indexes(base: BaseTable) -> Iterator[Finding]:
    """Check that maintained indexes exist, and cover no more than is merged."""
    existing = index_names(base)
    for name in maintained_index_names(base):
        if name not in existing:
            yield Finding.of("index-missing", name, f"there is no index {name}")
    for name, covered in base.details.catchup.items():
        if name not in existing:
            text = f"progress of {name} is recorded, and there is no such index"
            yield Finding.of("catchup-orphaned", name, text)
        for region_id, generation in covered.items():
            merged = base.details.merged.get(region_id, 0)
            if generation > merged:
                yield Finding.of(
                    "catchup-ahead",
                    name,
                    f"{name} is said to cover generation {generation}; merged are those up to "
                    f"{merged}",
                    region=region_id,
                )


def check_merged(base: BaseTable, manifest: RegionManifest) -> Iterator[Finding]:
    """Check the progress of a region.

    The manifest must have been read after the base table: progress only follows flushes.
    """
    merged = base.details.merged.get(manifest.region_id, 0)
    if merged >= manifest.current_generation:
        yield Finding.of(
            "progress-ahead",
            f"{MEM_WAL_INDEX_NAME} of version {base.version}",
            f"generation {merged} is said to be merged; the region flushed those below "
            f"{manifest.current_generation}",
            region=manifest.region_id,
        )


def check_known(base: BaseTable, manifests: Mapping[UUID, RegionManifest]) -> Iterator[Finding]:
    """Check that there is progress of regions only that exist. All regions must be given."""
    for region_id, generation in base.details.merged.items():
        if region_id not in manifests:
            yield Finding.of(
                "progress-unknown-region",
                str(region_id),
                f"generation {generation} is said to be merged",
                region=region_id,
            )


def check_snapshot(base: BaseTable, manifests: Mapping[UUID, RegionManifest]) -> Iterator[Finding]:
    """Check the published snapshot. The manifests must have been read after the base table."""
    try:
        snapshot = read_snapshot(base.location.store, base.details)
    except CorruptDataError as error:
        yield Finding.of("snapshot-unreadable", "snapshot", str(error).partition("\n")[0])
        return
    if snapshot is None:
        # None was published, or its file went with the version that it was written for.
        return
    if len(snapshot) != base.details.num_regions:
        text = f"it has {len(snapshot)} regions, and says {base.details.num_regions}"
        yield Finding.of("snapshot-count", "snapshot", text)
    for region_id, said in snapshot.items():
        manifest = manifests.get(region_id)
        wrong = _ahead(said, manifest)
        if wrong is not None:
            yield Finding.of("snapshot-ahead", "snapshot", wrong, region=region_id)


def _ahead(said: RegionManifest, manifest: RegionManifest | None) -> str | None:
    if manifest is None:
        return "the region has no manifest"
    key = manifest_key(manifest.region_id, manifest.version)
    if said.version > manifest.version:
        return f"it tells of version {said.version}; the newest is {key}"
    for what in ("writer_epoch", "current_generation", "replay_after"):
        old, new = getattr(said, what), getattr(manifest, what)
        if old > new or (said.version == manifest.version and old != new):
            return f"it says that {what} is {old}; {key} says {new}"
    return None
