"""Read the status of a table once, for a sensor or a trigger that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus
from memwal.storage.location import TableLocation
from memwal_airflow.hooks.storage_options import read_options, read_options_async

# Catalog and Lance take a second to import, so only the functions that read import them.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A table to read: its name in the catalog, or its address.

    Attributes
    ----------
    table : str or None
        Name in the catalog of ``$MEMWAL_CATALOG_URL``, which holds the address, the storage
        options, the policy and the held regions.
    table_uri : str or None
        Address of a table that is in no catalog.
    storage_options_ref : str or None
        Of such a table: path of a JSON file, or ``airflow:{connection id}``.

    Raises
    ------
    InvalidInputError
        Neither is given, or both.
    """

    table: str | None = None
    table_uri: str | None = None
    storage_options_ref: str | None = None

    def __post_init__(self) -> None:
        if (self.table is None) == (self.table_uri is None):
            raise InvalidInputError("give table= (a name in the catalog) or table_uri=, not both")
        if self.table is not None and self.storage_options_ref is not None:
            raise InvalidInputError(
                "the catalog knows where the storage options of a managed table are; "
                "storage_options_ref= goes with table_uri="
            )

    def __str__(self) -> str:
        return str(self.table or self.table_uri)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSource:
    """Address of a table, with what the catalog records about it.

    Attributes
    ----------
    uri : str
    storage_options_ref : str or None
    policy : Policy
        The default policy for a table that is in no catalog.
    regions_in_backoff : frozenset of str
        Held regions whose next attempt is still to come.
    """

    uri: str
    storage_options_ref: str | None
    policy: Policy
    regions_in_backoff: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReading:
    """The status of a table as read once, with its policy.

    Attributes
    ----------
    status : TableStatus
        Of the requested regions.
    policy, regions_in_backoff
        As of :class:`ResolvedSource`.
    at : datetime
        In UTC.
    """

    status: TableStatus
    policy: Policy
    regions_in_backoff: frozenset[str]
    at: datetime


def resolve_source(source: TableSource) -> ResolvedSource:
    """Return where a table is: from the catalog by its name, or as given by its address.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    """
    if source.table_uri is not None:
        return ResolvedSource(
            uri=source.table_uri,
            storage_options_ref=source.storage_options_ref,
            policy=Policy(),
        )
    from memwal.catalog import Catalog

    name = str(source.table)
    catalog = Catalog()
    try:
        managed = catalog.get(name)
        held = catalog.backoffs.skipped_regions(name)
    finally:
        catalog.close()
    return ResolvedSource(
        uri=managed.uri,
        storage_options_ref=managed.storage_options_ref,
        policy=managed.policy,
        regions_in_backoff=frozenset(record.region_id for record in held if record.waiting),
    )


def read_table_status(
    source: TableSource, *, regions: Collection[str] | None = None
) -> TableReading:
    """Read the status of a table now.

    Parameters
    ----------
    source : TableSource
    regions : collection of str, optional
        UUIDs of the regions to read; all by default.

    Raises
    ------
    MemWalError
        The catalog, the storage options or the table cannot be read.
    """
    resolved = resolve_source(source)
    return _read_resolved(resolved, read_options(resolved.storage_options_ref), regions)


async def read_table_status_async(
    source: TableSource, *, regions: Collection[str] | None = None
) -> TableReading:
    """Read the status without blocking the event loop; see :func:`read_table_status`."""
    resolved = await asyncio.to_thread(resolve_source, source)
    options = await read_options_async(resolved.storage_options_ref)
    return await asyncio.to_thread(_read_resolved, resolved, options, regions)


def _read_resolved(
    resolved: ResolvedSource, options: Mapping[str, str] | None, regions: Collection[str] | None
) -> TableReading:
    from memwal.jobs.backlog import read_status

    status = read_status(
        TableLocation(resolved.uri, options or {}),
        regions=None if regions is None else [UUID(region) for region in sorted(regions)],
    )
    return TableReading(
        status=status,
        policy=resolved.policy,
        regions_in_backoff=resolved.regions_in_backoff,
        at=datetime.now(UTC),
    )
