"""How the table is divided: its region specs, the values of regions, and rows in the wrong one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import CorruptDataError, InvalidInputError, TableSetupError
from memwal.format.names import TOMBSTONE, manifest_key
from memwal.format.region_manifest import RegionManifest
from memwal.maintenance.verify.findings import Finding
from memwal.reader.region_specs import spec_of
from memwal.region.region_values import read_values
from memwal.region.routing import RegionAssignment, Router
from memwal.region.spec import RegionSpec
from memwal.table_index.base_table import BaseTable


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
            read = read_values([value], field.value_type(base.schema))
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
