"""Handing storage options to a process that is started by a command line.

They lie in a file of mode 0600 in the folder of the job, which goes with the job. The process that
made the file holds a lock on it, which ends with that process, however it ends: by then the driver,
which reads the file before anything else, does not need it any more. Whoever hands something over
next removes the files beside its own that nobody has locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
