"""Tables on a local disk, with writes that survive a crash of the machine."""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from memwal.errors import ConflictError, StoreUnavailableError, UnsupportedStoreError
from memwal.storage import base, files
from memwal.storage.base import Data, ObjectInfo, ObjectStore
from memwal.storage.durability import (
    fsync_file,
    fsync_folder,
    sync_file_system,
    write_new_file,
)
from memwal.storage.folders import FolderCache
from memwal.storage.os_errors import from_os_error

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL, errno.ENOSYS})
# A folder that vanishes under a write is made again this often: nobody deletes one that many
# times within the milliseconds that this takes.
_ATTEMPTS = 64


class LocalStore(ObjectStore):
    """The objects of a table that is a folder of this machine.

    A new object is written to a temporary file, fsynced, linked to its name without overwriting,
    and the folder is fsynced: a crash in between leaves nothing under the name. Processes that
    use :meth:`replace`, :meth:`put` and :meth:`delete` in one folder exclude one another by a
    lock on that folder. Deletes are not fsynced: after a crash of the machine a deleted object
    may be back.

    Parameters
    ----------
    root : str or Path
        The folder of the table. It is made with the first object.
    durable : bool, default True
        ``False`` skips every fsync. For tests and scratch tables: a crash of the machine, unlike
        one of the process, can then leave empty files under names that were acknowledged. Saves
        nearly all of the 0.5 ms that a small :meth:`create` takes on ext4.
    """

    is_local = True

    def __init__(self, root: str | Path, *, durable: bool = True) -> None:
        self._root = os.path.abspath(root)
        self._durable = durable
        self._folders = FolderCache(self._root, durable=durable)
        self.uri = self._root

    def create(self, key: str, data: Data) -> None:
        path = self._path(key)
        with _translated("create", path):
            try:
                self._write(path, data, _link)
            except FileExistsError:
                # It may be our own, of a call whose last step failed, or be a moment old: who
                # reads it back relies on it.
                self._settle(path)
                raise

    def put(self, key: str, data: Data) -> None:
        path = self._path(key)

        def publish(temporary: str, target: str) -> None:
            with _lock(os.path.dirname(target), fcntl.LOCK_SH):
                os.replace(temporary, target)

        with _translated("store", path):
            self._write(path, data, publish)

    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        path = self._path(key)
        changed = ConflictError(f"{path} is not what was read before; read it again and retry")
        with _translated("replace", path):
            try:
                with _lock(os.path.dirname(path), fcntl.LOCK_EX):
                    if files.read(path) != expected:
                        raise changed
                    self._write_once(path, data, os.replace)
            except (FileNotFoundError, NotADirectoryError):
                raise changed from None

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _translated("read", path), _absent_when_below_a_file():
            return files.read(path)

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        base.check_range(start, length)
        path = self._path(key)
        with _translated("read", path), _absent_when_below_a_file():
            return files.read(path, start=start, length=length)

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with _translated("look at", path):
            return files.describe(path, key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._list(self._folder_path(prefix))

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        with _translated("list", folder):
            for file in files.walk(folder):
                if files.is_staging(file.name):
                    continue
                info = files.describe(file.path, file.path[len(self._root) :].lstrip(os.sep))
                if info is not None:
                    yield info

    def list_folders(self, prefix: str) -> builtins.list[str]:
        folder = self._folder_path(prefix)
        with _translated("list", folder):
            return sorted(entry.name for entry in files.entries(folder) if files.is_folder(entry))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with (
            _translated("delete", path),
            suppress(FileNotFoundError, NotADirectoryError),
            _lock(os.path.dirname(path), fcntl.LOCK_SH),
        ):
            files.remove(path)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def delete_folder(self, prefix: str) -> None:
        folder = self._path(base.check_folder(prefix))
        self._folders.forget(folder)
        with _translated("delete", folder):
            files.remove_tree(folder)

    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        folder = self._folder_path(prefix)
        before = time.time() - older_than.total_seconds()
        deleted = 0
        with _translated("clean", folder):
            for file in files.walk(folder):
                if files.is_staging(file.name) and _changed_before(file.path, before):
                    files.remove(file.path)
                    deleted += 1
        return deleted

    def sync(self, prefix: str) -> None:
        folder = self._folder_path(prefix)
        if not self._durable:
            return
        with _translated("sync", folder):
            # Content first, then names, then the names of the folders above: a name that is
            # durable never points to content that is not.
            os.stat(folder)
            for file in files.walk(folder):
                with suppress(FileNotFoundError):
                    if file.is_file(follow_symlinks=False):
                        fsync_file(file.path)
            for inner in files.walk_folders(folder):
                with suppress(FileNotFoundError):
                    fsync_folder(inner)
            self._folders.forget_way_to(folder)
            self._folders.ensure(folder)

    def barrier(self) -> None:
        if self._durable:
            with _translated("sync the file system of", self._root):
                sync_file_system(self._root)

    def _path(self, key: str) -> str:
        return os.path.join(self._root, base.check_key(key))

    def _folder_path(self, prefix: str) -> str:
        folder = base.check_prefix(prefix)
        return os.path.join(self._root, folder) if folder else self._root

    def _write(self, path: str, data: Data, publish: Callable[[str, str], None]) -> None:
        folder = os.path.dirname(path)
        for _ in range(_ATTEMPTS):
            try:
                self._folders.ensure(folder)
                self._write_once(path, data, publish)
                return
            except FileNotFoundError:
                self._folders.forget_way_to(folder)
        raise StoreUnavailableError(
            f"cannot write {path}: its folder was deleted {_ATTEMPTS} times while this tried; "
            "nothing was stored, find out what deletes it"
        )

    def _write_once(self, path: str, data: Data, publish: Callable[[str, str], None]) -> None:
        temporary = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.tmp")
        try:
            write_new_file(temporary, data, durable=self._durable)
            publish(temporary, path)
        except BaseException:
            # What went wrong first is what the caller must hear of.
            with suppress(OSError):
                os.unlink(temporary)
            raise
        try:
            files.remove(temporary)
            self._settle(path)
        except OSError as error:
            raise StoreUnavailableError(
                f"{path} was stored, but it is not known whether it would survive a crash: "
                f"{error.strerror}; read it back before relying on it"
            ) from error

    def _settle(self, path: str) -> None:
        """Make the name of an object durable, unless it was deleted with its folder meanwhile."""
        if self._durable:
            with suppress(FileNotFoundError):
                fsync_folder(os.path.dirname(path))


def _link(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise UnsupportedStoreError(
                f"cannot create {path}: {error.strerror}; a table needs a file system with hard "
                "links, which put-if-absent is made of: move it to one, or to an object store"
            ) from error
        raise


def _changed_before(path: str, moment: float) -> bool:
    try:
        return os.lstat(path).st_mtime < moment
    except FileNotFoundError:
        return False


@contextmanager
def _lock(folder: str, kind: int) -> Iterator[None]:
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


@contextmanager
def _absent_when_below_a_file() -> Iterator[None]:
    try:
        yield
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error


@contextmanager
def _translated(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise from_os_error(error, action, path) from error
