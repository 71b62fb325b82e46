"""System calls on the files of a local table: read, write, fsync, folders, and errors."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    ResourceLimitError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
)
from memwal.storage.folders.hold import close_held_folders
from memwal.storage.folders.walk import check_not_broken, is_broken
from memwal.storage.object_store import Data, ObjectInfo, is_temporary
from memwal.util import system

# Lance stages a file as '.tmp' and six letters, or under its name with '#' and a number.
_STAGED = re.compile(r"\.tmp[A-Za-z0-9]{6}|.*#\d+", re.DOTALL)


# File systems (ext2 to ext4, XFS) on which three steps make a new file and its name durable: fsync
# of an unnamed file, link, fsync of the folder. Btrfs does not write an unnamed file to its log,
# and then not the file behind the new name either. Other file systems have not been checked.
_KEEP_UNNAMED_FILES: Final = frozenset({0xEF53, 0x58465342})

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | system.O_DIRECTORY | system.O_CLOEXEC

_PAUSE_SECONDS: Final = 0.03
_START_WRITING: Final = 2  # SYNC_FILE_RANGE_WRITE

# EFBIG is the error of a file size limit (ulimit -f): to the caller it is a quota like any other.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
LIMIT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR})


def read_file(path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
    """Read a file, or up to ``length`` bytes from ``start``; None if there is no file."""
    try:
        # O_NONBLOCK: opening a pipe in the place of a file would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | system.O_CLOEXEC | system.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
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


def stat_object(path: str, key: str) -> ObjectInfo | None:
    """Return size and time of a file; None if it does not exist or is a folder."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        check_not_broken(path)
        return None
    return _object_info(status, key) if stat.S_ISREG(status.st_mode) else None


def stat_entry(entry: os.DirEntry[str], key: str) -> ObjectInfo | None:
    """Return size and time of an entry of a folder that is no folder; None if it is no file.

    A broken link counts as a file: it is not absent, and a reader of it gets an error. Raises
    FileNotFoundError if it is gone, or a folder by now: a link, which led nowhere for a moment.
    """
    status = entry.stat(follow_symlinks=not is_broken(entry))
    if stat.S_ISDIR(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "a folder by now", entry.path)
    is_object = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    return _object_info(status, key) if is_object else None


def _object_info(status: os.stat_result, key: str) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def is_staging(name: str) -> bool:
    """Return whether this is the name of a file that memwal or Lance is still writing."""
    return is_temporary(name) or _STAGED.fullmatch(name) is not None


