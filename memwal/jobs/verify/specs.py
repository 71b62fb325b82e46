"""Checks of region specs, region values, merge progress, catch-up and the region snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.commit_records import was_taken_away
from memwal.base_table.region_marks import UNMARKED, RegionMark, find_lost_progress
from memwal.base_table.region_snapshot import read_snapshot
from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, InvalidInputError, TableSetupError
from memwal.format.paths import MEM_WAL_INDEX_NAME, TOMBSTONE, manifest_key
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.shared_keys import find_shared_keys
from memwal.jobs.table.snapshot import configured_regions
from memwal.jobs.verify.findings import Finding
from memwal.lsm.indexes.catchup import (
    index_names,
    maintained_index_names,
    unmaintainable_index_names,
)
from memwal.lsm.indexes.unusable import find_unusable
from memwal.lsm.region_places import RegionPlace, RegionPlaces, spec_of
from memwal.region.manifest_store import RegionManifestStore
from memwal.region.router import RegionAssignment, Router
from memwal.region.spec import RegionSpec
from memwal.region.values import decode_values

_MAX_FRAGMENTS = 5


def check_specs(base: BaseTable) -> Iterator[Finding]:
    """Check the region specs of a table."""
    names = {field_id: name for name, field_id in base.field_ids().items()}
    specs = base.details.region_specs
    newest = max((stored.spec_id for stored in specs), default=0)
    seen: set[int] = set()
    for stored in specs:
        name = f"region spec {stored.spec_id}"
        if stored.spec_id in seen or stored.spec_id < 1:
            yield Finding("spec-repeated", name, f"{name} is stored twice, or its id is below 1")
            continue
        seen.add(stored.spec_id)
        try:
            spec = RegionSpec.from_stored(stored, names)
            if spec.pending:
                yield Finding("spec-pending", name, f"the table is being changed to {spec}")
            elif stored.spec_id == newest:
                spec.check_keys(base.primary_key)
            spec.value_types(base.schema)
        except (InvalidInputError, CorruptDataError, TableSetupError) as error:
            yield Finding("spec-unusable", name, str(error))


def check_values(base: BaseTable, manifest: RegionManifest) -> Iterator[Finding]:
    """Check the spec that a region's manifest names, and its region values."""
    key = manifest_key(manifest.region_id, manifest.version)
    if manifest.spec_id == 0:
        # A manual region has no spec.
        return
    if manifest.spec_id not in {stored.spec_id for stored in base.details.region_specs}:
        text = f"the table has no region spec {manifest.spec_id}"
        yield Finding("region-spec-unknown", key, text, region=manifest.region_id)
        return
    spec = spec_of(base, manifest.spec_id)
    if spec is None:
        # The check of the specs reports it.
        return
    fields = {field.field_id: field for field in spec.fields}

    def wrong(text: str) -> Finding:
        return Finding("region-values-wrong", key, text, region=manifest.region_id)

    for field_id, value in manifest.region_fields:
        field = fields.get(field_id)
        if field is None:
            yield wrong(f"it has a value of field {field_id!r}, which its spec does not have")
            continue
        if None in field.columns:
            continue
        try:
            read = decode_values([value], field.value_type(base.schema))
        except CorruptDataError as error:
            yield wrong(f"{field_id}: {error}")
            continue
        count = field.transform.num_values
        if count is not None and pa.types.is_integer(read.type):
            number = read[0].as_py()
            if not 0 <= number < count:
                yield wrong(f"{field_id} is {number}, but must be below {count}")


def check_places(base: BaseTable, manifests: Mapping[UUID, RegionManifest]) -> Iterator[Finding]:
    """Check that no two regions are for the same rows. ``manifests`` must have all regions."""
    places = RegionPlaces(base)
    newest = max((stored.spec_id for stored in base.details.region_specs), default=0)
    if spec_of(base, newest) is None:
        # The check of the specs reports it.
        return
    first: dict[RegionPlace, UUID] = {}
    for region_id, manifest in manifests.items():
        place = places.place(manifest)
        key = manifest_key(region_id, manifest.version)
        if place is None and places.is_in_use(manifest, newest):
            text = "its manifest does not say which rows belong there"
            yield Finding("region-place-unknown", key, text, region=region_id)
        elif place is not None and places.is_in_use(manifest, place[0]):
            other = first.setdefault(place, region_id)
            if other != region_id:
                text = f"region {other} is for the same rows"
                yield Finding("region-values-repeated", key, text, region=region_id)


