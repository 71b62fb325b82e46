"""Reading and walking the files of a local table."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from memwal.storage.base import ObjectInfo, is_temporary

# Lance stages a file as '.tmp' and six letters, or under its name with '#' and a number.
_STAGED = re.compile(r"\.tmp[A-Za-z0-9]{6}|.*#\d+", re.DOTALL)
_GONE_OR_IN_USE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST})


def is_staging(name: str) -> bool:
    """Tell whether a file is a write under way, of this package or of Lance."""
    return is_temporary(name) or _STAGED.fullmatch(name) is not None


def read(path: str, *, start: int = 0, length: int | None = None) -> bytes:
    """Read a file, or ``length`` bytes of it from ``start``; less where it ends earlier."""
    # A pipe in the place of a file would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "a folder, not an object", path)
        end = status.st_size if length is None else min(start + length, status.st_size)
        parts = []
        while start < end:
            part = os.pread(descriptor, end - start, start)
            if not part:
                break
            parts.append(part)
            start += len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]
    finally:
        os.close(descriptor)


def describe(path: str, key: str) -> ObjectInfo | None:
    """Tell what a listing tells of a file, or ``None`` when it is not there or is a folder."""
    try:
        status = os.stat(path)
    except OSError as error:
        # A link may lead nowhere, or to itself.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    if not stat.S_ISREG(status.st_mode):
        return None
    return ObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def entries(folder: str) -> list[os.DirEntry[str]]:
    """Return what a folder holds, nothing when it is absent or not a folder."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a real folder: links are not followed out of the table."""
    return entry.is_dir(follow_symlinks=False)


def walk(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below a folder that is not a folder itself, at any depth."""
    pending = [folder]
    while pending:
        for entry in entries(pending.pop()):
            if is_folder(entry):
                pending.append(entry.path)
            else:
                yield entry


def walk_folders(folder: str) -> Iterator[str]:
    """Yield every folder below one, children first, then the folder itself."""
    for entry in entries(folder):
        if is_folder(entry):
            yield from walk_folders(entry.path)
    yield folder


def remove_tree(folder: str) -> None:
    """Delete a folder with all it holds; of a link, the link.

    What somebody else deletes meanwhile is fine; what somebody creates meanwhile stays, as it
    does in an object store.
    """
    if os.path.islink(folder):
        remove(folder)
        return
    for entry in entries(folder):
        if is_folder(entry):
            remove_tree(entry.path)
        else:
            remove(entry.path)
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in _GONE_OR_IN_USE:
            raise


def remove(path: str) -> None:
    """Delete a file; one that is absent, or a folder, is left as it is."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        os.unlink(path)
