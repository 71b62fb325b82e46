"""From a reference to storage options, and from there to a table.

The catalog, DAGs, triggers and command lines carry references only: the path of a JSON file, or
``airflow:{connection id}``. What they refer to is read where it is used, anew each time: temporary
credentials are as fresh as the connection gives them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from memwal.catalog.records import CONNECTION_PREFIX
from memwal.storage.options_file import read_options_file
from memwal_airflow.connection import storage_options
from memwal_airflow.handover import private_file

if TYPE_CHECKING:
    from memwal.table import Table

# Every task of Airflow imports this module when it parses its DAG; Lance, which takes a second or
# two, is imported by those that look at a table.


def read_options(ref: str | None) -> dict[str, str] | None:
    """Storage options behind a reference; None when there is no reference.

    Raises
    ------
    InvalidInputError
        The file or the connection does not hold storage options, see
        :func:`memwal_airflow.connection.storage_options`. The message does not show what it holds.
    """
    if ref is None:
        return None
    if ref.startswith(CONNECTION_PREFIX):
        return storage_options(BaseHook.get_connection(ref.removeprefix(CONNECTION_PREFIX)))
    return read_options_file(Path(ref))


async def read_options_async(ref: str | None) -> dict[str, str] | None:
    """The same as :func:`read_options`, for triggers."""
    if ref is None:
        return None
    if ref.startswith(CONNECTION_PREFIX):
        connection = await BaseHook.aget_connection(ref.removeprefix(CONNECTION_PREFIX))
        # A role is asked for over the network.
        return await asyncio.to_thread(storage_options, connection)
    return await asyncio.to_thread(read_options_file, Path(ref))


def options_file(ref: str | None, folder: Path) -> str | None:
    """Path of a file that holds the options, for a command line.

    Parameters
    ----------
    ref : str or None
        A file is returned as it is; what a connection stands for is written to a file of mode
        0600, see :mod:`memwal_airflow.handover`.
    folder : Path
        Of the job; where that file is made. The caller removes it.
    """
    if ref is None or not ref.startswith(CONNECTION_PREFIX):
        return ref
    return str(private_file(read_options(ref) or {}, folder))


def table_at(uri: str, ref: str | None) -> Table:
    """Open a table with the options behind a reference."""
    from memwal.table import open as open_table

    return open_table(uri, storage_options=read_options(ref))
