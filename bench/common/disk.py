"""What the disk itself needs for a file that is created durably, with the leanest system calls."""

from __future__ import annotations

import os
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class DurableFolder:
    """A folder of files that are created whole, under a name that was free, and durably.

    The steps of the write-ahead log: a temporary file, fsync, a link under the name, the
    temporary name unlinked, and fsync of the folder.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._path = str(path)

    def create(self, name: str, data: bytes) -> None:
        temporary, target = f"{self._path}/.{name}", f"{self._path}/{name}"
        file = os.open(temporary, _NEW, 0o666)
        os.write(file, data)
        os.fsync(file)
        os.close(file)
        os.link(temporary, target)
        os.unlink(temporary)
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(folder)
        os.close(folder)
