"""What is looked at of a table as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from memwal.format.region_manifest import RegionManifest
from memwal.maintenance.verify.base_rows import check_repeated_keys
from memwal.maintenance.verify.base_versions import check_files, check_older_versions
from memwal.maintenance.verify.divisions import check_repeated_values, check_specs
from memwal.maintenance.verify.findings import Finding
from memwal.maintenance.verify.manifests import read_newest
from memwal.maintenance.verify.plan import Depth, VerifyTask
from memwal.maintenance.verify.progress import check_indexes, check_known, check_snapshot
from memwal.maintenance.verify.unreadable import Unreadable, reading
from memwal.region.discovery import discover_regions
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable


def look_at_table(task: VerifyTask, base: BaseTable | None) -> Iterator[Finding]:
    """Check what concerns the table as a whole."""
    if base is None:
        return
    yield from check_specs(base)
    yield from check_indexes(base)
    damaged = list(check_files(base))
    yield from damaged
    if task.all_regions:
        # After the base table: progress follows what is flushed.
        manifests = _manifests(task.location, discover_regions(task.location.store))
        yield from check_known(base, manifests)
        yield from check_snapshot(base, manifests)
        yield from check_repeated_values(manifests)
    if task.depth is Depth.FULL:
        yield from check_older_versions(base)
        if not damaged:
            try:
                with reading(task.location.store, None):
                    yield from list(check_repeated_keys(base))
            except Unreadable as error:
                text = f"keys of version {base.version} cannot be read: {error}"
                yield Finding.of("table-file-damaged", "data", text)


def _manifests(location: TableLocation, regions: Sequence[UUID]) -> dict[UUID, RegionManifest]:
    """Newest manifests that can be read."""
    found = ((region_id, read_newest(location.store, region_id)) for region_id in regions)
    return {region_id: manifest for region_id, manifest in found if manifest is not None}
