"""Which folders of a local table are known to exist, durably."""

from __future__ import annotations

import errno
import os
import stat

from memwal.storage.durability import fsync_folder, sync_file_system


class FolderCache:
    """Makes folders before the first write into them and remembers that it did.

    A folder that exists already may have been made a moment ago by a process that does not
    fsync, as Lance does not. Its name is therefore made durable once, too, before an object in it
    counts as durable.

    Parameters
    ----------
    root : str
        Absolute path of the table.
    durable : bool
        Whether to fsync at all.
    """

    def __init__(self, root: str, *, durable: bool) -> None:
        self._root = root
        self._durable = durable
        # Only ever asked for membership and changed by atomic operations: no lock needed.
        self._known: set[str] = set()

    def ensure(self, folder: str) -> None:
        """Make a folder at or below the root, and those above it, unless they are known."""
        if folder in self._known:
            return
        if folder != self._root:
            self.ensure(os.path.dirname(folder))
            self._make(folder)
        else:
            self._make_above(folder)
        self._known.add(folder)

    def forget(self, folder: str) -> None:
        """Ask the file system again for a folder and all below it, which may be gone."""
        below = folder + os.sep
        self._known -= {k for k in tuple(self._known) if k == folder or k.startswith(below)}

    def forget_way_to(self, folder: str) -> None:
        """Ask the file system again for a folder and all above it."""
        self._known -= {k for k in tuple(self._known) if folder == k or folder.startswith(k + "/")}

    def _make_above(self, folder: str) -> None:
        parent = os.path.dirname(folder)
        if parent != folder and not os.path.isdir(parent):
            self._make_above(parent)
        self._make(folder)

    def _make(self, folder: str) -> None:
        try:
            os.mkdir(folder)
        except FileExistsError:
            # It may be gone again: then this raises what a missing folder raises.
            if not stat.S_ISDIR(os.stat(folder).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "a file is there", folder) from None
        if not self._durable:
            return
        try:
            fsync_folder(os.path.dirname(folder))
        except PermissionError:
            # The folder above the table may be closed to this user; this takes the long way.
            sync_file_system(folder)
