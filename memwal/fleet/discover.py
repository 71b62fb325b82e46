"""Which Lance tables lie below a folder or a prefix of a bucket, and which of them have MemWAL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from memwal.errors import InvalidInputError, MemWalError
from memwal.maintenance.policy import Policy
from memwal.storage.location import TableLocation
from memwal.storage.open import open_store
from memwal.storage.uris import parse_uri

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.storage.base import ObjectStore

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
    from memwal.table_index.base_table import open_base

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
