"""Identity of a folder: tells whether another folder stands at its path by now.

A file system gives the inode of a deleted folder to the next one. The time at which the folder was
made tells such two apart, on file systems that record it (ext4, XFS, Btrfs, tmpfs), unless both are
made within one tick of the system's clock (4 ms). ``statx`` tells that time; where there is none,
``fstat`` may.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final, NamedTuple

from memwal.util import system

_STATX_BYTES: Final = 256
# Offsets of the answer: time of birth (seconds in 8 bytes, nanoseconds in 4), number of the inode
# (8 bytes), major and minor number of the device (4 bytes each).
_BORN_AT, _INODE_AT, _DEVICE_AT = 80, 32, 136
_STATX_INO: Final = 0x100
_STATX_BTIME: Final = 0x800
_AT_EMPTY_PATH: Final = 0x1000


class FolderIdentity(NamedTuple):
    """Identity of a folder, which no other folder shares."""

    device: int
    inode: int
    # Time of birth, as the system's call has it; empty if it does not tell.
    born: bytes


def identify(descriptor: int) -> FolderIdentity:
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
