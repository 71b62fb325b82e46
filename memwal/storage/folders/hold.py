"""Folders that a writer relies on: their identity is checked before and after each of its writes.

A table can be moved (``mv``), deleted, or replaced by a backup while a writer is open. The writer
must not acknowledge rows that are in another folder than the one that readers find at the address,
nor leave a folder there that a backup is then moved into.

Each write compares the folder at the path with the one that was held, writes relative to the
latter, which is open, and compares the path again. While a folder is open, no other one gets its
inode, so that device and inode tell whether the path still leads to it. Changes of the folder at
each moment:

* moved or replaced before the first comparison: nothing is written;
* between the two: the object goes into the folder that was held, which is elsewhere by now, and
  never into the one that replaced it. The second comparison fails, and the write with it;
* after the second: the object was in the table at the address when the write succeeded, and moved
  away with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable
from types import TracebackType
from typing import Final, NamedTuple

from memwal.errors import StoreError, TableReplacedError
from memwal.util import system

_FOLDER: Final = os.O_RDONLY | system.O_DIRECTORY | system.O_CLOEXEC
# Of all writers of the process, which may hold thousands of regions; and the part of the files that
# the process may have open.
_MAX_OPEN: Final = 128
_MAX_PART: Final = 8
_LIMIT: Final = frozenset({errno.EMFILE, errno.ENFILE})
_STATX_BYTES: Final = 256
# Offsets of the answer: time of birth (seconds in 8 bytes, nanoseconds in 4), number of the inode
# (8 bytes), major and minor number of the device (4 bytes each).
_BORN_AT, _INODE_AT, _DEVICE_AT = 80, 32, 136
_STATX_INO: Final = 0x100
_STATX_BTIME: Final = 0x800
_AT_EMPTY_PATH: Final = 0x1000


class FolderIdentity(NamedTuple):
    """Identity of a folder, which no other folder shares.

    A file system gives the inode of a deleted folder to the next one. The time at which the folder
    was made tells such two apart, on file systems that record it (ext4, XFS, Btrfs, tmpfs), unless
    both are made within one tick of the system's clock (4 ms). ``statx`` tells that time; where
    there is none, ``fstat`` may.
    """

    device: int
    inode: int
    # Time of birth, as the system's call has it; empty if it does not tell.
    born: bytes


class Place:
    """Path by which an object is written, valid in a ``with`` block."""

    __slots__ = ("device", "path")

    def __init__(self, path: str, device: int | None = None) -> None:
        self.path = path
        self.device = device  # of the folder, if it is known

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing."""


class HeldPlace(Place):
    """Path in a held folder, which leads there wherever the folder is moved.

    The block raises TableReplacedError at its end if the folder is not in its place any more.
    Without ``/proc``, the path is that of the folder, and a write between the two comparisons may
    go into the folder that replaced it.
    """

    __slots__ = ("_folder", "_hold", "_opened", "base")

    def __init__(self, hold: FolderHold, folder: str, opened: _OpenFolder, rest: str) -> None:
        links = system.open_files()
        self.base = folder if links is None else f"{links}/{opened.descriptor}"
        super().__init__(self.base + rest, opened.identity.device)
        self._hold = hold
        self._folder = folder
        self._opened = opened  # stays open until the end of the write

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Also after an error, which may have been one of the move.
        self._hold.check_after(self._folder, error)
        if isinstance(error, StoreError):
            raise type(error)(str(error).replace(self.base, self._folder)) from error


