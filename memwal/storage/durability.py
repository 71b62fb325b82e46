"""System calls that make files of a local table survive a crash of the machine."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from memwal.errors import UnsupportedStoreError
from memwal.storage.base import Data

# Where an fsync of a file without a name, then its link, then an fsync of the folder leave file and
# name on the disk: ext2 to ext4, and XFS. Btrfs writes nothing of a file without a name to its log,
# and then nothing of the file behind the name either; of others nobody here knows.
_KEEP_UNNAMED_FILES: Final = frozenset({0xEF53, 0x58465342})
_OPEN_FILES: Final = "/proc/self/fd"
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_UNNAMED_FILE: Final = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def write_new_file(path: str, data: Data, *, durable: bool) -> None:
    """Write a file that does not exist yet, and fsync it."""
    descriptor = os.open(path, _NEW_FILE, 0o666)
    try:
        _write(descriptor, data, durable=durable)
    finally:
        os.close(descriptor)


def write_chunks(path: str, chunks: Iterable[bytes], *, durable: bool) -> None:
    """Write a file that does not exist yet, chunk by chunk, and fsync it."""
    descriptor = os.open(path, _NEW_FILE, 0o666)
    try:
        for chunk in chunks:
            _write(descriptor, chunk, durable=False)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_new_file(folder: str, path: str, data: Data, *, durable: bool) -> None:
    """Write a file without a name, fsync it, and give it its name, unless that is taken.

    A process that dies in between leaves nothing behind. Only for folders that
    :func:`keeps_unnamed_files` says yes to.
    """
    descriptor = os.open(folder, _UNNAMED_FILE, 0o666)
    try:
        _write(descriptor, data, durable=durable)
        # A folder's descriptor has Python follow the link, which it otherwise does not; the path
        # is absolute, so that it means nothing else.
        os.link(f"{_OPEN_FILES}/{descriptor}", path, src_dir_fd=descriptor)
    finally:
        os.close(descriptor)


def keeps_unnamed_files(folder: str) -> bool:
    """Whether files can be written into a folder without a name first, and are durable then."""
    if file_system_magic(folder) not in _KEEP_UNNAMED_FILES or not os.path.isdir(_OPEN_FILES):
        return False
    with suppress(OSError):
        os.close(os.open(folder, _UNNAMED_FILE, 0o666))
        return True
    return False


def _write(descriptor: int, data: Data, *, durable: bool) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if durable:
        os.fsync(descriptor)


def fsync_file(path: str) -> None:
    """Make the content of a file durable, whoever wrote it."""
    _fsync(path, os.O_RDONLY | os.O_CLOEXEC)


def fsync_folder(path: str) -> None:
    """Make the names inside a folder durable."""
    _fsync(path, _FOLDER)


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
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
    descriptor = os.open(path, _FOLDER)
    try:
        syncfs(descriptor)
    finally:
        os.close(descriptor)


def syncfs(descriptor: int) -> None:
    """Call ``syncfs(2)``; raises what :func:`sync_file_system` raises."""
    if _syncfs()(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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


def file_system_magic(path: str) -> int | None:
    """The magic number of the file system that ``path`` is on; None where ``statfs`` fails."""
    function = _statfs()
    # The number comes first, in a word of the machine; the whole is 120 bytes on 64-bit Linux.
    status = (ctypes.c_long * 64)()
    if function is None or function(os.fsencode(path), status) != 0:
        return None
    return int(status[0])


@functools.cache
def _statfs() -> Callable[[bytes, ctypes.Array[ctypes.c_long]], int] | None:
    function = getattr(ctypes.CDLL(None), "statfs", None)
    if function is not None:
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        function.restype = ctypes.c_int
    return function
