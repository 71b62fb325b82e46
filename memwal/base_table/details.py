"""Update the MemWAL index details on top of the latest version, and check which spec is in force.

A writer checks the spec after it claimed a region and before it writes to it: a job that divides
the table anew stores the new spec first, and then seals all regions that exist.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from memwal.base_table.commit import commit_details
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ConflictError, RegionSealedError, TableSetupError
from memwal.format.memwal_index import IndexDetails
from memwal.region.spec import RegionSpec
from memwal.storage.location import TableLocation
from memwal.util.retry import LostRaceError, retry_lost_races


def update_details(
    location: TableLocation,
    change: Callable[[BaseTable], IndexDetails],
    *,
    index_id: UUID | None = None,
    attempts: int = 50,
) -> BaseTable:
    """Apply a change to the details, again on each newer version until it lands.

    Parameters
    ----------
    change : callable
        Gets the table as it is and returns the whole new details. Called once per attempt, and
        must therefore not have effects of its own.
    index_id : UUID, optional
        See :func:`memwal.base_table.commit.commit_details`.
    attempts : int, default 50
        A conflict needs another commit to land first, so that somebody always gets on; 50 lost
        races in a row mean that something else is wrong.

    Returns
    -------
    BaseTable
        The table at the new version, or as it was when the change is no change.

    Raises
    ------
    ConflictError
        Every attempt lost.
    """

    def attempt() -> BaseTable:
        base = open_base(location)
        base.require_mem_wal()
        details = change(base)
        if details == base.details:
            return base
        try:
            version = commit_details(base, details, index_id=index_id)
        except ConflictError as error:
            raise LostRaceError(str(error)) from error
        return open_base(location, version=version)

    return retry_lost_races(
        attempt,
        attempts=attempts,
        exhausted=ConflictError(
            f"the details of {location} changed under each of {attempts} attempts; try again later"
        ),
    )


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


def check_no_region_spec(base: BaseTable) -> None:
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


def check_spec_in_force(location: TableLocation, spec_id: int) -> None:
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
