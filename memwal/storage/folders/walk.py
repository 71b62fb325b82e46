"""Listing of folders of a local table: symbolic links are followed, and broken ones are reported.

Lance follows links as well. A link that leads nowhere (a disk that is not mounted), to itself, or
to a folder above it is *broken*. A listing that left a broken link out would take rows for absent.
It is therefore listed, as a file and as a folder, since it could be either, and reading it fails.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from memwal.errors import CorruptDataError
from memwal.format.paths import MEM_WAL_DIR
from memwal.storage.folders.presence import TablePresence

# Folders of regions are that deep below the root of a table.
_REGION_DEPTH: Final = 2


def list_entries(folder: str, presence: TablePresence | None = None) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it does not exist or is not a folder.

    Raises CorruptDataError if it does not exist because a link on the way to it is broken. With the
    ``presence`` of the table, raises StoreUnavailableError if the table is not in its place.
    """
    try:
        if presence is not None:
            return presence.find_entries(folder)
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        check_not_broken(folder)
        return []


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a link to one that does not lead above itself."""
    try:
        return entry.is_dir() and not (entry.is_symlink() and leads_above_itself(entry.path))
    except OSError:
        if not entry.is_symlink():
            raise
        return False


def may_be_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a link that leads to no file at this moment."""
    return not os.path.isfile(entry.path) if entry.is_symlink() else entry.is_dir()


def is_broken(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a broken link."""
    return entry.is_symlink() and _is_broken_link(entry.path)


def walk(
    folder: str, presence: TablePresence | None = None
) -> Iterator[tuple[os.DirEntry[str], bool]]:
    """Yield every entry below a folder, at any depth, and whether it is a folder itself.

    A folder comes before its entries. For ``presence`` see :func:`list_entries`.
    """
    pending = [folder]
    while pending:
        for entry in list_entries(pending.pop(), presence):
            is_inner = is_folder(entry)
            if is_inner:
                pending.append(entry.path)
            yield entry, is_inner


def linked_folders(root: str) -> Iterator[str]:
    """Yield the folders behind links in a table into which Lance or a writer puts new files.

    These are links in the table's folder, in the folder of its regions, and in that of a region.
    Broken ones are left out: nothing is written there. Costs a listing per region.
    """
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        for entry in list_entries(folder):
            if entry.is_symlink() and is_folder(entry):
                yield entry.path
            elif depth == _REGION_DEPTH or not (depth or entry.name == MEM_WAL_DIR):
                continue
            elif entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, depth + 1))


def check_not_broken(path: str) -> None:
    """Raise CorruptDataError if a path is a broken link or lies below one.

    For a path that could not be opened. Costs two system calls if it is simply absent.
    """
    link = path
    while link != os.path.dirname(link):
        try:
            status = os.lstat(link)
        except OSError:
            # Absent, or below something that is: a folder above it may be the link.
            link = os.path.dirname(link)
            continue
        if stat.S_ISLNK(status.st_mode) and _is_broken_link(link):
            raise CorruptDataError(
                f"{link} is a symbolic link, and what it leads to ({os.readlink(link)}) cannot be "
                "reached from here: mount the disk that it leads to, or put what it led to in its "
                "place; nothing was changed"
            )
        return


def leads_above_itself(link: str) -> bool:
    """Return whether a link leads to a folder above it, so that following it never ends."""
    target = os.stat(link)
    above = os.path.dirname(link)
    while True:
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(above), target):
                return True
        if above == os.path.dirname(above):
            return False
        above = os.path.dirname(above)


def _is_broken_link(link: str) -> bool:
    try:
        return leads_above_itself(link)
    except OSError:
        return True