def check_shared_keys(
    base: BaseTable, manifests: Mapping[UUID, RegionManifest]
) -> Iterator[Finding]:
    """Check that no two regions have unmerged rows of one key."""
    for region_id, keys in find_shared_keys(base, manifests.values()).items():
        others = ", ".join(map(str, keys.others))
        text = f"{keys.count} keys, {keys.example} among them, are in region {others} too"
        key = manifest_key(region_id, manifests[region_id].version)
        yield Finding("key-in-two-regions", key, text, region=region_id)


Routers = Mapping[int, tuple[RegionSpec, Router]]
"""Region specs that say where rows belong, and their routers, by the ids of the specs."""


def make_routers(base: BaseTable) -> Routers:
    """Make the routers of a table. Each knows all regions of its spec."""
    specs = {s.spec_id: spec_of(base, s.spec_id) for s in base.details.region_specs if s.spec_id}
    return {
        spec_id: (spec, Router(spec, base.schema))
        for spec_id, spec in specs.items()
        if spec is not None and not any(None in field.columns for field in spec.fields)
    }


def count_misplaced(
    base: BaseTable, routers: Routers, manifest: RegionManifest, rows: pa.Table
) -> int:
    """Count the rows of a generation that belong to another region than the one that has them.

    Rows whose region is unknown count as right: those of manual regions or regions without values,
    and rows that another client deleted, which have nulls in all columns outside of the key.
    """
    if manifest.spec_id not in routers:
        return 0
    spec, router = routers[manifest.spec_id]
    if any(
        name not in rows.column_names
        or rows.schema.field(name).type != base.schema.field(name).type
        for name in spec.columns
    ):
        # Stored before the column had its present type.
        return 0
    if set(spec.columns) - set(base.primary_key):
        rows = rows.filter(pc.invert(pc.fill_null(rows.column(TOMBSTONE), False)))
    count = 0
    for batch in rows.select(spec.columns).to_batches():
        for assignment, part in router.route(batch) if spec.columns else ():
            if not _belongs_to(assignment, manifest, router):
                count += part.num_rows
    return count


def _belongs_to(assignment: RegionAssignment, manifest: RegionManifest, router: Router) -> bool:
    if assignment.region_id == manifest.region_id:
        return True
    if manifest.region_fields:
        # Another client may have chosen another id for the same values.
        return frozenset(assignment.field_values) == frozenset(manifest.region_fields)
    assignments = router.assignments()
    # A region without values, and with an id that the spec does not compute, is a manual one.
    return assignments is None or all(a.region_id != manifest.region_id for a in assignments)


def check_indexes(base: BaseTable) -> Iterator[Finding]:
    """Check the maintained indexes, and that no catch-up is ahead of the merge progress."""
    existing = index_names(base)
    for name in unmaintainable_index_names(base):
        text = f"the details name {name} among the maintained indexes"
        yield Finding("index-unmaintainable", name, text)
    for name in maintained_index_names(base):
        if name not in existing:
            yield Finding("index-missing", name, f"there is no index {name}")
    for name, covered in base.details.catchup.items():
        if name not in existing:
            text = f"catch-up of {name} is recorded, but there is no such index"
            yield Finding("catchup-orphaned", name, text)
        for region_id, generation in covered.items():
            merged = base.details.merged.get(region_id, 0)
            if generation > merged:
                at = f"the catch-up of {name} is generation {generation}"
                text = f"{at}; those up to {merged} are merged"
                yield Finding("catchup-ahead", name, text, region=region_id)


def check_stale_indexes(base: BaseTable) -> Iterator[Finding]:
    """Check that indexes find the rows that they cover, by a row of each fragment."""
    for name, fragments in find_unusable(base).stale.items():
        numbers = ", ".join(map(str, fragments[:_MAX_FRAGMENTS]))
        text = (
            f"it finds no rows of {len(fragments)} fragments that it covers, for example {numbers}"
        )
        yield Finding("index-stale", name, text)


