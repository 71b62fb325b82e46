"""Where a table is and how to reach it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memwal.storage import object_store, uris
from memwal.storage.credentials import CREDENTIALS_FROM, credentials_for
from memwal.storage.object_store import ObjectStore
from memwal.storage.open import check_options, open_store
from memwal.util.redaction import redact

if TYPE_CHECKING:
    from memwal.storage.vended_credentials import VendingNamespace

__all__ = ["TableLocation", "redact"]

COMMITS_IN: Final = "memwal_commits_in"
"""Storage option for a store without put-if-absent.

It names the environment variable that has the URL of the database which decides the commits.
"""

_WRAPPERS: Final = "memwal.stores"

# A client of a bucket holds a few connections; processes that serve more tables than this reopen.
_OPEN_STORES = 512


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Address of a table and the options that reach it.

    It can be pickled and sent to a worker, which opens a store of its own there. Options are
    never shown by ``repr`` or ``str``; two locations are equal when address and options are.

    Attributes
    ----------
    uri : str
        Absolute path of a local table, else ``scheme://bucket/path``, in one spelling: no
        ``file://``, no trailing slash. Given as any spelling that
        :func:`~memwal.storage.open.open_store` takes.
    storage_options : mapping
        As Lance takes them; a copy of what was given. ``memwal_commits_in`` and
        ``memwal_credentials_from`` are ours, see :data:`COMMITS_IN` and
        :data:`~memwal.storage.credentials.CREDENTIALS_FROM`.

    Raises
    ------
    InvalidInputError
        The address is not one, or an option is not text.
    """

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", str(uris.parse_uri(self.uri)))
        object.__setattr__(self, "storage_options", check_options(self.storage_options))

    @property
    def store(self) -> ObjectStore:
        """The store of the table; one per process for every equal location."""
        return _shared_store(self)

    @property
    def store_without_fsync(self) -> ObjectStore:
        """The store of the table, without fsync where that is a folder of this machine.

        A write then costs about a fifth. It survives the end of the process, and not that of the
        machine: after a power cut, objects that were acknowledged in the last seconds (30 by
        default on ext4) can be gone, or stand there empty or torn, as the tip of a log that counts
        as absent. A log torn in its middle is refused as damaged. Object stores are as durable as
        ever.
        """
        return _shared_store_without_fsync(self) if self.local_path is not None else self.store

    @property
    def local_path(self) -> Path | None:
        """Folder of a local table, or ``None`` for any other."""
        address = uris.parse_uri(self.uri)
        return Path(address.path) if address.scheme == uris.LOCAL else None

    def lance_options(self) -> dict[str, str] | None:
        """Return the storage options for one call of pylance, with the credentials of now.

        For what is over in a moment; :meth:`lance_arguments` is for what stays open.

        Raises
        ------
        StoreAccessError
            The source of the credentials gave none.
        """
        vending = _vending(self)
        return _static_options(self) or None if vending is None else vending.storage_options()

    def lance_arguments(self) -> dict[str, Any]:
        """Return the arguments of pylance that reach this table and keep reaching it.

        Where credentials have a source of their own, Lance asks that for new ones.

        Raises
        ------
        StoreAccessError
            The source of the credentials gave none.
        """
        vending = _vending(self)
        if vending is None:
            return {"storage_options": _static_options(self) or None}
        return {
            "storage_options": vending.storage_options(),
            "namespace_client": vending,
            "table_id": ["table"],
        }

    def child(self, path: str) -> str:
        """Return the address of a folder inside the table.

        Raises
        ------
        InvalidInputError
            The path is absolute or leads out of the table.
        """
        return f"{self.uri.rstrip('/')}/{object_store.check_key(path)}"

    def __str__(self) -> str:
        return self.uri

    def __hash__(self) -> int:
        return hash((self.uri, frozenset(self.storage_options.items())))


@functools.lru_cache(maxsize=_OPEN_STORES)
def _shared_store(location: TableLocation) -> ObjectStore:
    return _opened(location, durable=True)


@functools.lru_cache(maxsize=_OPEN_STORES)
def _shared_store_without_fsync(location: TableLocation) -> ObjectStore:
    return _opened(location, durable=False)


def _static_options(location: TableLocation) -> dict[str, str]:
    ours = (COMMITS_IN, CREDENTIALS_FROM)
    return {key: value for key, value in location.storage_options.items() if key not in ours}


def _vending(location: TableLocation) -> VendingNamespace | None:
    address = uris.parse_uri(location.uri)
    if address.scheme in (uris.LOCAL, uris.MEMORY):
        return None
    credentials = credentials_for(address.scheme, location.storage_options)
    if credentials is None:
        return None
    # Here, since its library takes half a second to import.
    from memwal.storage.vended_credentials import VendingNamespace

    return VendingNamespace(location.uri, _static_options(location), credentials)


def _opened(location: TableLocation, *, durable: bool) -> ObjectStore:
    options = dict(location.storage_options)
    variable = options.pop(COMMITS_IN, None)
    store = open_store(location.uri, options, durable=durable)
    if variable is None:
        return store
    (wrapper,) = entry_points(group=_WRAPPERS, name=COMMITS_IN)
    wrapped: ObjectStore = wrapper.load()(store, variable)
    return wrapped
