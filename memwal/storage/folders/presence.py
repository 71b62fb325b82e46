"""Tell whether a file that was not found is absent from a local table, or the table was away.

While the folder of a table is moved (``mv``) and moved back, or its disk is not mounted, nothing is
found below its path. A missing file must not be read as absence: the reader would stop before the
end of the log, report an empty region, or drop a pin. So a path that was not found is looked up
once more, relative to the folder of the table, which is open during that look. Moves of the folder
at each moment:

* the table is away when its folder is opened: StoreUnavailableError;
* it came back before that: the second look finds the file, and the caller reads again;
* it is moved after that: the open folder is still the table's, wherever it is, and the answer is
  right for the moment of the second look;
* another folder stands in its place, which a write of Lance made while the table was away: it has
  no versions of a data set, while the table had: StoreUnavailableError. A backup that was put there
  is a table, and answers for itself.

The folder of a region may be a disk of its own. Before a reader of a log takes a missing entry for
the end of the log, or a reader of manifests takes a missing version for one that was never written,
it makes the same look from the folder of the region: :meth:`TablePresence.find_within`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatch
from typing import TypeVar

from memwal.errors import StoreUnavailableError
from memwal.format.paths import VERSIONS_DIR
from memwal.util import system

_LISTED_FOLDER = os.O_RDONLY | system.O_DIRECTORY | system.O_CLOEXEC
_FOLDER = system.O_PATH | _LISTED_FOLDER
# A file that is created between the two looks is there in the next round.
_MAX_LOOKS = 64

Found = TypeVar("Found")


class TablePresence:
    """Second looks for files that were not found in one table. Thread-safe.

    A folder without versions of a data set may be absent: nothing was there that could be missed.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._prefix_length = len(os.path.join(root, ""))
        self._was_table = False
        self.expect_new_table()

    def expect_new_table(self) -> None:
        """Miss nothing that was here before, unless a table is here now."""
        self._was_table = os.path.isdir(os.path.join(self._root, VERSIONS_DIR))

    def find(self, look: Callable[[], Found | None], path: str) -> Found | None:
        """Return the answer of ``look``; None only if the table has no such file.

        Raises StoreUnavailableError if the table is not in its place.
        """
        for _ in range(_MAX_LOOKS):
            found = look()
            if found is not None:
                return found
            status = self._status(path)
            if status is None or not stat.S_ISREG(status.st_mode):
                return None
        raise self._unsettled(path)

    def find_entries(self, folder: str) -> list[os.DirEntry[str]]:
        """Return the entries of a folder.

        Raises FileNotFoundError if the table has no such folder, NotADirectoryError if it is a
        file, and StoreUnavailableError as :meth:`find` does.
        """
        for _ in range(_MAX_LOOKS):
            try:
                with os.scandir(folder) as entries:
                    return list(entries)
            except FileNotFoundError:
                if self._status(folder) is None:
                    raise
        raise self._unsettled(folder)

    def find_within(self, folder: str, path: str, proof: str) -> int | None:
        """Return the mode of the entry at a path below a folder of the table; None for nothing.

        Links are not followed. Both folders, the table's and the one in it, are open during the
        look, so the answer is right wherever they are moved. Nothing that matches ``proof`` in the
        folder shows that it stands where one was moved away or is not mounted: it may have files
        that a process wrote there since.

        Raises FileNotFoundError then or if it is missing, and StoreUnavailableError as :meth:`find`
        does.
        """
        table = self._open_table()
        if table is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        try:
            opened = os.open(folder[self._prefix_length :], _LISTED_FOLDER, dir_fd=table)
            try:
                name = path[len(folder) + 1 :]
                with suppress(FileNotFoundError, NotADirectoryError):
                    return os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode
                self._check_is_table(table)
                if not _has_match(opened, proof):
                    raise FileNotFoundError(errno.ENOENT, "another folder in its place", folder)
                return None
            finally:
                os.close(opened)
        except (FileNotFoundError, NotADirectoryError) as error:
            self._check_is_table(table)
            raise FileNotFoundError(errno.ENOENT, error.strerror, folder) from error
        finally:
            os.close(table)

    def check_absent(self, path: str) -> None:
        """Raise StoreUnavailableError unless the table has nothing at a path that was not found."""
        if self._status(path) is not None:
            raise self._unsettled(path)

    def _status(self, path: str) -> os.stat_result | None:
        """Return the status of a path in the table; None if nothing is there."""
        table = self._open_table()
        if table is None:
            return None
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                return os.stat(path[self._prefix_length :] or ".", dir_fd=table)
            self._check_is_table(table)
            return None
        finally:
            os.close(table)

    def _open_table(self) -> int | None:
        """Open the folder of the table; None if none is there, and none was."""
        try:
            return os.open(self._root, _FOLDER)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not self._was_table:
                return None
            raise self._away("it was moved or deleted, or its disk is not mounted") from error

    def _check_is_table(self, folder: int) -> None:
        """Raise StoreUnavailableError if an open folder is not the table's, and one was there."""
        try:
            os.stat(VERSIONS_DIR, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._was_table:
                raise self._away("the folder there is not the table's") from error
        else:
            self._was_table = True

    def _away(self, why: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"there is no table at {self._root} at this moment, where one was: {why}. Put it back "
            "in its place, then try again"
        )

    def _unsettled(self, path: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{path} was there and then it was not: the table was moved, or the file replaced "
            "again and again, during the look; try again"
        )


def _has_match(folder: int, pattern: str) -> bool:
    """Return whether a name in an open folder matches; its last part may be a wildcard.

    glob takes a folder that cannot be opened, for lack of descriptors, for an empty one.
    """
    above, _, name = pattern.rpartition("/")
    with suppress(FileNotFoundError, NotADirectoryError):
        if "*" not in name:
            os.stat(pattern, dir_fd=folder)
            return True
        listed = os.open(above, _LISTED_FOLDER, dir_fd=folder)
        try:
            with os.scandir(listed) as entries:
                return any(fnmatch(entry.name, name) for entry in entries)
        finally:
            os.close(listed)
    return False
