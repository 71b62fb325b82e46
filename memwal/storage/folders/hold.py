"""Folders that a writer relies on: their identity is checked before and after each of its writes.

A table can be moved (``mv``), deleted, or replaced by a backup while a writer is open. The writer
must not acknowledge rows that are in another folder than the one that readers find at the address,
nor leave a folder there that a backup is then moved into.

Each write opens the folder by its path, compares it with the one that was held, writes relative to
the open folder, and compares the path again. Whatever happens at each moment:

* moved or replaced before the first comparison: nothing is written;
* between the two: the object goes into the folder that was held, which is elsewhere by now, and
  never into the one that replaced it. The second comparison fails, and the write with it;
* after the second: the object was in the table at the address when the write succeeded, and moved
  away with it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from memwal.errors import StoreError, TableReplacedError
from memwal.storage.folders.identity import FolderIdentity, identify

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILES: Final = "/proc/self/fd"


class FolderHold:
    """Identities of some folders of a local table, which exist.

    No descriptor stays open: a writer may hold thousands of regions.
    """

    def __init__(self, root: str, folders: Iterable[str]) -> None:
        self._root = root
        self._identities: dict[str, FolderIdentity] = {}
        for folder in folders:
            descriptor = os.open(folder, _FOLDER)
            try:
                self._identities[folder] = identify(descriptor)
            finally:
                os.close(descriptor)

    def folder_above(self, path: str) -> str | None:
        """Return the nearest folder above a path that is held; None if none is."""
        above = path.rpartition(os.sep)[0]
        while above and above not in self._identities:
            above = above.rpartition(os.sep)[0]
        return above or None

    def check(self) -> None:
        """Raise TableReplacedError if one of the folders is not in its place."""
        for folder in self._identities:
            with self.entered(folder):
                pass

    @contextmanager
    def entered(self, folder: str) -> Iterator[str]:
        """Yield a path of a folder that is held, by which to write into it.

        The path leads to the folder wherever it is moved, and is valid in the block only. Raises
        TableReplacedError, before or after the block, if the folder is not in its place. Without
        ``/proc``, the path is that of the folder, and a write between the two comparisons may go
        into the folder that replaced it.
        """
        try:
            descriptor = os.open(folder, _FOLDER)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._replaced(folder) from error
        try:
            identity = identify(descriptor)
            if identity != self._identities[folder]:
                raise self._replaced(folder)
            opened = f"{_OPEN_FILES}/{descriptor}" if _has_open_files() else folder
            try:
                yield opened
            except StoreError as error:
                raise type(error)(str(error).replace(opened, folder)) from error
            finally:
                # Also after an error, which may have been one of the move. The open descriptor
                # keeps the inode from being used for another folder.
                if not _leads_to(folder, identity):
                    raise self._replaced(folder)
        finally:
            os.close(descriptor)

    def _replaced(self, folder: str) -> TableReplacedError:
        return TableReplacedError(
            f"{folder} is not the folder any more that this writer claimed: the table was moved or "
            "deleted, or another one, such as a backup, was put in its place. The write is not "
            f"acknowledged. Check what is at {self._root}; if it is the right table, open it again "
            "with a new writer, and write again what it lacks"
        )


def _leads_to(folder: str, identity: FolderIdentity) -> bool:
    try:
        status = os.stat(folder)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (identity.device, identity.inode)


@functools.cache
def _has_open_files() -> bool:
    return os.path.isdir(_OPEN_FILES)
