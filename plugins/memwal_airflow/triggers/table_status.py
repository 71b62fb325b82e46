"""Read the status of a table once, for a sensor or a trigger that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus
from memwal.storage.location import TableLocation, allow_external
from memwal_airflow.hooks.storage_options import read_options, read_options_async

# Catalog and Lance take a second to import, so only the functions that read import them.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A table to read: its name in the catalog, or its address with its storage options.

    ``storage_options_ref`` is the path of a JSON file, or ``airflow:{connection id}``. The catalog
    of ``$MEMWAL_CATALOG_URL`` holds the address, storage options, policy and skipped regions of a
    named table.
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
    """Address of a table, with what the catalog records about it."""

    uri: str
    storage_options_ref: str | None
    policy: Policy = field(default_factory=Policy)
    # Skipped regions whose next attempt is still to come.
    regions_in_backoff: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReading:
    """The status of the requested regions of a table at a time in UTC, with its policy."""

    status: TableStatus
    policy: Policy
    regions_in_backoff: frozenset[str]
    at: datetime


def resolve_source(source: TableSource) -> ResolvedSource:
    """Return the address of a table; raise ObjectNotFoundError if the catalog has no such name."""
    if source.table_uri is not None:
        return ResolvedSource(uri=source.table_uri, storage_options_ref=source.storage_options_ref)
    from memwal.catalog import Catalog

    name = str(source.table)
    with closing(Catalog()) as catalog:
        managed = catalog.get(name)
        skipped = catalog.backoffs.skipped_regions(name)
    return ResolvedSource(
        uri=managed.uri,
        storage_options_ref=managed.storage_options_ref,
        policy=managed.policy,
        regions_in_backoff=frozenset(record.region_id for record in skipped if record.waiting),
    )


def read_table_status(
    source: TableSource, *, regions: Collection[str] | None = None
) -> TableReading:
    """Read the status of a table and of some regions (default: all) now.

    Raises MemWalError if the catalog, the storage options or the table cannot be read.
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
        TableLocation(resolved.uri, allow_external(options, resolved.policy.allow_external)),
        regions=None if regions is None else [UUID(region) for region in sorted(regions)],
        collection=resolved.policy.gc_options(),
    )
    return TableReading(
        status=status,
        policy=resolved.policy,
        regions_in_backoff=resolved.regions_in_backoff,
        at=datetime.now(UTC),
    )
