"""Handing storage options to a process that is started by a command line.

They lie in a file of mode 0600 in a folder of mode 0700, in memory where the system has a folder
for that. The process that made the file holds a lock on it, which ends with the process, however
that ends: a file that nobody locks is swept by whoever hands something over next.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from memwal.errors import InvalidInputError

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder below it is private, and checked


@contextmanager
def private_file(options: Mapping[str, str], *, folder: Path | None = None) -> Iterator[str]:
    """Give the path of a file that holds storage options, for as long as the block lasts.

    Parameters
    ----------
    options : mapping
        What it holds, as JSON.
    folder : Path, optional
        Where it lies; by default a folder of this user in ``/dev/shm``, else in the system's
        folder of temporary files.

    Raises
    ------
    InvalidInputError
        The folder belongs to somebody else, or others can look into it.
    """
    place = _private(folder or _default_folder())
    sweep(place)
    path, descriptor = _locked_file(place)
    try:
        os.write(descriptor, json.dumps(dict(options)).encode())
        yield str(path)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def sweep(folder: Path) -> int:
    """Remove the files whose makers are gone, and return how many there were."""
    swept = 0
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                swept += 1
            finally:
                os.close(descriptor)
    return swept


def _locked_file(folder: Path) -> tuple[Path, int]:
    while True:
        # mkstemp makes it with mode 0600, and closed to programs that are started.
        descriptor, name = tempfile.mkstemp(suffix=".json", prefix="", dir=folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Somebody may have swept it between the two calls; nothing was in it yet.
        if os.fstat(descriptor).st_nlink:
            return Path(name), descriptor
        os.close(descriptor)


def _default_folder() -> Path:
    in_memory = _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK | os.X_OK)
    return (_IN_MEMORY if in_memory else Path(tempfile.gettempdir())) / f"memwal-{os.getuid()}"


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not mine or stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidInputError(
            f"{folder} must be a folder of this user with mode 0700, since storage options are "
            "handed over in it; remove it or correct its mode"
        )
    return folder
