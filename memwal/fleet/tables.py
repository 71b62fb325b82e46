"""Managed tables: open one, survey what it is due for, and discover tables below a prefix."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from memwal.catalog.records import CONNECTION_PREFIX, ManagedTable
from memwal.errors import InvalidInputError, MemWalError
from memwal.jobs.due import Due, due
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus
from memwal.storage.credentials import read_options_file
from memwal.storage.location import TableLocation
from memwal.storage.open import open_store
from memwal.storage.uris import parse_uri

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.catalog.backoff import HeldRecord
    from memwal.jobs.policy import Policy
    from memwal.storage.object_store import ObjectStore
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
    """Which jobs are due, as of :func:`memwal.jobs.due.due`.

    Held regions that wait for their next try do not count for merges.
    """
    found = due(status, policy, now=now, last_runs=last_runs)
    waiting = {record.region_id for record in held if record.waiting}
    if waiting:
        mergeable = tuple(r for r in status.regions if r.region_id not in waiting)
        status = replace(status, regions=mergeable)
        found["merge"] = due(status, policy, now=now, last_runs=last_runs)["merge"]
    return found


DEFAULT_DEPTH: Final = 4
_VERSIONS: Final = "_versions"
_PARALLEL: Final = 16
_LONGEST_NAME: Final = 63
_ENDING: Final = re.compile(r"\.(lance|ldb)$", re.IGNORECASE)
_UNFIT: Final = re.compile(r"[^a-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A Lance table that was found.

    Attributes
    ----------
    uri : str
        Its address.
    mem_wal : bool
        Whether MemWAL is enabled on it.
    problem : str or None
        Why it could not be opened; ``mem_wal`` is False then.
    """

    uri: str
    mem_wal: bool
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"uri": self.uri, "mem_wal": self.mem_wal, "problem": self.problem}


def find_tables(
    prefix: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    depth: int = DEFAULT_DEPTH,
) -> list[FoundTable]:
    """Find the Lance tables below a prefix.

    A table is a folder with a folder ``_versions``. Nothing inside of tables is looked at, and no
    folder whose name begins with ``.`` or ``_``. A folder costs one listing, a table the reading
    of its newest manifest besides.

    Parameters
    ----------
    prefix : str
        A folder of this machine, or a bucket with or without a path in it; a table itself counts,
        too. Where there is nothing, nothing is found.
    storage_options : mapping, optional
        As for tables; they are used for every table that is found.
    depth : int, default 4
        How many folders deep to look.

    Returns
    -------
    list of FoundTable
        By address. One that cannot be opened is told with its problem and stops no other.

    Raises
    ------
    InvalidInputError
        ``depth`` is negative, or the prefix is no address.
    StoreAccessError, StoreUnavailableError
        A folder could not be listed.
    """
    if depth < 0:
        raise InvalidInputError("depth must be at least 0")
    options = dict(storage_options or {})
    store = open_store(prefix, options)
    root = str(parse_uri(prefix)).rstrip("/")
    keys = list(_tables(store, depth))
    with ThreadPoolExecutor(_PARALLEL) as pool:
        found = pool.map(lambda key: _look(f"{root}/{key}".rstrip("/"), options), keys)
        return sorted(found, key=lambda table: table.uri)


def register_found(
    catalog: Catalog,
    found: Iterable[FoundTable],
    *,
    storage_options_ref: str | None = None,
    enabled: bool = False,
    policy: Policy | None = None,
    owner: str = "memwal",
) -> list[ManagedTable]:
    """Register what was found and has MemWAL, unless its address is registered already.

    A table is named after its folder, without ``.lance``, and with a number when the name is taken.

    Parameters
    ----------
    catalog : Catalog
    found : iterable of FoundTable
    storage_options_ref : str, optional
        Where the options are that reach the tables.
    enabled : bool, default False
        Whether they are maintained from now on.
    policy : Policy, optional
        Defaults to ``Policy()``.
    owner : str, default "memwal"
        Who to ask.

    Returns
    -------
    list of ManagedTable
        The new ones.
    """
    known = catalog.list()
    addresses = {_address(table.uri) for table in known}
    names = {table.name for table in known}
    added = []
    for table in found:
        if not table.mem_wal or _address(table.uri) in addresses:
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
            )
        )
        names.add(name)
        addresses.add(_address(table.uri))
    return added


def _tables(store: ObjectStore, depth: int) -> Iterator[str]:
    """Keys of the tables below the root of a store, level by level."""
    level = [""]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for left in range(depth, -1, -1):
            deeper = []
            for folder, names in zip(level, pool.map(store.list_folders, level), strict=True):
                if _VERSIONS in names:
                    yield folder
                elif left:
                    deeper += [
                        f"{folder}/{name}" if folder else name
                        for name in names
                        if not name.startswith((".", "_"))
                    ]
            level = deeper
            if not level:
                return


def _look(uri: str, options: Mapping[str, str]) -> FoundTable:
    from memwal.base_table.snapshot import open_base

    try:
        base = open_base(TableLocation(uri, options))
    except MemWalError as error:
        return FoundTable(uri=uri, mem_wal=False, problem=f"{type(error).__name__}: {error}")
    return FoundTable(uri=uri, mem_wal=base.index is not None)


def _address(uri: str) -> str:
    return str(parse_uri(uri))


def _free_name(uri: str, taken: set[str]) -> str:
    folder = _ENDING.sub("", uri.rstrip("/").rpartition("/")[2])
    # A name begins with a letter or a digit.
    name = _UNFIT.sub("-", folder.lower()).strip("-_")[:_LONGEST_NAME] or "table"
    if name not in taken:
        return name
    numbered = (f"{name[: _LONGEST_NAME - 5]}-{number}" for number in count(2))
    return next(candidate for candidate in numbered if candidate not in taken)
