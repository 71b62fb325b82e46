"""A disk that is full for a while, for the processes that have a library loaded."""

import mmap
from pathlib import Path

SOURCE = Path(__file__).with_name("full_disk.c")
"""Library that a process must have loaded, for its writes to fail."""


class FullDisk:
    """The disk of a table, at first with space left.

    Parameters
    ----------
    below : Path
        Folder in which nothing can be written while the disk is full.
    path : Path
        Where a file is made by which processes are told.
    """

    def __init__(self, below: Path, path: Path) -> None:
        self._below = below
        self._path = path
        path.write_bytes(bytes(1))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), 1)

    def environment(self) -> dict[str, str]:
        """What has to be in the environment of a process, with :data:`SOURCE`, before it begins."""
        return {"FULL_DISK_BELOW": str(self._below), "FULL_DISK_FLAG": str(self._path)}

    def fill(self) -> None:
        """Leave no space: files and folders can be made and nothing be written."""
        self._mapped[0] = 1

    def empty(self) -> None:
        """Have space again."""
        self._mapped[0] = 0
