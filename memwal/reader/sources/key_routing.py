"""Regions that a key lookup has to read, decided before any manifest is read."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.region.manifest_store import discover_regions
from memwal.region.router import Router
from memwal.region.spec import RegionSpec
from memwal.storage.location import TableLocation


def spec_of(base: BaseTable, spec_id: int) -> RegionSpec | None:
    """A spec of the table; None when it has none of this id, or one that says nothing here."""
    names = {field_id: name for name, field_id in base.field_ids().items()}
    for stored in base.details.region_specs:
        if stored.spec_id == spec_id:
            try:
                spec = RegionSpec.from_stored(stored, names)
                spec.value_types(base.schema)
            except (InvalidInputError, CorruptDataError):
                # Another client's division, or one by a column that has changed: readers do
                # without what it would tell them.
                return None
            return spec
    return None


KeyBuilder = Callable[[BaseTable], pa.Table]
"""The keys that are looked up, as columns of a table's types."""


def is_routed_by_key(spec: RegionSpec, base: BaseTable) -> bool:
    """Whether the key of a row alone says which region it belongs to."""
    columns = [column for field in spec.fields for column in field.columns]
    return bool(columns) and all(column in base.primary_key for column in columns)


def candidate_regions(
    location: TableLocation, base: BaseTable | None, wanted: KeyBuilder
) -> list[UUID] | None:
    """Regions that may have some keys: one listing, and no manifest is read.

    Left out are regions of buckets to which none of the keys belongs. A region with an id that
    the spec does not know in advance may have any key.

    Parameters
    ----------
    base : BaseTable or None
        The table as it was seen last. The answer holds while :func:`divides_alike` does.

    Returns
    -------
    list of UUID or None
        None where a region's manifest has to say what may be in it: the table was not seen before,
        is not divided by its key into regions that are known in advance, or was divided otherwise
        before.
    """
    if base is None or len(base.details.region_specs) != 1:
        return None
    spec = spec_of(base, base.details.region_specs[0].spec_id)
    if spec is None or not is_routed_by_key(spec, base):
        return None
    router = Router(spec, base.schema)
    known = router.assignments()
    if known is None:
        return None
    try:
        needed = {assignment.region_id for assignment, _ in router.route(wanted(base))}
    except InvalidInputError:
        # Keys of other types or columns: the table may have changed, or the caller hears of it.
        return None
    others = {assignment.region_id for assignment in known} - needed
    return [region for region in discover_regions(location.store) if region not in others]


def routes_alike(base: BaseTable, other: BaseTable) -> bool:
    """Whether a key belongs to the same region in two versions of a table."""
    return (
        base.details.region_specs == other.details.region_specs
        and base.primary_key == other.primary_key
        and base.field_ids() == other.field_ids()
        and base.schema.equals(other.schema)
    )
