"""Locks on folders, by which replacements of a file exclude its other changes.

A lock is held for a few system calls. A process that is stopped in between holds it until it goes
on, or ends. No process waits for that: after :data:`PATIENCE_SECONDS` the change is not made, and
the caller gets an error. That is right for every later step of the holder, since nothing was
changed without the lock: the state that it compared before its pause is still the same. A caller
that only replaces a hint goes on without the lock.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from memwal.errors import StoreUnavailableError, UnsupportedStoreError
from memwal.util import system

PATIENCE_SECONDS: Final = 5.0
"""Seconds that a call waits for a lock; a process that runs holds one for milliseconds."""

_FIRST_PAUSE_SECONDS: Final = 0.0005
_MAX_PAUSE_SECONDS: Final = 0.02

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
    """Hold a lock on a folder that the caller opened; ``folder`` is its name in an error.

    Raises StoreUnavailableError if another process keeps it.
    """
    kind = system.fcntl.LOCK_EX if exclusive else system.fcntl.LOCK_SH
    try:
        _acquire(descriptor, kind | system.fcntl.LOCK_NB, folder)
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
        # A process that was forked since shares the lock, and closing alone would leave it there.
        system.fcntl.flock(descriptor, system.fcntl.LOCK_UN)


def _acquire(descriptor: int, kind: int, folder: str) -> None:
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            system.fcntl.flock(descriptor, kind)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StoreUnavailableError(
                    f"another process holds the lock of {folder}, and does not go on; nothing was "
                    "changed: continue or end that process (it may be stopped), then try again"
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        else:
            return
