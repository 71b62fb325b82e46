"""Tables on a local disk, with writes that survive a crash of the machine."""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from memwal.errors import ConflictError, StoreUnavailableError, UnsupportedStoreError
from memwal.storage import local_files, object_store
from memwal.storage.local_files import (
    FolderCache,
    from_os_error,
    fsync_file,
    fsync_folder,
    keeps_unnamed_files,
    link_new_file,
    lock_folder,
    sync_file_system,
    write_chunks,
    write_new_file,
)
from memwal.storage.object_store import Data, ObjectInfo, ObjectStore

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})

# How often a folder that is deleted during a write is created again. No process deletes it that
# often within the milliseconds that this takes.
_MAX_ATTEMPTS = 64

# The time stamp of a file is some milliseconds behind the clock.
_COARSE_SECONDS = 1.0


class LocalStore(ObjectStore):
    """Store of a table in a local folder, which the first write creates.

    :meth:`create` writes the object to an unnamed file where the file system is known to keep it,
    else to a temporary file; fsyncs it; links it to its name without overwriting; and fsyncs the
    folder. A crash in between leaves nothing under the name. :meth:`replace`, :meth:`put` and
    :meth:`delete` of all processes exclude one another by a lock on the folder of the object.
    Deletes are not fsynced: after a crash of the machine a deleted object may be back.

    A store that is not ``durable`` skips every fsync, which saves nearly all of the 0.3 to 0.5 ms
    that a small :meth:`create` takes on ext4. Objects then survive a crash of the process, but not
    of the machine: after a power cut, acknowledged objects of the last seconds (30 by default on
    ext4) can be missing, empty or torn.
    """

    is_local = True

    def __init__(self, root: str | Path, *, durable: bool = True) -> None:
        self._root = os.path.abspath(root)
        self._root_prefix = os.path.join(self._root, "")
        self._durable = durable
        self._folders = FolderCache(self._root, durable=durable)
        # Start of the last sync of the whole file system.
        self._barrier: _ClockReading | None = None
        # By folder: whether its file system keeps unnamed files.
        self._unnamed: dict[str, bool] = {}
        self.uri = self._root

    def create(self, key: str, data: Data) -> None:
        path = self._path(key)
        try:
            try:
                self._write(path, data, self._create_once)
            except FileExistsError:
                # The existing object may be from an earlier call of this process whose last step
                # failed, may be a moment old, or from a process that does not fsync. The caller
                # reads it back and relies on it, so it is made durable first.
                self._sync_object(path, content=True)
                raise
        except OSError as error:
            raise from_os_error(error, "create", path) from error

    def put(self, key: str, data: Data) -> None:
        path = self._path(key)
        with _translated("store", path):
            self._write(path, data, partial(self._write_once, publish=_replace))

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> None:
        path = self._path(key)
        with _translated("store", path):
            self._folders.ensure(_folder_of(path))
            self._publish(
                path,
                lambda temporary: write_chunks(temporary, chunks, durable=self._durable),
                _replace,
            )

    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        path = self._path(key)
        changed = ConflictError(f"{path} is not what was read before; read it again and retry")
        with _translated("replace", path):
            try:
                with lock_folder(os.path.dirname(path), fcntl.LOCK_EX):
                    if local_files.read_file(path) != expected:
                        raise changed
                    self._write_once(path, data, publish=os.replace)
            except (FileNotFoundError, NotADirectoryError):
                raise changed from None

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _translated("read", path), _not_found_below_a_file():
            return local_files.read_file(path)

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        object_store.check_range(start, length)
        path = self._path(key)
        with _translated("read", path), _not_found_below_a_file():
            return local_files.read_file(path, start=start, length=length)

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with _translated("look at", path):
            return local_files.stat_object(path, key)

    def exists(self, key: str) -> bool:
        path = self._path(key)
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise from_os_error(error, "look at", path) from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._list_folder(self._folder_path(prefix))

    def _list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        with _translated("list", folder):
            for file in local_files.walk_files(folder):
                if local_files.is_staging(file.name):
                    continue
                info = local_files.stat_object(
                    file.path, file.path[len(self._root) :].lstrip(os.sep)
                )
                if info is not None:
                    yield info

    def list_folders(self, prefix: str) -> builtins.list[str]:
        folder = self._folder_path(prefix)
        with _translated("list", folder):
            return sorted(
                entry.name
                for entry in local_files.list_entries(folder)
                if local_files.is_folder(entry)
            )

    def delete(self, key: str) -> None:
        path = self._path(key)
        with (
            _translated("delete", path),
            suppress(FileNotFoundError, NotADirectoryError),
            lock_folder(os.path.dirname(path), fcntl.LOCK_SH),
        ):
            local_files.delete_file(path)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def delete_folder(self, prefix: str) -> None:
        folder = self._path(object_store.check_folder(prefix))
        self._folders.forget(folder)
        with _translated("delete", folder):
            local_files.delete_tree(folder)

    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        folder = self._folder_path(prefix)
        before = time.time() - older_than.total_seconds()
        deleted = 0
        with _translated("clean", folder):
            for file in local_files.walk_files(folder):
                if local_files.is_staging(file.name) and _changed_before(file.path, before):
                    local_files.delete_file(file.path)
                    deleted += 1
        return deleted

    def sync(self, prefix: str) -> None:
        folder = self._folder_path(prefix)
        if not self._durable:
            return
        with _translated("sync", folder):
            # Content first, then names, then the names of the folders above: a durable name never
            # points to content that is not durable.
            os.stat(folder)
            for file in local_files.walk_files(folder):
                with suppress(FileNotFoundError):
                    if file.is_file(follow_symlinks=False):
                        fsync_file(file.path)
            for inner in local_files.walk_folders(folder):
                with suppress(FileNotFoundError):
                    fsync_folder(inner)
            self._folders.forget_ancestors(folder)
            self._folders.ensure(folder)

    def keeps_versions(self, key: str) -> bool | None:
        return False

    def barrier(self, *, up_to: str | None = None) -> None:
        if not self._durable or (up_to is not None and self._is_synced(self._path(up_to))):
            return
        started = _ClockReading.now()
        with _translated("sync the file system of", self._root):
            sync_file_system(self._root)
        self._barrier = started

    def _is_synced(self, path: str) -> bool:
        """Return whether an object and its name are older than the last barrier, or are gone."""
        try:
            changed = os.stat(path).st_ctime
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            raise from_os_error(error, "look at", path) from error
        barrier = self._barrier
        return barrier is not None and barrier.is_after(changed)

    def _path(self, key: str) -> str:
        return self._root_prefix + object_store.check_key(key)

    def _folder_path(self, prefix: str) -> str:
        folder = object_store.check_prefix(prefix)
        return os.path.join(self._root, folder) if folder else self._root

    def _write(self, path: str, data: Data, write_once: Callable[[str, Data], None]) -> None:
        folder = _folder_of(path)
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._folders.ensure(folder)
                write_once(path, data)
                return
            except FileNotFoundError:
                self._folders.forget_ancestors(folder)
                self._unnamed.pop(folder, None)
        raise StoreUnavailableError(
            f"cannot write {path}: its folder was deleted {_MAX_ATTEMPTS} times during the write; "
            "nothing was stored, find out what deletes it"
        )

    def _create_once(self, path: str, data: Data) -> None:
        folder = _folder_of(path)
        unnamed = self._unnamed.get(folder)
        if unnamed is None:
            unnamed = self._unnamed[folder] = keeps_unnamed_files(folder)
        if not unnamed:
            self._write_once(path, data, publish=_link)
            return
        try:
            link_new_file(folder, path, data, durable=self._durable)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Some sandboxes forbid this link but not the one of a named file. If they forbid that
            # one too, it raises the error that names the next step.
            self._unnamed[folder] = False
            self._write_once(path, data, publish=_link)
            return
        self._make_name_durable(path)

    def _write_once(self, path: str, data: Data, *, publish: Callable[[str, str], None]) -> None:
        self._publish(
            path, lambda temporary: write_new_file(temporary, data, durable=self._durable), publish
        )

    def _publish(
        self, path: str, write: Callable[[str], None], publish: Callable[[str, str], None]
    ) -> None:
        """Write a temporary file, give it its name with ``publish``, and make the name durable."""
        temporary = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.tmp")
        try:
            write(temporary)
            publish(temporary, path)
        except BaseException:
            # The caller must see the first error, not one of the clean-up.
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self._make_name_durable(path, temporary)

    def _make_name_durable(self, path: str, temporary: str | None = None) -> None:
        """Make the name of a stored object durable. An error message states that it is stored."""
        try:
            if temporary is not None:
                local_files.delete_file(temporary)
            self._sync_object(path)
        except OSError as error:
            raise StoreUnavailableError(
                f"{path} was stored, but it is not known whether it would survive a crash: "
                f"{error.strerror}; read it back before relying on it"
            ) from error

    def _sync_object(self, path: str, *, content: bool = False) -> None:
        """Fsync the folder of an object, unless another process deleted it meanwhile."""
        if self._durable:
            try:
                if content:
                    fsync_file(path)
                fsync_folder(_folder_of(path))
            except FileNotFoundError:
                return


@dataclass(frozen=True, slots=True)
class _ClockReading:
    """One instant by the wall clock and by the monotonic clock."""

    wall: float
    monotonic: float

    @classmethod
    def now(cls) -> _ClockReading:
        return cls(time.time(), time.monotonic())

    def is_after(self, changed: float) -> bool:
        """Return whether a file was changed before; False if the wall clock was set since then.

        Once the wall clock was set, file times cannot be compared with this reading.
        """
        now = _ClockReading.now()
        drift = (now.monotonic - self.monotonic) - (now.wall - self.wall)
        return changed + _COARSE_SECONDS < self.wall and abs(drift) < _COARSE_SECONDS / 2


def _folder_of(path: str) -> str:
    """Return the folder of a normalized absolute path, in a tenth of the time of ``dirname``."""
    return path.rpartition(os.sep)[0] or os.sep


def _replace(temporary: str, path: str) -> None:
    with lock_folder(_folder_of(path), fcntl.LOCK_SH):
        os.replace(temporary, path)


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


def _changed_before(path: str, seconds: float) -> bool:
    try:
        return os.lstat(path).st_mtime < seconds
    except FileNotFoundError:
        return False


@contextmanager
def _not_found_below_a_file() -> Iterator[None]:
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
