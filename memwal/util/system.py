"""Features of the operating system, looked up by name; nothing asks which system it is.

Linux has all of it. Where something is missing, its name here is None, and the code that would use
it takes another way, which is slower or weaker: docs/design/0011-without-linux-calls.md. No import
fails for lack of it. Tests take things away here.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

_OPEN_FILES: Final = "/proc/self/fd"
_FEW_FILES: Final = 256
_MEMORY: Final = "/proc/self/statm"

# How fcntl answers F_FULLFSYNC on a file system that does not have it, such as that of a server.
_NO_FULL_SYNC: Final = frozenset(
    {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS}
)


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# A ModuleType, of which a type checker knows nothing: also F_FULLFSYNC, which not all have.
fcntl: Any = _import("fcntl")
_resource: Any = _import("resource")

# Flags of ``open`` that local tables need: see MISSING.
O_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)
O_DIRECTORY: Final[int] = getattr(os, "O_DIRECTORY", 0)
O_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
O_NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)

O_PATH: int = getattr(os, "O_PATH", 0)
"""Opens a folder that is only passed on the way to another, without the right to read it."""

O_TMPFILE: int | None = getattr(os, "O_TMPFILE", None)
F_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def _missing() -> tuple[str, ...]:
    names = ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "pread", "link")
    missing = [name for name in names if not hasattr(os, name)]
    relative = {os.open, os.stat, os.unlink, os.rmdir} <= os.supports_dir_fd
    if not relative or os.scandir not in os.supports_fd:
        missing.append("dir_fd")
    if fcntl is None:
        missing.append("fcntl")
    return tuple(missing)


MISSING: tuple[str, ...] = _missing()
"""Features that local tables need and this system lacks."""


def fsync(descriptor: int) -> None:
    """Make a file or folder durable.

    Where there is F_FULLFSYNC, fsync only hands the data to the drive, which may keep it in a cache
    that loses its power, and write it in another order.
    """
    if F_FULLFSYNC is not None:
        try:
            fcntl.fcntl(descriptor, F_FULLFSYNC)
            return
        except OSError as error:
            # Any other error is one of the disk, which fsync may not tell a second time.
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


# A function of the C library that returns an int, and sets errno.
CFunction = Callable[..., int]


@functools.cache
def syncfs() -> CFunction | None:
    """Return ``syncfs(2)``; None without it."""
    return _c_function("syncfs", [ctypes.c_int])


@functools.cache
def sync_file_range() -> CFunction | None:
    """Return ``sync_file_range(2)``; None without it."""
    offset = ctypes.c_int64
    return _c_function("sync_file_range", [ctypes.c_int, offset, offset, ctypes.c_uint])


@functools.cache
def statfs() -> CFunction | None:
    """Return ``statfs(2)``; None without it. Its structure differs between systems."""
    return _c_function("statfs", [ctypes.c_char_p, ctypes.c_void_p])


@functools.cache
def statx() -> CFunction | None:
    """Return ``statx(2)``; None without it."""
    text = ctypes.c_char_p
    return _c_function("statx", [ctypes.c_int, text, ctypes.c_int, ctypes.c_uint, text])


@functools.cache
def malloc_trim() -> CFunction | None:
    """Return glibc's ``malloc_trim``; None with another C library."""
    return _c_function("malloc_trim", [ctypes.c_size_t])


@functools.cache
def mallopt() -> CFunction | None:
    """Return ``mallopt(3)``; None with another C library."""
    return _c_function("mallopt", [ctypes.c_int, ctypes.c_int])


@functools.cache
def open_files() -> str | None:
    """Return the folder with a link for each open descriptor of this process; None without it.

    Such a link leads to a folder wherever that was moved, and to a file that has no name.
    """
    return _OPEN_FILES if os.path.isdir(_OPEN_FILES) else None


def max_open_files() -> int:
    """Return how many files this process may have open; a small number if that is not known."""
    if _resource is None:
        return _FEW_FILES
    limit = int(_resource.getrlimit(_resource.RLIMIT_NOFILE)[0])
    return sys.maxsize if limit == _resource.RLIM_INFINITY else limit


def processors() -> int:
    """Return how many processors this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def resident_bytes() -> int | None:
    """Return how much memory this process has; None where the system does not tell."""
    try:
        with open(_MEMORY, "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def after_fork_in_child(call: Callable[[], None]) -> None:
    """Register a call for the child of each fork. Does nothing on a system that cannot fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def _c_function(name: str, arguments: Sequence[Any]) -> CFunction | None:
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        # No library stands for all that the process has loaded.
        return None
    if not hasattr(library, name):
        return None
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, ctypes.c_int
    found: CFunction = function
    return found
