"""The spec that a region belongs to, as readers may rely on it."""

from __future__ import annotations

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.region.spec import RegionSpec
from memwal.table_index.base_table import BaseTable


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
