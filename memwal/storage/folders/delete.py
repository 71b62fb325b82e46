"""Deletion of files and folders below the root of a local table, which never follows a link.

Folders are opened one by one, each relative to the descriptor of the folder above it and only if it
is no symbolic link. Names are deleted relative to the descriptor of their folder. Another process
may move the folder, or put a link or another folder in its place, at any time: the descriptor still
is the folder that was reached from the root without a link, so that nothing else is deleted. A
process that dies in between leaves the rest of a folder.

The path of the root is followed like any other path: a table may be a link, or lie below one. A
link *in* a folder of the table is a name like any other: it is deleted, and not the file or folder
that it leads to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from memwal.errors import LinkRefusedError
from memwal.storage.folders.locks import lock_descriptor
from memwal.util import system

_OPENED: Final = os.O_RDONLY | system.O_DIRECTORY | system.O_CLOEXEC

_GONE_OR_IN_USE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST})


def delete_file(root: str, key: str) -> None:
    """Delete a file below a root, or a link. Does nothing if it is absent or is a folder.

    Waits for a replacement in the same folder. Raises LinkRefusedError if a link lies on the way to
    the folder of the file.
    """
    folder, _, name = key.rpartition("/")
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        open_without_links(root, folder) as descriptor,
        lock_descriptor(descriptor, os.path.join(root, folder), exclusive=False),
    ):
        _unlink(name, descriptor)


def delete_tree(root: str, key: str) -> None:
    """Delete a folder below a root with everything in it; links in it, but not behind them.

    Files that another process deletes during the call are no error. Files that another process
    creates during the call stay, as they do in an object store. Raises LinkRefusedError if the
    folder is a link, or a link lies on the way to it.
    """
    parent, _, name = key.rpartition("/")
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        open_without_links(root, parent) as descriptor,
    ):
        _delete_tree(descriptor, name, path=os.path.join(root, key))


def delete_files(root: str, folder: str, selects: Callable[[os.DirEntry[str]], bool]) -> int:
    """Delete the selected files at any depth of a folder, but none behind a link.

    Returns their number. Raises LinkRefusedError if a link lies on the way to the folder.
    """
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        open_without_links(root, folder) as descriptor,
    ):
        return _delete_files(descriptor, selects, path=os.path.join(root, folder))
    return 0


@contextmanager
def open_without_links(root: str, folder: str) -> Iterator[int]:
    """Open a folder below a root (``""`` for the root itself), and yield its descriptor.

    Raises LinkRefusedError if a link lies between root and folder, or is the folder.
    """
    parts = folder.split("/") if folder else []
    path = root
    descriptor = os.open(root, _OPENED | system.O_PATH if parts else _OPENED)
    try:
        for depth, part in enumerate(parts, 1):
            path = os.path.join(path, part)
            # A folder that is only passed needs no right to read it, where the system knows that.
            flags = _OPENED if depth == len(parts) else _OPENED | system.O_PATH
            inner = _open_inside(descriptor, part, flags, path=path)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _open_inside(parent: int, name: str, flags: int, *, path: str) -> int:
    try:
        return os.open(name, flags | system.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        # At a link, O_DIRECTORY with O_NOFOLLOW fails as at a file.
        is_refused = error.errno in (errno.ENOTDIR, errno.ELOOP)
        if is_refused and stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
            raise LinkRefusedError(
                f"{path} is a symbolic link, and memwal deletes nothing behind a link: delete "
                "there by hand what the table does not need any more, or mount the other disk at "
                "this path (mount --bind) in place of the link"
            ) from error
        raise


def _unlink(name: str, parent: int) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except (FileNotFoundError, IsADirectoryError):
        return
    except PermissionError:
        # POSIX's answer at a folder; Linux answers EISDIR.
        if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            raise


def _delete_tree(parent: int, name: str, *, path: str) -> None:
    descriptor = _open_inside(parent, name, _OPENED, path=path)
    try:
        for entry in _entries(descriptor):
            if entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError, NotADirectoryError):
                    _delete_tree(descriptor, entry.name, path=os.path.join(path, entry.name))
            else:
                _unlink(entry.name, descriptor)
    finally:
        os.close(descriptor)
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno not in _GONE_OR_IN_USE:
            raise


def _delete_files(
    descriptor: int, selects: Callable[[os.DirEntry[str]], bool], *, path: str
) -> int:
    deleted = 0
    for entry in _entries(descriptor):
        with suppress(FileNotFoundError, NotADirectoryError):
            if entry.is_dir(follow_symlinks=False):
                inner_path = os.path.join(path, entry.name)
                inner = _open_inside(descriptor, entry.name, _OPENED, path=inner_path)
                try:
                    deleted += _delete_files(inner, selects, path=inner_path)
                finally:
                    os.close(inner)
            elif selects(entry):
                _unlink(entry.name, descriptor)
                deleted += 1
    return deleted


def _entries(descriptor: int) -> list[os.DirEntry[str]]:
    with os.scandir(descriptor) as entries:
        return list(entries)
