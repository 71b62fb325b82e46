"""Address of a table with its storage options, and the shared store behind it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from memwal.errors import InvalidInputError
from memwal.storage import object_store, uris
from memwal.storage.credentials import CREDENTIALS_FROM, Credentials, credentials_for
from memwal.storage.object_store import ObjectStore
from memwal.storage.open import check_options, open_store

COMMITS_IN: Final = "memwal_commits_in"
"""Storage option for a store without put-if-absent.

It names the environment variable with the URL of the database that decides the commits.
"""

ALLOW_EXTERNAL: Final = "memwal_allow_external"
"""Storage option with the roots below which a table may have files outside of its own folder.

They are addresses, divided by commas.
"""

_WRAPPERS: Final = "memwal.stores"

# Each bucket client keeps a few connections; a process with more tables than this reopens stores.
_MAX_OPEN_STORES = 512


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Address and storage options of a table.

    Can be pickled and sent to a worker, which opens its own store there. ``repr`` and ``str`` never
    show the options. Two locations are equal if address and options are.

    ``uri`` is the absolute path of a local table, else ``scheme://bucket/path``, in one spelling:
    no ``file://``, no trailing slash. The constructor takes any spelling that
    :func:`~memwal.storage.open.open_store` takes. ``storage_options`` is a copy of Lance's. Three
    of them belong to memwal: ``memwal_commits_in``, see :data:`COMMITS_IN`,
    ``memwal_allow_external``, see :data:`ALLOW_EXTERNAL`, and ``memwal_credentials_from``, see
    :data:`~memwal.storage.credentials.CREDENTIALS_FROM`.
    """

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _address: uris.TableUri = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_address", uris.parse_uri(self.uri))
        object.__setattr__(self, "uri", str(self._address))
        object.__setattr__(self, "storage_options", check_options(self.storage_options))
        for root in self._external_roots:
            uris.parse_uri(root)

    @property
    def store(self) -> ObjectStore:
        """Store of the table, shared by all equal locations of this process."""
        return _shared_store(self, durable=True)

    @property
    def store_without_fsync(self) -> ObjectStore:
        """Store of the table, without fsync if the table is a local folder.

        A local write then takes about a fifth of the time. It survives a crash of the process, but
        not of the machine: after a power cut, objects that were acknowledged in the last seconds
        (30 by default on ext4) can be missing, empty or torn. A torn entry at the tip of a log
        counts as absent; a log torn in its middle is refused as damaged. Object stores are always
        durable.
        """
        return _shared_store(self, durable=self.local_path is None)

    @property
    def local_path(self) -> Path | None:
        """Folder of a local table; None for any other table."""
        return Path(self._address.path) if self._address.scheme == uris.LOCAL else None

    def lance_options(self) -> dict[str, str] | None:
        """Return the storage options for one short call of pylance, with the current credentials.

        Use :meth:`lance_arguments` for data sets that stay open.
        """
        vending = _vending_namespace(self)
        return _static_options(self) or None if vending is None else vending.storage_options()

    def lance_arguments(self) -> dict[str, object]:
        """Return the arguments with which pylance opens this table and keeps access to it.

        If the credentials have a source, Lance gets renewed ones from it.
        """
        vending = _vending_namespace(self)
        if vending is None:
            return {"storage_options": _static_options(self) or None}
        return {
            "storage_options": vending.storage_options(),
            "namespace_client": vending,
            "table_id": ["table"],
        }

    def child(self, path: str) -> str:
        """Return the address of a folder inside the table."""
        return f"{self.uri.rstrip('/')}/{object_store.check_key(path)}"

    @property
    def _external_roots(self) -> list[str]:
        return [r for r in self.storage_options.get(ALLOW_EXTERNAL, "").split(",") if r]

    def allows(self, address: str) -> bool:
        """Return whether files at an address, or below it, may belong to the table."""
        try:
            inner = f"{uris.parse_uri(address)}/"
        except InvalidInputError:
            return False
        roots = (str(uris.parse_uri(root)) for root in (self.uri, *self._external_roots))
        return any(inner.startswith(f"{root.rstrip('/')}/") for root in roots)

    def beside(self, address: str) -> TableLocation:
        """Return the location of another folder, with the options of this one."""
        return TableLocation(address, self.storage_options)

    def __str__(self) -> str:
        return self.uri

    def __hash__(self) -> int:
        return hash((self.uri, frozenset(self.storage_options.items())))


class VendingNamespace:
    """A Lance namespace of one table that only hands out credentials.

    ``options`` are the storage options that do not change.
    """

    def __init__(self, uri: str, options: Mapping[str, str], credentials: Credentials) -> None:
        self._uri = uri
        self._options = dict(options)
        self._credentials = credentials
        # Lance caches open stores by this id.
        name = repr((uri, sorted(self._options.items()), credentials.source)).encode()
        self._id = f"memwal-{hashlib.blake2b(name, digest_size=16).hexdigest()}"

    def namespace_id(self) -> str:
        return self._id

    def describe_table(self, request: object) -> dict[str, object]:
        return {"location": self._uri, "storage_options": self.storage_options()}

    def storage_options(self) -> dict[str, str]:
        """Return all storage options, with the current credentials."""
        return {**self._options, **self._credentials.current().for_lance()}


def allow_external(options: Mapping[str, str] | None, roots: Sequence[str]) -> dict[str, str]:
    """Return storage options that also allow files below some roots.

    Raises InvalidInputError if a root has a comma in it.
    """
    refused = [root for root in roots if "," in root]
    if refused:
        raise InvalidInputError(
            f"{refused[0]} has a comma in it, and cannot be a root of external files; name a "
            "folder above it"
        )
    allowed = dict(options or {})
    if roots:
        before = allowed.get(ALLOW_EXTERNAL)
        allowed[ALLOW_EXTERNAL] = ",".join([*([before] if before else []), *roots])
    return allowed


def _static_options(location: TableLocation) -> dict[str, str]:
    own = (COMMITS_IN, CREDENTIALS_FROM, ALLOW_EXTERNAL)
    return {key: value for key, value in location.storage_options.items() if key not in own}


def _vending_namespace(location: TableLocation) -> VendingNamespace | None:
    scheme = location._address.scheme
    if scheme in (uris.LOCAL, uris.MEMORY):
        return None
    credentials = credentials_for(scheme, location.storage_options)
    if credentials is None:
        return None
    return VendingNamespace(location.uri, _static_options(location), credentials)


@functools.lru_cache(maxsize=_MAX_OPEN_STORES)
def _shared_store(location: TableLocation, *, durable: bool) -> ObjectStore:
    options = dict(location.storage_options)
    options.pop(ALLOW_EXTERNAL, None)
    variable = options.pop(COMMITS_IN, None)
    store = open_store(location.uri, options, durable=durable)
    if variable is None:
        return store
    # Takes 10 ms to import, and few stores need it.
    from importlib.metadata import entry_points

    (wrapper,) = entry_points(group=_WRAPPERS, name=COMMITS_IN)
    wrapped: ObjectStore = wrapper.load()(store, variable)
    return wrapped
