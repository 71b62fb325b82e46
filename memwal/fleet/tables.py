"""Managed tables: open a table, survey its status and due jobs, discover tables below a prefix."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from memwal.boundary.public import public
from memwal.catalog.records import CONNECTION_PREFIX, ManagedTable, TableFolder
from memwal.errors import InvalidInputError, MemWalError
from memwal.format.paths import VERSIONS_DIR
from memwal.jobs.due import Due, due
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus
from memwal.storage.credentials import read_options_file
from memwal.storage.location import TableLocation, allow_external
from memwal.storage.object_store import ObjectStore
from memwal.storage.open import open_store
from memwal.storage.uris import parse_uri
from memwal.util.concurrency import map_parallel
from memwal.util.records import JsonObject, JsonRecord

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.backoff import SkippedRegionRecord
    from memwal.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Status of a managed table, with its due jobs."""

    table: ManagedTable
    """The managed table."""
    status: TableStatus
    """Its status."""
    due: Mapping[str, Due]
    """By job that the table has. A merge does not count regions that wait for their next try."""
    skipped_regions: tuple[SkippedRegionRecord, ...]
    """All skipped regions, whether their next try is due or not."""
    last_runs: Mapping[str, datetime]
    """When each job last succeeded, in UTC; jobs that never did are absent."""

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the backlog of the regions that are due for a merge."""
        due_regions = set(self.due["merge"].regions) if self.status.mem_wal else set()
        return sum(r.backlog_bytes for r in self.status.regions if r.region_id in due_regions)

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {
            **self.status.to_dict(),
            "table": self.table.name,
            "due": {job: due.to_dict() for job, due in self.due.items()},
            "skipped_regions": [record.to_dict() for record in self.skipped_regions],
        }


@public
def open_managed(
    managed: ManagedTable, *, storage_options: Mapping[str, str] | None = None
) -> Table:
    """Open a ``managed`` table.

    ``storage_options`` are by default the options that the catalog refers to.

    Raises
    ------
    InvalidInputError
        The options cannot be read, or are those of an Airflow connection; or the policy of the
        table cannot be read.
    TableSetupError
        There is no table.
    """
    from memwal.table import open as open_table

    location = managed_location(managed, storage_options=storage_options)
    return open_table(location.uri, storage_options=location.storage_options)


def managed_location(
    managed: ManagedTable, *, storage_options: Mapping[str, str] | None = None
) -> TableLocation:
    """Return the location of a managed table without opening it; see :func:`open_managed`."""
    if managed.problem is not None:
        raise InvalidInputError(managed.problem)
    ref = managed.storage_options_ref
    if storage_options is None and ref is not None:
        storage_options = _read_options(ref, managed.name)
    roots = managed.policy.allow_external
    return TableLocation(managed.uri, allow_external(storage_options, roots))


def _read_options(ref: str, name: str) -> Mapping[str, str]:
    """Read the storage options that a table or folder of this name refers to."""
    if ref.startswith(CONNECTION_PREFIX):
        raise InvalidInputError(
            f"the storage options of {name} are in the Airflow connection "
            f"{ref.removeprefix(CONNECTION_PREFIX)!r}, which only Airflow can read; register a "
            "file: --storage-options-ref FILE.json"
        )
    return read_options_file(Path(ref))


def check_regions(table: Table, regions: Collection[UUID]) -> None:
    """Raise ``InvalidInputError``, with their names, if a table does not have these regions."""
    unknown = sorted(set(regions) - set(table.region_ids()))
    if unknown:
        raise InvalidInputError(
            f"{table.uri} has no region {', '.join(map(str, unknown))}; memwal status lists its "
            "regions. Nothing was done."
        )


@public
def survey(
    catalog: Catalog,
    managed: ManagedTable,
    *,
    table: Table | None = None,
    storage_options: Mapping[str, str] | None = None,
    regions: Collection[UUID] | None = None,
    index: str | None = None,
    old_bytes: bool | None = False,
    now: datetime | None = None,
) -> Survey:
    """Read the status of a ``managed`` table, and compute its due jobs from the policy.

    Parameters
    ----------
    catalog : Catalog
    table : Table, optional
        The open table, if it is open already.
    storage_options
        See :func:`open_managed`.
    regions : collection of UUID, optional
        Only these regions.
    index : str, optional
        Only this index; ``InvalidInputError`` if the table does not maintain it.
    old_bytes : bool, optional
        See :func:`memwal.jobs.backlog.read_status`.
    now : datetime, optional
        Aware; by default the present.
    """
    opened = table or open_managed(managed, storage_options=storage_options)
    policy = managed.policy
    status = opened.status(
        regions=regions,
        collection=policy.gc_options(),
        compaction=policy.compact_options(),
        old_bytes=old_bytes,
    )
    if index is not None:
        only = tuple(lag for lag in status.indexes if lag.name == index)
        if not only:
            raise InvalidInputError(f"{managed.name} maintains no index {index}; nothing was done.")
        status = replace(status, indexes=only)
    skipped_regions = tuple(catalog.backoffs.skipped_regions(managed.name))
    last_runs = catalog.last_runs(managed.name)
    due_now = due_jobs(
        status,
        managed.policy,
        skipped_regions,
        now=now or datetime.now(UTC),
        last_runs=last_runs,
    )
    return Survey(
        table=managed,
        status=status,
        due=due_now,
        skipped_regions=skipped_regions,
        last_runs=last_runs,
    )


def due_jobs(
    status: TableStatus,
    policy: Policy,
    skipped_regions: Iterable[SkippedRegionRecord],
    *,
    now: datetime,
    last_runs: Mapping[str, datetime],
) -> dict[str, Due]:
    """Compute the due jobs as :func:`memwal.jobs.due.due` does.

    For merges, skipped regions that wait for their next try do not count.
    """
    jobs = due(status, policy, now=now, last_runs=last_runs)
    waiting = {record.region_id for record in skipped_regions if record.waiting}
    if waiting and status.mem_wal:
        mergeable = tuple(r for r in status.regions if r.region_id not in waiting)
        status = replace(status, regions=mergeable)
        jobs["merge"] = due(status, policy, now=now, last_runs=last_runs)["merge"]
    return jobs


DEFAULT_DEPTH: Final = 4
_MAX_NAME: Final = 63
_ENDING: Final = re.compile(r"\.(lance|ldb)$", re.IGNORECASE)
_UNFIT: Final = re.compile(r"[^a-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredTable(JsonRecord):
    """Lance table that :func:`find_tables` discovered."""

    uri: str
    """Address of the table."""
    mem_wal: bool
    """Whether MemWAL is enabled on the table."""
    problem: str | None = None
    """Why the table could not be opened; ``mem_wal`` is False then."""


@public
def find_tables(
    prefix: str, *, storage_options: Mapping[str, str] | None = None, depth: int = DEFAULT_DEPTH
) -> list[DiscoveredTable]:
    """Find the Lance tables below a prefix, ordered by address.

    A table is a folder that contains a folder ``_versions``. The search does not descend into
    tables, nor into folders whose name begins with ``.`` or ``_``. A folder costs one listing, a
    table also a read of its newest manifest. A table that cannot be opened is included with its
    problem, and does not stop the search.

    Parameters
    ----------
    prefix : str
        A local folder, or a bucket with or without a path; it may itself be a table. The result is
        empty if nothing exists there.
    storage_options : mapping, optional
        Storage options of the prefix and of every table below it.
    depth : int, default 4
        Maximal depth of folders.

    Raises
    ------
    InvalidInputError
        ``depth`` is negative, or the prefix is not a valid address.
    StoreAccessError, StoreUnavailableError
        A folder could not be listed.
    """
    if depth < 0:
        raise InvalidInputError("depth must be at least 0")
    options = dict(storage_options or {})
    store = open_store(prefix, options)
    root = str(parse_uri(prefix)).rstrip("/")
    keys = list(_table_keys(store, depth))
    tables = map_parallel(lambda key: _inspect_table(f"{root}/{key}".rstrip("/"), options), keys)
    return sorted(tables, key=lambda table: table.uri)


@public
def register_tables(
    catalog: Catalog,
    tables: Collection[DiscoveredTable],
    *,
    storage_options_ref: str | None = None,
    enabled: bool = False,
    policy: Policy | None = None,
    owner: str = "memwal",
) -> list[ManagedTable]:
    """Register the new ``tables`` that can be opened, and return their records.

    A table is named after its folder, without ``.lance``; a number is added if the name is taken.
    ``storage_options_ref``, ``enabled``, ``policy`` and ``owner`` are as of
    :meth:`memwal.catalog.Catalog.register`, for each table of the ``catalog``; they are not
    maintained unless ``enabled``.
    """
    registered = catalog.list()
    addresses = {str(parse_uri(table.uri)) for table in registered}
    names = {table.name for table in registered}
    added = []
    for table in tables:
        address = str(parse_uri(table.uri))
        if table.problem is not None or address in addresses:
            continue
        name = _free_name(table.uri, names)
        added.append(
            catalog.register(
                name,
                uri=table.uri,
                storage_options_ref=storage_options_ref,
                policy=policy,
                owner=owner,
                enabled=enabled,
                mem_wal=table.mem_wal,
            )
        )
        names.add(name)
        addresses.add(address)
    return added


@public
def register_folder(
    catalog: Catalog,
    folder: TableFolder,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> list[ManagedTable]:
    """Register the tables of a ``folder`` of the ``catalog`` that are new; return their records.

    ``storage_options`` are by default the options that the folder refers to.

    Raises
    ------
    InvalidInputError
        There is no such folder, or its policy or the options cannot be read.
    StoreAccessError, StoreUnavailableError
        A folder could not be listed.
    """
    if folder.problem is not None:
        raise InvalidInputError(folder.problem)
    ref = folder.storage_options_ref
    if storage_options is None and ref is not None:
        storage_options = _read_options(ref, folder.uri)
    found = find_tables(folder.uri, storage_options=storage_options)
    if not found:
        _check_exists(TableLocation(folder.uri, storage_options or {}))
    return register_tables(
        catalog,
        found,
        storage_options_ref=ref,
        enabled=folder.enabled,
        policy=folder.policy,
        owner=folder.owner,
    )


def _check_exists(folder: TableLocation) -> None:
    path = folder.local_path
    if not (path.is_dir() if path is not None else any(folder.store.list(""))):
        raise InvalidInputError(
            f"there is no folder {folder}; correct the address, or, if its disk is not mounted, "
            "mount it"
        )


@public
def add_folder(
    catalog: Catalog,
    address: str,
    *,
    storage_options_ref: str | None = None,
    policy: Policy | None = None,
    owner: str = "memwal",
    enabled: bool = True,
) -> list[ManagedTable]:
    """Add a folder to the ``catalog``, register its tables, and return the new tables.

    The other parameters and the errors are those of :func:`maintain`. ``enabled`` tells whether the
    tables are maintained from now on. A folder that does not exist is not added.
    """
    known = {folder.uri for folder in catalog.folders()}
    folder = catalog.add_folder(
        address,
        storage_options_ref=storage_options_ref,
        policy=policy,
        owner=owner,
        enabled=enabled,
    )
    if (storage_options_ref or "").startswith(CONNECTION_PREFIX):
        return []
    try:
        return register_folder(catalog, folder)
    except InvalidInputError:
        if folder.uri not in known:
            catalog.remove_folder(folder.uri)
        raise


@public
def maintain(
    address: str,
    *,
    storage_options_ref: str | None = None,
    policy: Policy | None = None,
    owner: str = "memwal",
    catalog_url: str | None = None,
) -> list[ManagedTable]:
    """Have every table of a folder, or of a LanceDB database, maintained, also those made later.

    The folder and its tables are registered in the catalog. A running ``memwal fleet``, or the
    fleet DAG of Airflow, runs the jobs of the tables, and looks for new ones. To leave a table out,
    disable it: ``memwal catalog disable NAME``.

    Parameters
    ----------
    address : str
        A local folder, or a bucket with or without a path.
    storage_options_ref : str, optional
        Absolute path of a JSON file with storage options, or ``airflow:{connection id}``: then
        Airflow registers the tables.
    policy : Policy, optional
        Policy that each new table gets.
    owner : str, default "memwal"
        Who to ask about the tables.
    catalog_url : str, optional
        As of :class:`memwal.catalog.Catalog`.

    Returns
    -------
    list of ManagedTable
        The tables that are registered now and were not before.

    Raises
    ------
    InvalidInputError
        There is no such folder, a value is not allowed, or the storage options cannot be read.
    StoreAccessError, StoreUnavailableError
        A folder could not be listed.
    """
    from memwal.catalog import Catalog

    with closing(Catalog(catalog_url)) as catalog:
        catalog.migrate()
        return add_folder(
            catalog,
            address,
            storage_options_ref=storage_options_ref,
            policy=policy,
            owner=owner,
        )


def _table_keys(store: ObjectStore, depth: int) -> Iterator[str]:
    """Yield the keys of the tables below the root of a store, level by level."""
    level = [""]
    for remaining in range(depth, -1, -1):
        deeper = []
        for folder, names in zip(level, map_parallel(store.list_folders, level), strict=True):
            if VERSIONS_DIR in names:
                yield folder
            elif remaining:
                deeper += [
                    f"{folder}/{name}" if folder else name
                    for name in names
                    if not name.startswith((".", "_"))
                ]
        level = deeper
        if not level:
            return


def _inspect_table(uri: str, options: Mapping[str, str]) -> DiscoveredTable:
    from memwal.base_table.snapshot import open_base

    try:
        base = open_base(TableLocation(uri, options))
    except MemWalError as error:
        return DiscoveredTable(uri=uri, mem_wal=False, problem=f"{type(error).__name__}: {error}")
    return DiscoveredTable(uri=uri, mem_wal=base.index is not None)


def _free_name(uri: str, taken: set[str]) -> str:
    folder = _ENDING.sub("", uri.rstrip("/").rpartition("/")[2])
    # A name begins with a letter or a digit.
    name = _UNFIT.sub("-", folder.lower()).strip("-_")[:_MAX_NAME] or "table"
    if name not in taken:
        return name
    numbered = (f"{name[: _MAX_NAME - 5]}-{number}" for number in count(2))
    return next(candidate for candidate in numbered if candidate not in taken)