def delete_file(path: str) -> None:
    """Delete a file. Does nothing if it does not exist or is a folder."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        os.unlink(path)


def write_chunks(path: str, chunks: Iterable[Data], *, durable: bool) -> None:
    """Write a file that does not exist yet, one chunk at a time, and fsync it."""
    descriptor = os.open(path, _NEW_FILE, 0o666)
    try:
        for chunk in chunks:
            _write(descriptor, chunk, durable=False)
        if durable:
            system.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_new_file(folder: str, path: str, data: Data, *, durable: bool) -> None:
    """Write an unnamed file, fsync it, and link it to its name, unless the name is taken.

    A process that dies in between leaves nothing behind. Only for folders for which
    :func:`keeps_unnamed_files` is true.
    """
    descriptor = _open_unnamed(folder)
    try:
        _write(descriptor, data, durable=durable)
        # src_dir_fd makes Python follow the link in /proc, which it otherwise does not. The path is
        # absolute, so the descriptor has no other effect.
        os.link(f"{system.open_files()}/{descriptor}", path, src_dir_fd=descriptor)
    finally:
        os.close(descriptor)


def keeps_unnamed_files(folder: str) -> bool:
    """Return whether unnamed files in a folder are supported, and durable once linked."""
    # O_TMPFILE comes first: where it is missing, statfs writes something else.
    if system.O_TMPFILE is None or system.open_files() is None:
        return False
    if file_system_magic(folder) not in _KEEP_UNNAMED_FILES:
        return False
    with suppress(OSError):
        os.close(_open_unnamed(folder))
        return True
    return False


def fsync_file(path: str) -> None:
    """Make the content of a file durable, whichever process wrote it."""
    _fsync(path, os.O_RDONLY | system.O_CLOEXEC)


def fsync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    _fsync(path, _FOLDER)


def sync_file_system(path: str) -> None:
    """Make everything durable that was written to the file system of a path, see :func:`syncfs`."""
    descriptor = os.open(path, _FOLDER)
    try:
        syncfs(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def write_behind(folder: Path | None) -> Iterator[None]:
    """Start writing new files of a folder to disk while the block that creates them runs.

    This makes nothing durable. It only leaves less work for the fsync that follows, which would
    otherwise begin with the first byte when the last one is written. Sub-folders are ignored.
    Nothing is done for None or a folder that does not exist.
    """
    start = system.sync_file_range()
    if folder is None or start is None or not folder.is_dir():
        yield
        return
    existing = frozenset(os.listdir(folder))
    over = threading.Event()

    def watch() -> None:
        # If the folder is gone, the code that writes into it raises the error.
        with suppress(OSError):
            while not over.wait(_PAUSE_SECONDS):
                for name in os.listdir(folder):
                    if name not in existing:
                        _start_writing(folder / name, start)

    watcher = threading.Thread(target=watch, name="memwal-write-behind", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


class FolderCache:
    """Creates folders before the first write into them, and remembers which exist.

    A folder that exists already may have been created a moment ago by a process that does not
    fsync, as Lance does not. The first write of this process into such a folder therefore makes its
    name durable too, before an object in it counts as durable, unless the cache is not ``durable``.
    """

    def __init__(self, root: str, *, durable: bool) -> None:
        self._root = root
        self._durable = durable
        # Only membership tests and atomic changes: no lock needed.
        self._existing: set[str] = set()

    def ensure(self, folder: str, *, make_root: bool = True) -> None:
        """Create a folder at or below the root, and those above it, unless remembered.

        Without ``make_root``, raises FileNotFoundError if the root does not exist.
        """
        if folder in self._existing:
            return
        if folder != self._root:
            self.ensure(os.path.dirname(folder), make_root=make_root)
            self._make(folder)
        elif make_root:
            self._make_above(folder)
        else:
            os.stat(folder)
            self._sync_name(folder)
        self._existing.add(folder)

    def forget(self, folder: str) -> None:
        """Forget a folder and all below it, which may be gone."""
        below = folder + os.sep
        self._existing -= {
            path for path in tuple(self._existing) if path == folder or path.startswith(below)
        }

    def forget_ancestors(self, folder: str) -> None:
        """Forget a folder and all above it, so that the next :meth:`ensure` checks them."""
        while folder != (above := os.path.dirname(folder)):
            self._existing.discard(folder)
            folder = above

    def _make_above(self, folder: str) -> None:
        parent = os.path.dirname(folder)
        if parent != folder and not os.path.isdir(parent):
            self._make_above(parent)
        self._make(folder)

    def _make(self, folder: str) -> None:
        try:
            os.mkdir(folder)
        except FileExistsError:
            # It may be gone again: then os.stat raises FileNotFoundError.
            if not stat.S_ISDIR(os.stat(folder).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "a file is there", folder) from None
        self._sync_name(folder)

    def _sync_name(self, folder: str) -> None:
        if not self._durable:
            return
        try:
            fsync_folder(os.path.dirname(folder))
        except PermissionError:
            # This user may not open the folder above the table: sync the whole file system instead.
            sync_file_system(folder)


def from_os_error(error: OSError, action: str, path: str) -> MemWalError:
    """Return the memwal error for a failed system call: "cannot <action> <path>: ..."."""
    what = f"cannot {action} {path}: {error.strerror or type(error).__name__}"
    code = error.errno
    if code in _FULL:
        return StoreFullError(f"{what}; free space or raise the quota, then try again")
    if code in _ACCESS:
        return StoreAccessError(f"{what}; give this user read and write access to the table")
    if code == errno.ENOENT:
        return ObjectNotFoundError(what)
    if code == errno.EEXIST:
        return ObjectExistsError(what)
    if code == errno.ELOOP:
        return CorruptDataError(
            f"{what}; a link that leads to itself stands there: restore the file"
        )
    if code in _NAME:
        return InvalidInputError(f"{what}; a file stands where a folder must, or the name is bad")
    if code in LIMIT:
        close_held_folders()
        return ResourceLimitError(
            f"{what}; raise the limit of open files (ulimit -n) or of memory, or do less at once"
        )
    return StoreUnavailableError(f"{what}; look at the disk and the system's log, then try again")


def syncfs(descriptor: int) -> None:
    """Make everything durable that was written to the file system of an open file.

    Raises OSError if some of it could not be written. Without ``syncfs(2)`` this is weaker: sync(2)
    may return before all is written.
    """
    function = system.syncfs()
    if function is None:
        os.sync()
        system.fsync(descriptor)
    elif function(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def file_system_magic(path: str) -> int | None:
    """Return the magic number of the file system of ``path``; None if ``statfs`` fails."""
    function = system.statfs()
    # The magic number is the first word; the whole struct has 120 bytes on 64-bit Linux, and up to
    # 2,168 elsewhere.
    status = (ctypes.c_long * 512)()
    if function is None or function(os.fsencode(path), status) != 0:
        return None
    return int(status[0])


def _open_unnamed(folder: str) -> int:
    if system.O_TMPFILE is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), folder)
    return os.open(folder, os.O_WRONLY | system.O_TMPFILE | system.O_CLOEXEC, 0o666)


def _write(descriptor: int, data: Data, *, durable: bool) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if durable:
        system.fsync(descriptor)


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        system.fsync(descriptor)
    finally:
        os.close(descriptor)


def _start_writing(path: Path, start: Callable[[int, int, int, int], int]) -> None:
    # A file that is gone again, or cannot be written early, is left to the fsync.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | system.O_CLOEXEC)
        try:
            start(descriptor, 0, 0, _START_WRITING)
        finally:
            os.close(descriptor)
