"""Handing storage options to a process that is started by a command line.

They lie in a file of mode 0600 in the folder of the job, which goes with the job. The process that
made the file holds a lock on it, which ends with that process, however it ends: by then the driver,
which reads the file before anything else, does not need it any more. Whoever hands something over
next removes the files beside its own that nobody has locked.

From a reference to storage options, and from there to a table.

The catalog, DAGs, triggers and command lines carry references only: the path of a JSON file, or
``airflow:{connection id}``. What they refer to is read where it is used, anew each time: temporary
credentials are as fresh as the connection gives them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow.sdk import BaseHook

from memwal.catalog.records import CONNECTION_PREFIX
from memwal.storage.credentials import read_options_file
from memwal_airflow.hooks.connection import storage_options

if TYPE_CHECKING:
    from memwal.table import Table

NAME: Final = ".memwal-storage-options.json"

# Of the files that this process made: closing one gives its lock up.
_locks: dict[Path, int] = {}


def private_file(options: Mapping[str, str], folder: Path) -> Path:
    """Write storage options as JSON into a file for this user alone.

    Parameters
    ----------
    options : mapping
        What it holds.
    folder : Path
        Of one job, which nothing was handed over to yet; the caller removes it with what is in it.
        Its parent is looked through for files that were left behind.
    """
    sweep(folder.parent)
    path = folder / NAME
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    _locks[path] = descriptor
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        json.dump(dict(options), file)
    return path


def sweep(parent: Path) -> int:
    """Remove what processes that are gone left in the folders of a folder; return how much."""
    for path in [path for path in _locks if not path.exists()]:
        os.close(_locks.pop(path))
    swept = 0
    for path in parent.glob(f"*/{NAME}"):
        # Of another user, or just gone, or in use.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # One that is empty is being made: its maker has no lock yet.
                if os.fstat(descriptor).st_size:
                    path.unlink()
                    swept += 1
            finally:
                os.close(descriptor)
    return swept


# Every task of Airflow imports this module when it parses its DAG; Lance, which takes a second or
# two, is imported by those that look at a table.


def read_options(ref: str | None) -> dict[str, str] | None:
    """Storage options behind a reference; None when there is no reference.

    Raises
    ------
    InvalidInputError
        The file or the connection does not hold storage options, see
        :func:`memwal_airflow.hooks.connection.storage_options`. The message does not show what it
        holds.
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
        0600, see :mod:`memwal_airflow.hooks.storage_options`.
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
