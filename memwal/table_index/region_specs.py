"""The region spec that new rows of a table are routed by."""

from __future__ import annotations

from memwal.errors import TableSetupError
from memwal.region.spec import RegionSpec
from memwal.table_index.base_table import BaseTable


def current_spec(base: BaseTable) -> tuple[int, RegionSpec]:
    """Id and content of a table's newest spec.

    Raises
    ------
    TableSetupError
        The table has none: its regions are written by hand.
    """
    if not base.details.region_specs:
        raise TableSetupError(
            f"{base.location} has no region spec; its regions are written one by one"
        )
    stored = max(base.details.region_specs, key=lambda spec: spec.spec_id)
    names = {field_id: name for name, field_id in base.field_ids().items()}
    return stored.spec_id, RegionSpec.from_stored(stored, names)