class FolderHold:
    """Identities of some folders of a local table, which exist.

    The folders that were written to last stay open, see :func:`_opened`.
    """

    def __init__(self, root: str, folders: Iterable[str]) -> None:
        self._root = root
        self._identities: dict[str, FolderIdentity] = {}
        for folder in folders:
            self._identities[folder] = _OpenFolder(folder).identity

    def check(self) -> None:
        """Raise TableReplacedError if one of the folders is not in its place."""
        for folder in self._identities:
            self._held_folder(folder)

    def place(self, path: str) -> HeldPlace | None:
        """Return the place by which to write an object; None if no folder above it is held.

        Raises TableReplacedError if the folder is not where it was.
        """
        folder = path.rpartition(os.sep)[0]
        while folder not in self._identities:
            if not folder:
                return None
            folder = folder.rpartition(os.sep)[0]
        return HeldPlace(self, folder, self._held_folder(folder), path[len(folder) :])

    def check_after(self, folder: str, error: BaseException | None) -> None:
        """Raise TableReplacedError if a folder is not in its place after a write, or its error."""
        if not _leads_to(folder, self._identities[folder]):
            raise self._replaced(folder) from error

    def _held_folder(self, folder: str) -> _OpenFolder:
        identity = self._identities[folder]
        try:
            held = _opened(folder, identity)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._replaced(folder) from error
        if held is None or not _leads_to(folder, identity):
            raise self._replaced(folder)
        return held

    def _replaced(self, folder: str) -> TableReplacedError:
        return TableReplacedError(
            f"{folder} is not the folder any more that this writer claimed: the table was moved or "
            "deleted, or another one, such as a backup, was put in its place. The write is not "
            f"acknowledged. Check what is at {self._root}; if it is the right table, open it again "
            "with a new writer, and write again what it lacks"
        )


class _OpenFolder:
    """An open folder. It is closed once nothing refers to it, so never during a write."""

    __slots__ = ("descriptor", "identity")

    def __init__(self, folder: str) -> None:
        self.descriptor = os.open(folder, _FOLDER)
        self.identity = _identify(self.descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_open: OrderedDict[tuple[str, FolderIdentity], _OpenFolder] = OrderedDict()
_lock = threading.Lock()


def _opened(folder: str, identity: FolderIdentity) -> _OpenFolder | None:
    """Return the held folder, open; None if another one is at its path.

    The folders that were used last stay open, up to a number: to open a folder for each write takes
    as long as a tenth of a write without fsync. Two threads that miss the same one both open it.
    """
    key = (folder, identity)
    with _lock:
        held = _open.get(key)
        if held is not None:
            _open.move_to_end(key)
            return held
    try:
        held = _OpenFolder(folder)
    except OSError as error:
        if error.errno not in _LIMIT:
            raise
        close_held_folders()
        held = _OpenFolder(folder)
    if held.identity != identity:
        return None
    closed = []
    most = min(_MAX_OPEN, system.max_open_files() // _MAX_PART)
    with _lock:
        _open[key] = held
        while len(_open) > most:
            # Closed when the lock is free again.
            closed.append(_open.popitem(last=False))
    return held


def close_held_folders() -> None:
    """Close the held folders that no write uses: the process may open no more files."""
    with _lock:
        closed = list(_open.values())
        _open.clear()
    # Closed here, when the lock is free again.
    del closed


def _leads_to(folder: str, identity: FolderIdentity) -> bool:
    try:
        status = os.stat(folder)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (identity.device, identity.inode)


def _identify(descriptor: int) -> FolderIdentity:
    """Return the identity of an open folder. Costs one system call."""
    statx = system.statx()
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    mask = _STATX_INO | _STATX_BTIME
    if statx is None or statx(descriptor, b"", _AT_EMPTY_PATH, mask, answer) != 0:
        status = os.fstat(descriptor)
        birth = getattr(status, "st_birthtime", None)
        born = b"" if birth is None else struct.pack("=d", birth)
        return FolderIdentity(status.st_dev, status.st_ino, born)
    mask, inode, major, minor = (
        *struct.unpack_from("=I", answer),
        *struct.unpack_from("=Q", answer, _INODE_AT),
        *struct.unpack_from("=II", answer, _DEVICE_AT),
    )
    born = answer.raw[_BORN_AT : _BORN_AT + 12] if mask & _STATX_BTIME else b""
    return FolderIdentity(os.makedev(major, minor), inode, born)