def check_merged(base: BaseTable, manifest: RegionManifest) -> Iterator[Finding]:
    """Check the merge progress of a region.

    The manifest must have been read after the base table: merge progress follows flushes.
    """
    merged = base.details.merged.get(manifest.region_id, 0)
    if merged >= manifest.current_generation:
        yield Finding(
            "progress-ahead",
            f"{MEM_WAL_INDEX_NAME} of version {base.version}",
            f"generations up to {merged} are recorded as merged; the region flushed those below "
            f"{manifest.current_generation}",
            region=manifest.region_id,
        )


def check_progress_kept(base: BaseTable) -> Iterator[Finding]:
    """Check that no region was merged further than the base table tells."""
    lost = find_lost_progress(base)
    for region_id, generation in lost.items():
        merged = base.details.merged.get(region_id, 0)
        text = f"generations up to {generation} were merged; those up to {merged} are now"
        yield Finding("progress-lost", str(region_id), text, region=region_id)
    if not lost and was_taken_away(base):
        text = "MemWAL was enabled anew, and the base table was written to in between"
        yield Finding("progress-lost", MEM_WAL_INDEX_NAME, text)


def check_known(
    base: BaseTable, manifests: Mapping[UUID, RegionManifest], marks: Mapping[UUID, RegionMark]
) -> Iterator[Finding]:
    """Check that regions with a mark or merge progress exist, in their newest incarnation.

    ``manifests`` must have all regions.
    """
    merged = base.details.merged
    for region_id in sorted({*marks, *(key for key, number in merged.items() if number)}):
        mark = marks.get(region_id, UNMARKED)
        manifest = manifests.get(region_id)
        progress = max(merged.get(region_id, 0), mark.merged)
        if manifest is None:
            if _is_unreadable(base, region_id):
                continue
            text = f"generations up to {progress} are recorded as merged"
            yield Finding("region-lost", str(region_id), text, region=region_id)
        elif manifest.current_generation < mark.first:
            text = (
                f"it is at generation {manifest.current_generation}; the later one began at "
                f"generation {mark.first}"
            )
            yield Finding("region-earlier", str(region_id), text, region=region_id)


def _is_unreadable(base: BaseTable, region_id: UUID) -> bool:
    """Return whether a region is there but cannot be read, which is a finding of its own."""
    try:
        return bool(RegionManifestStore(base.location.store, region_id).list_versions())
    except CorruptDataError:
        # It is behind a broken link.
        return True


def check_snapshot(base: BaseTable, manifests: Mapping[UUID, RegionManifest]) -> Iterator[Finding]:
    """Check the published region snapshot. Manifests must have been read after the base table."""
    try:
        snapshot = read_snapshot(base.location.store, base.details)
    except CorruptDataError as error:
        yield Finding("snapshot-unreadable", "snapshot", str(error).partition("\n")[0])
        return
    if snapshot is None:
        # No snapshot was published, or its file was deleted with the version that it belongs to.
        return
    count, configured = base.details.num_regions, configured_regions(base)
    if count != configured:
        text = f"the details record {count} regions; the region spec has {configured}"
        yield Finding("region-count", "details", text)
    for region_id, recorded in snapshot.items():
        problem = _snapshot_problem(recorded, manifests.get(region_id))
        if problem is not None:
            yield Finding("snapshot-ahead", "snapshot", problem, region=region_id)


def _snapshot_problem(recorded: RegionManifest, manifest: RegionManifest | None) -> str | None:
    if manifest is None:
        return "the region has no manifest"
    key = manifest_key(manifest.region_id, manifest.version)
    if recorded.version > manifest.version:
        return f"it records version {recorded.version}; the newest is {key}"
    for what in ("writer_epoch", "current_generation", "replay_after"):
        old, new = getattr(recorded, what), getattr(manifest, what)
        if old > new or (recorded.version == manifest.version and old != new):
            return f"it records {what} {old}; {key} has {new}"
    return None
