"""Locks on folders, by which replacements of a file exclude other changes of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from memwal.errors import UnsupportedStoreError
from memwal.util import system

_NO_LOCKS: Final = frozenset(
    {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF, errno.EINVAL, errno.ENOSYS}
)


@contextmanager
def lock_folder(folder: str, *, exclusive: bool) -> Iterator[None]:
    """Hold a lock on a folder, alone or with others that do not hold it ``exclusive``.

    Each caller has its own descriptor, so threads exclude each other. The lock is on the folder,
    not on a file inside it, so that nothing has to be cleaned up.
    """
    descriptor = os.open(folder, os.O_RDONLY | system.O_DIRECTORY | system.O_CLOEXEC)
    try:
        with lock_descriptor(descriptor, folder, exclusive=exclusive):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def lock_descriptor(descriptor: int, folder: str, *, exclusive: bool) -> Iterator[None]:
    """Hold a lock on a folder that the caller opened; ``folder`` is its name in an error."""
    kind = system.fcntl.LOCK_EX if exclusive else system.fcntl.LOCK_SH
    try:
        system.fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise UnsupportedStoreError(
                f"cannot lock {folder}: {error.strerror}; a table needs a file system whose "
                "folders can be locked: move it to one, or to an object store"
            ) from error
        raise
    try:
        yield
    finally:
        # A process forked meanwhile shares the lock, and closing alone would leave it there.
        system.fcntl.flock(descriptor, system.fcntl.LOCK_UN)
