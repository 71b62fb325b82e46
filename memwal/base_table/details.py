"""Update the MemWAL index details on the latest version, and check the region spec in force."""

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
    """Change the details, and repeat on each newer version until the commit succeeds.

    Parameters
    ----------
    change : callable
        Takes the latest version of the table and returns the complete new details. Called once per
        attempt, and must therefore have no side effects.
    index_id : UUID, optional
        See :func:`memwal.base_table.commit.commit_details`.
    attempts : int, default 50
        A conflict means that another commit succeeded, so some process always makes progress. 50
        lost races in a row mean that something else is wrong.

    Returns
    -------
    BaseTable
        The table at the new version, or unchanged if the details do not change.

    Raises
    ------
    ConflictError
        Another commit won the race in every attempt.
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
    """Return the id and content of a table's newest region spec.

    Raises
    ------
    TableSetupError
        The table has no spec: its writers name their regions.
    """
    if not base.details.region_specs:
        raise TableSetupError(
            f"{base.location} has no region spec; its regions are written one by one"
        )
    stored = max(base.details.region_specs, key=lambda spec: spec.spec_id)
    names = {field_id: name for name, field_id in base.field_ids().items()}
    return stored.spec_id, RegionSpec.from_stored(stored, names)


def check_no_region_spec(base: BaseTable) -> None:
    """Check that a table has no region spec, so that its writers name their regions.

    Raises
    ------
    TableSetupError
        The table has a region spec, which maps rows to regions.
    """
    if base.details.region_specs:
        raise TableSetupError(
            f"{base.location} has a region spec that maps rows to regions; "
            "open its writer without a region"
        )


def check_spec_in_force(location: TableLocation, spec_id: int) -> None:
    """Check that a region spec is the newest one, by which new rows are routed.

    A writer must call this after it claimed a region and before it writes to it:
    ``memwal.add_region_spec`` stores the new spec first, and then seals all regions that exist.

    Parameters
    ----------
    spec_id : int
        0 if the writer names its regions, as for a table without specs.

    Raises
    ------
    RegionSealedError
        The table has a newer region spec.
    """
    details = open_base(location).details
    newest = max((spec.spec_id for spec in details.region_specs), default=0)
    if newest != spec_id:
        raise RegionSealedError(
            f"{location} is divided into regions in another way by now (region spec {newest}, not "
            f"{spec_id}); open a new writer"
        )
