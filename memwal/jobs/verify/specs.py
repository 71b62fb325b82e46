"""Checks of region specs, region values, merge progress, catch-up and the region snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.region_snapshot import read_snapshot
from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, InvalidInputError, TableSetupError
from memwal.format.paths import MEM_WAL_INDEX_NAME, TOMBSTONE, manifest_key
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.verify.findings import Finding
from memwal.lsm.indexes.catchup import index_names, maintained_index_names
from memwal.reader.sources.key_routing import spec_of
from memwal.region.router import RegionAssignment, Router
from memwal.region.spec import RegionSpec
from memwal.region.values import decode_values


def check_specs(base: BaseTable) -> Iterator[Finding]:
    """Check the region specs of a table."""
    names = {field_id: name for name, field_id in base.field_ids().items()}
    specs = base.details.region_specs
    newest = max((stored.spec_id for stored in specs), default=0)
    seen: set[int] = set()
    for stored in specs:
        name = f"region spec {stored.spec_id}"
        if stored.spec_id in seen or stored.spec_id < 1:
            yield Finding.of("spec-repeated", name, f"two specs, or one for none, are {name}")
            continue
        seen.add(stored.spec_id)
        try:
            spec = RegionSpec.from_stored(stored, names)
            if spec.pending:
                yield Finding.of("spec-pending", name, f"the table is to be divided by {spec}")
            elif stored.spec_id == newest:
                spec.check_keys(base.primary_key)
            spec.value_types(base.schema)
        except (InvalidInputError, CorruptDataError, TableSetupError) as error:
            yield Finding.of("spec-unusable", name, str(error))


def check_values(base: BaseTable, manifest: RegionManifest) -> Iterator[Finding]:
    """Check the spec that a region says it belongs to, and its values."""
    key = manifest_key(manifest.region_id, manifest.version)
    if manifest.spec_id == 0:
        # Made by hand.
        return
    if manifest.spec_id not in {stored.spec_id for stored in base.details.region_specs}:
        text = f"the table has no region spec {manifest.spec_id}"
        yield Finding.of("region-spec-unknown", key, text, region=manifest.region_id)
        return
    spec = spec_of(base, manifest.spec_id)
    if spec is None:
        # Said of the spec.
        return
    fields = {field.field_id: field for field in spec.fields}
    for field_id, value in manifest.region_fields:
        field = fields.get(field_id)
        if field is None:
            text = f"it has a value of {field_id!r}, which its spec does not"
            yield Finding.of("region-values-wrong", key, text, region=manifest.region_id)
            continue
        if None in field.columns:
            continue
        try:
            read = decode_values([value], field.value_type(base.schema))
        except CorruptDataError as error:
            text = f"{field_id}: {error}"
            yield Finding.of("region-values-wrong", key, text, region=manifest.region_id)
            continue
        count = field.transform.num_values
        if count is not None and pa.types.is_integer(read.type):
            number = read[0].as_py()
            if not 0 <= number < count:
                text = f"{field_id} is {number}, and there are {count}"
                yield Finding.of("region-values-wrong", key, text, region=manifest.region_id)


def check_repeated_values(manifests: Mapping[UUID, RegionManifest]) -> Iterator[Finding]:
    """See whether two regions of one spec have the same values."""
    first: dict[tuple[int, frozenset[tuple[str, bytes]]], UUID] = {}
    for region_id, manifest in manifests.items():
        if manifest.spec_id == 0 or not manifest.region_fields:
            continue
        values = (manifest.spec_id, frozenset(manifest.region_fields))
        other = first.setdefault(values, region_id)
        if other != region_id:
            yield Finding.of(
                "region-values-repeated",
                manifest_key(region_id, manifest.version),
                f"region {other} has the same values",
                region=region_id,
            )


def count_misplaced(base: BaseTable, manifest: RegionManifest, rows: pa.Table) -> int:
    """How many rows of a generation belong to another region.

    What cannot be told counts as right: regions made by hand or without values, and rows that
    another client deleted, which have nulls in all columns outside of the key.
    """
    spec = spec_of(base, manifest.spec_id) if manifest.spec_id else None
    if spec is None or any(None in field.columns for field in spec.fields):
        return 0
    router = Router(spec, base.schema)
    if any(
        name not in rows.column_names
        or rows.schema.field(name).type != base.schema.field(name).type
        for name in spec.columns
    ):
        # Stored before the column had its present form.
        return 0
    if set(spec.columns) - set(base.primary_key):
        rows = rows.filter(pc.invert(pc.fill_null(rows.column(TOMBSTONE), False)))
    count = 0
    for batch in rows.select(spec.columns).to_batches():
        for assignment, part in router.route(batch) if spec.columns else ():
            if not _is_here(assignment, manifest, router):
                count += part.num_rows
    return count


def _is_here(assignment: RegionAssignment, manifest: RegionManifest, router: Router) -> bool:
    if assignment.region_id == manifest.region_id:
        return True
    if manifest.region_fields:
        # Another client may have chosen another id for the same values.
        return frozenset(assignment.field_values) == frozenset(manifest.region_fields)
    known = router.assignments()
    # Without values, an id that is nobody's was chosen by hand.
    return known is None or all(one.region_id != manifest.region_id for one in known)


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
