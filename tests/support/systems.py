"""Systems that lack what Linux has: it is taken away here, by name, from this process."""

import errno
import os
import stat
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

import pytest

from memwal.util import system

Take = Callable[[pytest.MonkeyPatch], None]

FULL_SYNC: Final = 51


def _constant(name: str, value: int | None = None) -> Take:
    return lambda patch: patch.setattr(system, name, value)


def _call(name: str) -> Take:
    return lambda patch: patch.setattr(system, name, lambda: None)


def _unlink_forbidden(patch: pytest.MonkeyPatch) -> None:
    """Deleting a folder as if it were a file is EPERM, as POSIX has it, and not EISDIR."""
    real = os.unlink

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        try:
            real(path, dir_fd=dir_fd)
        except IsADirectoryError as error:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path) from error

    patch.setattr(os, "unlink", unlink)


TAKEN: Mapping[str, Take] = MappingProxyType(
    {
        "O_TMPFILE": _constant("O_TMPFILE"),
        "O_PATH": _constant("O_PATH", 0),
        "syncfs": _call("syncfs"),
        "sync_file_range": _call("sync_file_range"),
        "statfs": _call("statfs"),
        "statx": _call("statx"),
        "/proc": _call("open_files"),
        "EISDIR": _unlink_forbidden,
    }
)
"""What a system may lack, and how it is taken away."""

WHOLE: Final = "whole"
BARE: Final = "bare"
"""A system without any of it."""


def systems(*names: str) -> list[Any]:
    """Parameters of a fixture that calls :func:`take_away`: those of one thing each are slow."""
    slow = [pytest.param(name, marks=pytest.mark.slow, id=f"no-{name}") for name in names]
    return [WHOLE, BARE, *slow]


def take_away(patch: pytest.MonkeyPatch, what: str) -> None:
    """Take one thing away, all (``BARE``), or nothing (``WHOLE``)."""
    for name, take in TAKEN.items():
        if what in (name, BARE):
            take(patch)


class Drive:
    """A drive with a cache: fsync only hands it data, and F_FULLFSYNC empties the cache.

    Attributes
    ----------
    handed : list of str
        What fsync was called for since the cache was emptied.
    emptied : list of list of str
        What was handed over, and by which file, each time that the cache was emptied.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *, refuses: int | None = None) -> None:
        self.handed: list[str] = []
        self.emptied: list[list[str]] = []
        self._refuses = refuses
        real = system.fcntl
        patch.setattr(
            system,
            "fcntl",
            SimpleNamespace(
                fcntl=self._fcntl,
                flock=real.flock,
                LOCK_SH=real.LOCK_SH,
                LOCK_EX=real.LOCK_EX,
                LOCK_NB=real.LOCK_NB,
                LOCK_UN=real.LOCK_UN,
            ),
        )
        patch.setattr(system, "F_FULLFSYNC", FULL_SYNC)
        patch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        self.handed.append(_path_of(descriptor))

    def _fcntl(self, descriptor: int, command: int) -> int:
        assert command == FULL_SYNC
        if self._refuses is not None:
            raise OSError(self._refuses, os.strerror(self._refuses))
        self.emptied.append([*self.handed, _path_of(descriptor)])
        self.handed = []
        return 0


def _path_of(descriptor: int) -> str:
    assert stat.S_IFMT(os.fstat(descriptor).st_mode)
    return os.readlink(f"/proc/self/fd/{descriptor}")
