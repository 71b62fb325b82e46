"""The region spec that new rows of a table are routed by."""

from __future__ import annotations

from memwal.errors import RegionSealedError, TableSetupError
from memwal.region.spec import RegionSpec
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, open_base


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


def check_by_hand(base: BaseTable) -> None:
    """Make sure that a table's regions are written by hand.

    Raises
    ------
    TableSetupError
        It has a region spec, which says where each row belongs.
    """
    if base.details.region_specs:
        raise TableSetupError(
            f"{base.location} has a region spec that says where each row belongs; "
            "open its writer without a region"
        )


def check_in_force(location: TableLocation, spec_id: int) -> None:
    """Make sure that a spec is the one that new rows are routed by.

    To be called after a region was claimed and before it is written to: whoever divides the table
    anew stores the new spec first, and seals all regions that there are then.

    Parameters
    ----------
    spec_id : int
        0 for regions that are written by hand, which a table without specs has.

    Raises
    ------
    RegionSealedError
        The table is divided in another way by now.
    """
    details = open_base(location).details
    newest = max((spec.spec_id for spec in details.region_specs), default=0)
    if newest != spec_id:
        raise RegionSealedError(
            f"{location} is divided into regions in another way by now (region spec {newest}, not "
            f"{spec_id}); open a new writer"
        )
