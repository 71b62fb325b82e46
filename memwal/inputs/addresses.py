"""The table that a caller means: an address, or an open table of Lance or LanceDB."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import lance

from memwal.errors import ArgumentTypeError, TableSetupError
from memwal.format.lance_manifest import branch_of
from memwal.storage import location
from memwal.storage.location import TableLocation


class LanceDBTable(Protocol):
    """Open table of LanceDB, in a local folder or an object store."""

    @property
    def uri(self) -> str: ...

    def initial_storage_options(self) -> dict[str, str] | None: ...


TableAddress: TypeAlias = str | os.PathLike[str] | lance.LanceDataset | LanceDBTable
"""A path, the address in an object store, or a table that pylance or LanceDB has opened."""


def location_of(
    table: TableAddress,
    storage_options: Mapping[str, str] | None,
    *,
    allow_external: Sequence[str] = (),
) -> TableLocation:
    """Return the location of a table, which may have files below the roots ``allow_external``.

    A table that is open brings the storage options that it was opened with; ``storage_options``
    come on top of them. Credentials that a namespace hands out are not among them.
    """
    storage_options = location.allow_external(storage_options, allow_external)
    if isinstance(table, (str, os.PathLike)):
        return TableLocation(os.fspath(table), storage_options)
    if isinstance(table, lance.LanceDataset):
        branch = branch_of(table._ds.serialized_manifest())
        if branch is not None:
            raise TableSetupError(
                f"{table.uri} is open at its branch {branch}, which has no regions of its own; "
                "pass the address of the table for its main branch, or read the branch with pylance"
            )
        return _opened(table.uri, table.initial_storage_options, storage_options)
    lancedb: Any = sys.modules.get("lancedb.table")
    if lancedb is not None and isinstance(table, lancedb.LanceTable):
        return _opened(table.uri, table.initial_storage_options(), storage_options)
    raise ArgumentTypeError(
        f"a table is not given by an object of type {type(table).__name__}; pass an address, a "
        "path, a lance.LanceDataset, or a table of lancedb.connect()"
    )


def _opened(
    uri: str, options: Mapping[str, str] | None, storage_options: Mapping[str, str]
) -> TableLocation:
    return TableLocation(uri, {**(options or {}), **storage_options})
