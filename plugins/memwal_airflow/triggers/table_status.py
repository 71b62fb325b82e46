"""One look at a table, for whoever waits for something: how it is reached, and what is found."""

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

# Catalog and Lance, which take a second to load, are imported by what looks.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A table that is looked at: its name in the catalog, or its address.

    Attributes
    ----------
    table : str or None
        Name in the catalog of ``$MEMWAL_CATALOG_URL``, which tells address, storage options,
        policy and held regions.
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
class Place:
    """Where a source is, and what the catalog says of it.

    Attributes
    ----------
    uri : str
    storage_options_ref : str or None
    policy : Policy
        The default one for a table that is in no catalog.
    waiting : frozenset of str
        Regions that are held, and whose next try is still to come.
    """

    uri: str
    storage_options_ref: str | None
    policy: Policy
    waiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found.

    Attributes
    ----------
    status : TableStatus
        Of the regions that were asked for.
    policy, waiting
        As of :class:`Place`.
    at : datetime
        In UTC.
    """

    status: TableStatus
    policy: Policy
    waiting: frozenset[str]
    at: datetime


def find(source: TableSource) -> Place:
    """Ask the catalog where a table is; it is not asked for one that is given by its address.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    """
    if source.table_uri is not None:
        return Place(
            uri=source.table_uri,
            storage_options_ref=source.storage_options_ref,
            policy=Policy(),
        )
    from memwal.catalog import Catalog

    name = str(source.table)
    catalog = Catalog()
    try:
        managed = catalog.get(name)
        held = catalog.setbacks.held(name)
    finally:
        catalog.close()
    return Place(
        uri=managed.uri,
        storage_options_ref=managed.storage_options_ref,
        policy=managed.policy,
        waiting=frozenset(record.region_id for record in held if record.waiting),
    )


def look(source: TableSource, *, regions: Collection[str] | None = None) -> Look:
    """Look at a table now.

    Parameters
    ----------
    source : TableSource
    regions : collection of str, optional
        UUIDs of the regions whose figures are wanted; all by default.

    Raises
    ------
    MemWalError
        The catalog, the storage options or the table cannot be read.
    """
    place = find(source)
    return _read(place, read_options(place.storage_options_ref), regions)


async def look_async(source: TableSource, *, regions: Collection[str] | None = None) -> Look:
    """The same as :func:`look`, for triggers: the event loop goes on meanwhile."""
    place = await asyncio.to_thread(find, source)
    options = await read_options_async(place.storage_options_ref)
    return await asyncio.to_thread(_read, place, options, regions)


def _read(place: Place, options: Mapping[str, str] | None, regions: Collection[str] | None) -> Look:
    from memwal.jobs.backlog import read_status

    status = read_status(
        TableLocation(place.uri, options or {}),
        regions=None if regions is None else [UUID(region) for region in sorted(regions)],
    )
    return Look(status=status, policy=place.policy, waiting=place.waiting, at=datetime.now(UTC))
