"""Resolve references to storage options, and pass the options to a process by a private file.

The catalog, DAGs, triggers and command lines carry references only: the path of a JSON file, or
``airflow:{connection id}``. A reference is resolved anew each time where the options are used, so
that temporary credentials are fresh.

A driver that is started by a command line reads the options of a connection from a file of mode
0600 in the folder of its job, which is removed with that folder. The process that wrote the file
holds a lock on it. The lock ends with that process, however it ends; by then the driver does not
need the file, since it reads the file before anything else. The next process that writes such a
file removes the files beside its own that no process has locked.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from airflow.sdk import BaseHook

from memwal.catalog.records import CONNECTION_PREFIX
from memwal.storage.credentials import read_options_file
from memwal_airflow.hooks.connection import storage_options

OPTIONS_FILE_NAME: Final = ".memwal-storage-options.json"

# Of the files that this process made: closing one gives its lock up.
_locks: dict[Path, int] = {}


def write_private_file(options: Mapping[str, str], folder: Path) -> Path:
    """Write storage options as JSON into a file that only this user may read, and return its path.

    The caller removes the folder, that of one job, with its content. Files that ended processes
    left in sibling folders are removed here.
    """
    remove_orphaned_files(folder.parent)
    path = folder / OPTIONS_FILE_NAME
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    _locks[path] = descriptor
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        json.dump(dict(options), file)
    return path


def remove_orphaned_files(parent: Path) -> int:
    """Remove the files that ended processes left in the folders of ``parent``; return how many."""
    for path in [path for path in _locks if not path.exists()]:
        os.close(_locks.pop(path))
    removed = 0
    for path in parent.glob(f"*/{OPTIONS_FILE_NAME}"):
        # Fails for a file of another user, one that was just removed, or one in use.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # An empty file is being written: its writer has no lock yet.
                if os.fstat(descriptor).st_size:
                    path.unlink()
                    removed += 1
            finally:
                os.close(descriptor)
    return removed


# Every task of Airflow imports this module when it parses its DAG. Lance takes a second or two to
# import, so only the functions that open a table import it.


def read_options(ref: str | None) -> dict[str, str] | None:
    """Resolve a reference to storage options; None without a reference.

    Raises InvalidInputError if the file or the connection holds none; its message does not show
    their content.
    """
    if ref is None:
        return None
    if ref.startswith(CONNECTION_PREFIX):
        return storage_options(BaseHook.get_connection(ref.removeprefix(CONNECTION_PREFIX)))
    return read_options_file(Path(ref))


async def read_options_async(ref: str | None) -> dict[str, str] | None:
    """Resolve a reference as :func:`read_options` does, for triggers."""
    if ref is None:
        return None
    if ref.startswith(CONNECTION_PREFIX):
        connection = await BaseHook.aget_connection(ref.removeprefix(CONNECTION_PREFIX))
        # Assuming a role takes requests over the network.
        return await asyncio.to_thread(storage_options, connection)
    return await asyncio.to_thread(read_options_file, Path(ref))


def options_file(ref: str | None, folder: Path) -> str | None:
    """Return the path of a file with the options, for a command line.

    The options of a connection are written to a file in the folder of the job, see
    :func:`write_private_file`.
    """
    if ref is None or not ref.startswith(CONNECTION_PREFIX):
        return ref
    return str(write_private_file(read_options(ref) or {}, folder))
