"""Files of a local table: reading, folders, locks, fsync, early write-back and error translation.

A folder that exists already may have been made a moment ago by a process that does not fsync, as
Lance does not. The name of a folder is therefore made durable once by this process too, before an
object in it counts as durable.

Early write-back makes nothing durable. It only leaves less work for the fsync that follows, which
would otherwise begin with the first byte when the last one is written.

Locks are taken on the folder itself, not on a file inside it, so that nothing has to be cleaned up
afterwards. Each caller opens its own descriptor, so threads exclude each other as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
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
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from memwal.storage.object_store import Data, ObjectInfo, is_temporary

# Lance stages a file as '.tmp' and six letters, or under its name with '#' and a number.
_STAGED = re.compile(r"\.tmp[A-Za-z0-9]{6}|.*#\d+", re.DOTALL)
_GONE_OR_IN_USE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST})


def is_staging(name: str) -> bool:
    """Tell whether a file is a write under way, of this package or of Lance."""
    return is_temporary(name) or _STAGED.fullmatch(name) is not None


def read_file(path: str, *, start: int = 0, length: int | None = None) -> bytes:
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


def stat_object(path: str, key: str) -> ObjectInfo | None:
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


def list_entries(folder: str) -> list[os.DirEntry[str]]:
    """Return what a folder holds, nothing when it is absent or not a folder."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a real folder: links are not followed out of the table."""
    return entry.is_dir(follow_symlinks=False)


def walk_files(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below a folder that is not a folder itself, at any depth."""
    pending = [folder]
    while pending:
        for entry in list_entries(pending.pop()):
            if is_folder(entry):
                pending.append(entry.path)
            else:
                yield entry


def walk_folders(folder: str) -> Iterator[str]:
    """Yield every folder below one, children first, then the folder itself."""
    for entry in list_entries(folder):
        if is_folder(entry):
            yield from walk_folders(entry.path)
    yield folder


def delete_tree(folder: str) -> None:
    """Delete a folder with all it holds; of a link, the link.

    What somebody else deletes meanwhile is fine; what somebody creates meanwhile stays, as it
    does in an object store.
    """
    if os.path.islink(folder):
        delete_file(folder)
        return
    for entry in list_entries(folder):
        if is_folder(entry):
            delete_tree(entry.path)
        else:
            delete_file(entry.path)
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in _GONE_OR_IN_USE:
            raise


def delete_file(path: str) -> None:
    """Delete a file; one that is absent, or a folder, is left as it is."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        os.unlink(path)


_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL, errno.ENOSYS})


@contextmanager
def lock_folder(folder: str, kind: int) -> Iterator[None]:
    """Hold a lock on a folder; each caller has its own descriptor, so threads exclude each other.

    The lock is on the folder, not on a file inside it, so that nobody has to clean up after it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, kind)
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
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


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


class FolderCache:
    """Makes folders before the first write into them and remembers that it did.

    A folder that exists already may have been made a moment ago by a process that does not
    fsync, as Lance does not. Its name is therefore made durable once, too, before an object in it
    counts as durable.

    Parameters
    ----------
    root : str
        Absolute path of the table.
    durable : bool
        Whether to fsync at all.
    """

    def __init__(self, root: str, *, durable: bool) -> None:
        self._root = root
        self._durable = durable
        # Only ever asked for membership and changed by atomic operations: no lock needed.
        self._known: set[str] = set()

    def ensure(self, folder: str) -> None:
        """Make a folder at or below the root, and those above it, unless they are known."""
        if folder in self._known:
            return
        if folder != self._root:
            self.ensure(os.path.dirname(folder))
            self._make(folder)
        else:
            self._make_above(folder)
        self._known.add(folder)

    def forget(self, folder: str) -> None:
        """Ask the file system again for a folder and all below it, which may be gone."""
        below = folder + os.sep
        self._known -= {k for k in tuple(self._known) if k == folder or k.startswith(below)}

    def forget_way_to(self, folder: str) -> None:
        """Ask the file system again for a folder and all above it."""
        self._known -= {k for k in tuple(self._known) if folder == k or folder.startswith(k + "/")}

    def _make_above(self, folder: str) -> None:
        parent = os.path.dirname(folder)
        if parent != folder and not os.path.isdir(parent):
            self._make_above(parent)
        self._make(folder)

    def _make(self, folder: str) -> None:
        try:
            os.mkdir(folder)
        except FileExistsError:
            # It may be gone again: then this raises what a missing folder raises.
            if not stat.S_ISDIR(os.stat(folder).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "a file is there", folder) from None
        if not self._durable:
            return
        try:
            fsync_folder(os.path.dirname(folder))
        except PermissionError:
            # The folder above the table may be closed to this user; this takes the long way.
            sync_file_system(folder)


_PAUSE_SECONDS: Final = 0.03
_START_WRITING: Final = 2  # SYNC_FILE_RANGE_WRITE


@contextlib.contextmanager
def write_behind(folder: Path | None) -> Iterator[None]:
    """Have the disk begin with the files that others add to a folder while the block runs.

    This makes nothing durable. It only leaves less to do for the sync that follows, which would
    else begin with the first byte when the last one is there.

    Parameters
    ----------
    folder : Path or None
        Its own files only; None, and one that does not exist, does nothing.
    """
    start = sync_file_range()
    if folder is None or start is None or not folder.is_dir():
        yield
        return
    known = frozenset(os.listdir(folder))
    over = threading.Event()

    def watch() -> None:
        # A folder that is gone is for those to tell of who write into it.
        with contextlib.suppress(OSError):
            while not over.wait(_PAUSE_SECONDS):
                for name in os.listdir(folder):
                    if name not in known:
                        _begin(folder / name, start)

    watcher = threading.Thread(target=watch, name="memwal-write-behind", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _begin(path: Path, start: Callable[[int, int, int, int], int]) -> None:
    # A file that is gone again, or cannot be written ahead, is left to the sync.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start(descriptor, 0, 0, _START_WRITING)
        finally:
            os.close(descriptor)


@functools.cache
def sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The system call ``sync_file_range(2)``; None where there is none."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        function.restype = ctypes.c_int
    return function


# EFBIG is how a file size limit (ulimit -f) answers: to the caller it is a quota like any other.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})
_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


def from_os_error(error: OSError, action: str, path: str) -> MemWalError:
    """Return the error to raise for a failed system call.

    Parameters
    ----------
    error : OSError
        What the system said.
    action : str
        What was tried, such as ``"store"``; it completes "cannot ... the path".
    path : str
        The file or folder.
    """
    said = error.strerror or type(error).__name__
    what = f"cannot {action} {path}: {said}"
    code = error.errno
    if code in _FULL:
        return StoreFullError(f"{what}; free space or raise the quota, then try again")
    if code in _ACCESS:
        return StoreAccessError(f"{what}; give this user read and write access to the table")
    if code == errno.ENOENT:
        return ObjectNotFoundError(what)
    if code == errno.EEXIST:
        return ObjectExistsError(what)
    if code in _NAME:
        return InvalidInputError(f"{what}; a file stands where a folder must, or the name is bad")
    if code in _TOO_MANY:
        return StoreUnavailableError(f"{what}; raise the limit of open files (ulimit -n)")
    return StoreUnavailableError(f"{what}; look at the disk and the system's log, then try again")
