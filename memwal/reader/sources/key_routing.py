"""Route the keys of a lookup to regions, before any manifest is read."""

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
    """Return a region spec of the table; None if there is none of this id or it is unusable."""
    names = {field_id: name for name, field_id in base.field_ids().items()}
    for stored in base.details.region_specs:
        if stored.spec_id == spec_id:
            try:
                spec = RegionSpec.from_stored(stored, names)
                spec.value_types(base.schema)
            except (InvalidInputError, CorruptDataError):
                # The spec of another client, or one over a column that has changed: readers go
                # on without it, and prune and route less.
                return None
            return spec
    return None


KeyBuilder = Callable[[BaseTable], pa.Table]
"""Returns the keys of a lookup as columns, in the types of a version of the base table."""


def is_routed_by_key(spec: RegionSpec, base: BaseTable) -> bool:
    """Return whether the key of a row alone determines its region."""
    columns = [column for field in spec.fields for column in field.columns]
    return bool(columns) and all(column in base.primary_key for column in columns)


def candidate_regions(
    location: TableLocation, base: BaseTable | None, keys: KeyBuilder
) -> list[UUID] | None:
    """List the regions that may have some keys, with one listing and without reading a manifest.

    Regions of the spec to which no key is routed are left out. A region with an id that the spec
    does not know in advance may have any key.

    Parameters
    ----------
    base : BaseTable or None
        The newest version that a read has seen. The result is valid for versions for which
        :func:`routes_alike` holds.

    Returns
    -------
    list of UUID or None
        None if only the manifests tell which keys a region may have: no version was seen before,
        the key does not determine regions that are known in advance, or the table has had several
        specs.
    """
    if base is None or len(base.details.region_specs) != 1:
        return None
    spec = spec_of(base, base.details.region_specs[0].spec_id)
    if spec is None or not is_routed_by_key(spec, base):
        return None
    router = Router(spec, base.schema)
    assignments = router.assignments()
    if assignments is None:
        return None
    try:
        routed = {assignment.region_id for assignment, _ in router.route(keys(base))}
    except InvalidInputError:
        # Keys of other types or columns: the table may have changed; if not, the lookup raises.
        return None
    others = {assignment.region_id for assignment in assignments} - routed
    return [region for region in discover_regions(location.store) if region not in others]


def routes_alike(base: BaseTable, other: BaseTable) -> bool:
    """Return whether two versions of a table route every key to the same region."""
    return (
        base.details.region_specs == other.details.region_specs
        and base.primary_key == other.primary_key
        and base.field_ids() == other.field_ids()
        and base.schema.equals(other.schema)
    )
