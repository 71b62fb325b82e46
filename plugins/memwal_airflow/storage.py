"""From a reference to storage options, and from there to a table.

The catalog, DAGs, triggers and command lines carry references only: the path of a JSON file, or
``airflow:{connection id}``. What they refer to is read where it is used.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from airflow.sdk import BaseHook, Connection

from memwal.catalog.records import CONNECTION_PREFIX
from memwal.maintenance.status import RegionBacklog
from memwal.storage.location import TableLocation
from memwal.storage.options_file import as_options, read_options_file

if TYPE_CHECKING:
    from memwal.table import Table

# Every task of Airflow imports this module when it parses its DAG; Lance, which takes a second or
# two, is imported by those that look at a table.


def read_options(ref: str | None) -> dict[str, str] | None:
    """Storage options behind a reference; None when there is no reference.

    Raises
    ------
    InvalidInputError
        The file or the connection's extra does not hold one flat JSON object. The message does
        not show what it holds.
    """
    if ref is None:
        return None
    if ref.startswith(CONNECTION_PREFIX):
        return _of_connection(BaseHook.get_connection(ref.removeprefix(CONNECTION_PREFIX)))
    return read_options_file(Path(ref))


async def read_options_async(ref: str | None) -> dict[str, str] | None:
    """The same as :func:`read_options`, for triggers."""
    if ref is None:
        return None
    if ref.startswith(CONNECTION_PREFIX):
        return _of_connection(await BaseHook.aget_connection(ref.removeprefix(CONNECTION_PREFIX)))
    return await asyncio.to_thread(read_options_file, Path(ref))


def options_file(ref: str | None, folder: Path) -> str | None:
    """Path of a file that holds the options, for a command line.

    Parameters
    ----------
    ref : str or None
        A file is returned as it is; the extra of a connection is written to a file of mode 0600.
    folder : Path
        Where that file is made; the caller removes it.
    """
    if ref is None or not ref.startswith(CONNECTION_PREFIX):
        return ref
    path = folder / "storage-options.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(read_options(ref), file)
    return str(path)


def table_at(uri: str, ref: str | None) -> Table:
    """Open a table with the options behind a reference."""
    from memwal.table import open as open_table

    return open_table(uri, storage_options=read_options(ref))


def region_backlog(
    uri: str, region_id: str, options: dict[str, str] | None
) -> RegionBacklog | None:
    """Backlog of one region; None when the region does not exist yet."""
    from memwal.maintenance.backlog import read_status

    location = TableLocation(uri, options or {})
    regions = read_status(location, regions=[UUID(region_id)]).regions
    return regions[0] if regions else None


def _of_connection(connection: Connection) -> dict[str, str]:
    return as_options(connection.extra_dejson, f"the extra of connection {connection.conn_id!r}")
