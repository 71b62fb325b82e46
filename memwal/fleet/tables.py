"""What a managed table looks like, what it is due for, and how to reach it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.catalog.records import CONNECTION_PREFIX, ManagedTable
from memwal.errors import InvalidInputError
from memwal.maintenance.due import Due, due
from memwal.maintenance.status import TableStatus
from memwal.storage.location import TableLocation
from memwal.storage.options_file import read_options_file

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.setbacks import HeldRecord
    from memwal.maintenance.policy import Policy
    from memwal.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A managed table at one moment.

    Attributes
    ----------
    table : ManagedTable
    status : TableStatus
    due : mapping of str to Due
        By job. Held regions that wait for their next try do not count for merges.
    held : tuple of HeldRecord
        All regions that are held, whether their next try is due or not.
    """

    table: ManagedTable
    status: TableStatus
    due: Mapping[str, Due]
    held: tuple[HeldRecord, ...]

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait in the regions that are due."""
        wanted = set(self.due["merge"].regions)
        return sum(r.backlog_bytes for r in self.status.regions if r.region_id in wanted)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **self.status.to_dict(),
            "table": self.table.name,
            "due": {job: one.to_dict() for job, one in self.due.items()},
            "held": [record.to_dict() for record in self.held],
        }


def open_managed(
    managed: ManagedTable, *, storage_options: Mapping[str, str] | None = None
) -> Table:
    """Open a managed table.

    Parameters
    ----------
    managed : ManagedTable
    storage_options : mapping, optional
        By default those that the catalog refers to.

    Raises
    ------
    InvalidInputError
        The options cannot be read, or are those of an Airflow connection.
    TableSetupError
        There is no table, or it has no MemWAL.
    """
    from memwal.table import open as open_table

    location = managed_location(managed, storage_options=storage_options)
    return open_table(location.uri, storage_options=location.storage_options)


def managed_location(
    managed: ManagedTable, *, storage_options: Mapping[str, str] | None = None
) -> TableLocation:
    """Where a managed table is, without opening it; see :func:`open_managed`.

    Raises
    ------
    InvalidInputError
        The options cannot be read, or are those of an Airflow connection.
    """
    ref = managed.storage_options_ref
    if storage_options is None and ref is not None:
        if ref.startswith(CONNECTION_PREFIX):
            raise InvalidInputError(
                f"the storage options of {managed.name} are in the Airflow connection "
                f"{ref.removeprefix(CONNECTION_PREFIX)!r}, which only Airflow can read; register "
                "a file: memwal catalog update NAME --storage-options-ref FILE.json"
            )
        storage_options = read_options_file(Path(ref))
    return TableLocation(managed.uri, storage_options or {})


def check_regions(table: Table, regions: Collection[UUID]) -> None:
    """Refuse regions that a table does not have.

    Raises
    ------
    InvalidInputError
        Naming them.
    """
    unknown = sorted(set(regions) - set(table.region_ids()))
    if unknown:
        raise InvalidInputError(
            f"{table.uri} has no region {', '.join(map(str, unknown))}; memwal status lists those "
            "that it has. Nothing was done."
        )


def survey(
    catalog: Catalog,
    managed: ManagedTable,
    *,
    table: Table | None = None,
    storage_options: Mapping[str, str] | None = None,
    regions: Collection[UUID] | None = None,
    index: str | None = None,
    now: datetime | None = None,
) -> Survey:
    """Look at a managed table, and hold what is found against its policy.

    Parameters
    ----------
    catalog : Catalog
    managed : ManagedTable
    table : Table, optional
        The same, if it is open already.
    storage_options
        See :func:`open_managed`.
    regions : collection of UUID, optional
        Only these.
    index : str, optional
        Of the indexes, only this one.
    now : datetime, optional
        Aware; by default the present.

    Raises
    ------
    InvalidInputError
        The table does not maintain that index.
    """
    opened = table or open_managed(managed, storage_options=storage_options)
    status = opened.status(regions=regions)
    if index is not None:
        only = tuple(lag for lag in status.indexes if lag.name == index)
        if not only:
            raise InvalidInputError(f"{managed.name} maintains no index {index}; nothing was done.")
        status = replace(status, indexes=only)
    held = tuple(catalog.setbacks.held(managed.name))
    found = due_but_held(
        status,
        managed.policy,
        held,
        now=now or datetime.now(UTC),
        last_runs=catalog.last_runs(managed.name),
    )
    return Survey(table=managed, status=status, due=found, held=held)


def due_but_held(
    status: TableStatus,
    policy: Policy,
    held: Iterable[HeldRecord],
    *,
    now: datetime,
    last_runs: Mapping[str, datetime],
) -> dict[str, Due]:
    """Which jobs are due, as of :func:`memwal.maintenance.due.due`.

    Held regions that wait for their next try do not count for merges.
    """
    found = due(status, policy, now=now, last_runs=last_runs)
    waiting = {record.region_id for record in held if record.waiting}
    if waiting:
        mergeable = tuple(r for r in status.regions if r.region_id not in waiting)
        status = replace(status, regions=mergeable)
        found["merge"] = due(status, policy, now=now, last_runs=last_runs)["merge"]
    return found
