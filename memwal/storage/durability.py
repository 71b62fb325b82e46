"""System calls that make files of a local table survive a crash of the machine."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

from memwal.errors import UnsupportedStoreError
from memwal.storage.base import Data


def write_new_file(path: str, data: Data, *, durable: bool) -> None:
    """Write a file that does not exist yet, and fsync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: str) -> None:
    """Make the content of a file durable, whoever wrote it."""
    _fsync(path, os.O_RDONLY)


def fsync_folder(path: str) -> None:
    """Make the names inside a folder durable."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(path: str) -> None:
    """Make everything durable that was written to the file system that ``path`` is on.

    Raises
    ------
    OSError
        The system could not write some of it.
    UnsupportedStoreError
        This system has no ``syncfs``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _syncfs()(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(descriptor)


@functools.cache
def _syncfs() -> Callable[[int], int]:
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError:
        raise UnsupportedStoreError(
            "this system has no syncfs: local tables need Linux; use an object store instead"
        ) from None
    function.argtypes = [ctypes.c_int]
    function.restype = ctypes.c_int
    return function
