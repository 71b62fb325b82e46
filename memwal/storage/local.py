"""Tables on a local disk, with writes that survive a crash of the machine."""

from __future__ import annotations

import builtins
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta
from functools import partial
from pathlib import Path

from memwal.errors import (
    ConflictError,
    InvalidInputError,
    StoreUnavailableError,
    TableReplacedError,
    UnsupportedStoreError,
)
from memwal.format.paths import MEM_WAL_DIR
from memwal.storage import local_files, object_store
from memwal.storage.folders.delete import delete_file, delete_files, delete_tree, open_without_links
from memwal.storage.folders.hold import FolderHold, Place, close_held_folders
from memwal.storage.folders.locks import lock_folder
from memwal.storage.folders.presence import TablePresence
from memwal.storage.folders.sync import ClockReading, FolderSync, sync_folder
from memwal.storage.folders.walk import (
    check_not_broken,
    is_broken,
    linked_folders,
    list_entries,
    may_be_folder,
    walk,
)
from memwal.storage.local_files import (
    FolderCache,
    from_os_error,
    fsync_file,
    fsync_folder,
    keeps_unnamed_files,
    link_new_file,
    sync_file_system,
    write_chunks,
)
from memwal.storage.object_store import Data, LinkInfo, ObjectInfo, ObjectStore
from memwal.util import system

_NO_LINKS = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
)

# How often a folder that is deleted during a write is created again. No process deletes it that
# often within the milliseconds that this takes.
_MAX_ATTEMPTS = 64


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

    Raises UnsupportedStoreError on a system that has no locks on folders, or cannot open a file
    relative to a folder.
    """

    is_local = True

    def __init__(self, root: str | Path, *, durable: bool = True) -> None:
        if system.MISSING:
            raise UnsupportedStoreError(
                f"{root}: this system lacks what tables on a local disk need "
                f"({', '.join(system.MISSING)}): on Windows use WSL, or keep the table in an "
                "object store"
            )
        self._root = os.path.abspath(root)
        self._root_prefix = os.path.join(self._root, "")
        self._durable = durable
        self._presence = TablePresence(self._root)
        self._folders = FolderCache(self._root, durable=durable)
        # By device: start of the last sync of the whole file system.
        self._barriers: dict[int, ClockReading] = {}
        # In place of that where whole file systems cannot be synced.
        self._folder_sync = FolderSync()
        # By device: whether its file system keeps unnamed files.
        self._unnamed: dict[int, bool] = {}
        # Folders that must stay in their places for this store to write into them.
        self._hold: FolderHold | None = None
        self.uri = self._root

    def create(self, key: str, data: Data) -> None:
        path = self._path(key)
        try:
            try:
                self._write(path, lambda place: self._create_once(place, data))
            except FileExistsError:
                # The existing object may be from an earlier call of this process whose last step
                # failed, may be a moment old, or from a process that does not fsync. The caller
                # reads it back and relies on it, so it is made durable first.
                self._make_durable(path, content=True)
                raise
        except OSError as error:
            raise from_os_error(error, "create", path) from error

    def put(self, key: str, data: Data) -> None:
        path = self._path(key)
        with _translated("store", path):
            self._write(path, lambda place: self._publish(place, (data,), _replace))

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> None:
        path = self._path(key)
        with _translated("store", path), self._placed(path) as place:
            self._publish(place, chunks, _replace)

    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        path = self._path(key)
        changed = ConflictError(f"{path} is not what was read before; read it again and retry")
        with _translated("replace", path):
            try:
                with (
                    self._placed(path, make=False) as place,
                    lock_folder(_folder_of(place.path), exclusive=True),
                ):
                    if local_files.read_file(place.path) != expected:
                        raise changed
                    self._publish(place, (data,), os.replace)
            except (FileNotFoundError, NotADirectoryError):
                raise changed from None

    def get(self, key: str) -> bytes:
        return self._read(self._path(key))

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        object_store.check_range(start, length)
        return self._read(self._path(key), start=start, length=length)

    def _read(self, path: str, **part: int) -> bytes:
        with _translated("read", path):
            found = self._presence.find(partial(local_files.read_file, path, **part), path)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return found

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with _translated("look at", path):
            return self._presence.find(partial(local_files.stat_object, path, key), path)

    def exists_within(self, key: str, *, within: str, proof: str) -> bool:
        folder, path = self._folder_path(within), self._path(key)
        with _translated("look at", folder):
            mode = self._presence.find_within(folder, path, proof)
            if mode is not None and stat.S_ISLNK(mode):
                return local_files.stat_object(path, key) is not None
            if mode is None and (above := _folder_of(path)) != folder:
                check_not_broken(above)
            return mode is not None and stat.S_ISREG(mode)

    def folder_stamp(self, prefix: str) -> int | None:
        folder = self._folder_path(prefix)
        try:
            return os.stat(folder).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            raise from_os_error(error, "look at", folder) from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._list_files(self._folder_path(prefix), temporary=False)

    def list_temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._list_files(self._folder_path(prefix), temporary=True)

    def _list_files(self, folder: str, *, temporary: bool) -> Iterator[ObjectInfo]:
        with _translated("list", folder):
            for file, is_inner in walk(folder, self._presence):
                if not is_inner and local_files.is_staging(file.name) is temporary:
                    try:
                        info = local_files.stat_entry(file, self._key(file.path))
                    except FileNotFoundError:
                        self._presence.check_absent(file.path)
                        continue
                    if info is not None:
                        yield info

    def list_folders(self, prefix: str) -> builtins.list[str]:
        folder = self._folder_path(prefix)
        with _translated("list", folder):
            entries = list_entries(folder, self._presence)
            return sorted(entry.name for entry in entries if may_be_folder(entry))

    def list_links(self, prefix: str) -> Iterator[LinkInfo]:
        folder = self._folder_path(prefix)
        with _translated("list", folder):
            for entry, leads_to_folder in walk(folder, self._presence):
                if not entry.is_symlink():
                    continue
                try:
                    target = os.readlink(entry.path)
                except FileNotFoundError:
                    self._presence.check_absent(entry.path)
                    continue
                yield LinkInfo(self._key(entry.path), target, leads_to_folder, is_broken(entry))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _translated("delete", path):
            delete_file(self._root, key)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def delete_folder(self, prefix: str) -> None:
        key = object_store.check_folder(prefix)
        folder = self._path(key)
        self._folders.forget(folder)
        with _translated("delete", folder):
            delete_tree(self._root, key)

    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        folder = object_store.check_prefix(prefix)
        before = time.time() - older_than.total_seconds()

        def is_stale(entry: os.DirEntry[str]) -> bool:
            if not local_files.is_staging(entry.name):
                return False
            return entry.stat(follow_symlinks=False).st_mtime < before

        with _translated("clean", self._folder_path(prefix)):
            return delete_files(self._root, folder, is_stale)

    def check_no_link(self, prefix: str) -> None:
        folder = self._folder_path(prefix)
        with (
            _translated("look at", folder),
            suppress(FileNotFoundError, NotADirectoryError),
            open_without_links(self._root, object_store.check_prefix(prefix)),
        ):
            pass

    def sync(self, prefix: str) -> None:
        folder = self._folder_path(prefix)
        if not self._durable:
            return
        # Content first, then names, then the names of the folders above: a durable name never
        # points to content that is not durable.
        with _translated("sync", folder):
            held = None if self._hold is None else self._hold.place(folder)
            if held is None:
                sync_folder(folder)
                self._folders.forget_ancestors(folder)
                self._folders.ensure(folder)
                return
            # The name of a held folder was durable before anything in it was acknowledged.
            with held:
                sync_folder(held.path)
                above = held.path
                while above != held.base:
                    above = _folder_of(above)
                    fsync_folder(above)

    def keeps_versions(self, key: str) -> bool | None:
        return False

    def barrier(self, *, up_to: str | None = None) -> None:
        if not self._durable:
            return
        with _translated("sync the file system of", self._root):
            if up_to is not None and self._is_synced(self._path(up_to)):
                return
            if system.syncfs() is None:
                self._sync_files(_scope(up_to))
            elif up_to is None:
                self._sync_file_systems(linked_folders(self._root))
            else:
                self._sync_file_systems([_folder_of(self._path(up_to))])

    def _sync_files(self, scope: str) -> None:
        """Sync a folder of the table, ``""`` for the whole, and the names of the folders above."""
        folder = self._folder_path(scope)
        self._folder_sync.sync(folder)
        while folder != self._root:
            folder = _folder_of(folder)
            fsync_folder(folder)
        self._folders.ensure(self._root, make_root=False)

    def _sync_file_systems(self, folders: Iterable[str]) -> None:
        """Sync the file system of the root, and those of other folders, which links may lead to."""
        synced: set[int] = set()
        for folder in (self._root, *folders):
            device = os.stat(folder).st_dev
            if device not in synced:
                started = ClockReading.now()
                sync_file_system(folder)
                self._barriers[device] = started
                synced.add(device)

    def _is_synced(self, path: str) -> bool:
        """Return whether an object and its name are older than the last barrier, or are gone."""
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            raise from_os_error(error, "look at", path) from error
        barrier = self._barriers.get(status.st_dev)
        return barrier is not None and barrier.is_after(status.st_ctime)

    def hold(self, folders: Iterable[str]) -> LocalStore:
        paths = [self._path(object_store.check_prefix(folder)) for folder in folders]
        try:
            for path in paths:
                # A link to a folder above it exists, and a region would be made there.
                check_not_broken(path)
                self._make_unless_moved(path)
            hold = FolderHold(self._root, paths)
        except OSError as error:
            for path in paths:
                check_not_broken(path)
            if not isinstance(error, FileNotFoundError):
                raise from_os_error(error, "claim a region in", self._root) from error
            raise TableReplacedError(
                f"there is no table at {self._root} any more: it was moved or deleted. If it is "
                "back, or elsewhere, open it again with a new writer"
            ) from error
        # Knowledge of folders and file systems is shared with the copy.
        held = copy(self)
        held._hold = hold
        return held

    def _make_unless_moved(self, folder: str) -> None:
        """Make a folder; raise FileNotFoundError if the table is not there.

        The root is not made: a writer whose table was moved away must not put a folder there, into
        which a backup would be moved.
        """
        if not os.path.isdir(folder):
            # Absent, although it may be remembered; those above it may be absent as well.
            self._folders.forget(folder)
            try:
                self._folders.ensure(folder, make_root=False)
                return
            except FileNotFoundError:
                self._folders.forget_ancestors(folder)
        self._folders.ensure(folder, make_root=False)

    def expect_new_table(self) -> None:
        self._presence.expect_new_table()

    def check_held(self) -> None:
        if self._hold is not None:
            with _translated("look at", self._root):
                self._hold.check()

    def _path(self, key: str) -> str:
        return self._root_prefix + object_store.check_key(key)

    def _key(self, path: str) -> str:
        return path[len(self._root) :].lstrip(os.sep)

    def _folder_path(self, prefix: str) -> str:
        folder = object_store.check_prefix(prefix)
        return os.path.join(self._root, folder) if folder else self._root

    def _write(self, path: str, write_once: Callable[[Place], None]) -> None:
        folder = _folder_of(path)
        for _ in range(_MAX_ATTEMPTS):
            try:
                with self._placed(path) as place:
                    write_once(place)
                return
            except FileNotFoundError:
                check_not_broken(folder)
                self._folders.forget_ancestors(folder)
        try:
            self._folders.ensure(folder)
        except FileNotFoundError as error:
            raise InvalidInputError(
                f"cannot write {path}: no folder can be made there; give another address"
            ) from error
        raise StoreUnavailableError(
            f"cannot write {path}: its folder was missing at each of {_MAX_ATTEMPTS} attempts, "
            "which had made it; nothing was stored: find out what deletes it"
        )

    def _placed(self, path: str, *, make: bool = True) -> Place:
        """Return the place by which an object is written, after its folder was made.

        Without ``make``, the folder must exist.
        """
        held = None if self._hold is None else self._hold.place(path)
        if held is None:
            if make:
                self._folders.ensure(_folder_of(path))
            return Place(path)
        if make:
            self._make_below(held.base, _folder_of(held.path))
        return held

    def _make_below(self, base: str, folder: str) -> None:
        """Make a folder below one that is held, and those between them."""
        if folder == base:
            return
        above = _folder_of(folder)
        self._make_below(base, above)
        with suppress(FileExistsError):
            os.mkdir(folder)
        if self._durable:
            fsync_folder(above)

    def _create_once(self, place: Place, data: Data) -> None:
        path = place.path
        folder = _folder_of(path)
        device = os.stat(folder).st_dev if place.device is None else place.device
        unnamed = self._unnamed.get(device)
        if unnamed is None:
            unnamed = self._unnamed[device] = keeps_unnamed_files(folder)
        if not unnamed:
            self._publish(place, (data,), _link)
            return
        try:
            link_new_file(folder, path, data, durable=self._durable)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Some sandboxes forbid this link but not the one of a named file. If they forbid that
            # one too, it raises the error that names the next step.
            self._unnamed[device] = False
            self._publish(place, (data,), _link)
            return
        self._make_durable(path)

    def _publish(
        self, place: Place, chunks: Iterable[Data], publish: Callable[[str, str], None]
    ) -> None:
        """Write a temporary file, give it its name with ``publish``, and make the name durable."""
        path = place.path
        temporary = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.tmp")
        try:
            write_chunks(temporary, chunks, durable=self._durable)
            publish(temporary, path)
        except BaseException:
            # The caller must see the first error, not one of the clean-up.
            with suppress(OSError):
                os.unlink(temporary)
            raise
        with suppress(OSError):
            local_files.delete_file(temporary)
        self._make_durable(path)

    def _make_durable(self, path: str, *, content: bool = False) -> None:
        """Make the name of an object durable, and its ``content``, unless it was deleted since.

        Raises StoreUnavailableError: the object is there, so that no other error may be raised,
        which would mean that nothing was written.
        """
        if not self._durable:
            return
        try:
            with suppress(FileNotFoundError):
                if content:
                    fsync_file(path)
                fsync_folder(_folder_of(path))
        except OSError as error:
            if error.errno in local_files.LIMIT:
                close_held_folders()
            # A name that leads nowhere is damage, which another try does not mend.
            check_not_broken(path)
            raise StoreUnavailableError(
                f"{path} was stored, but it is not known whether it would survive a crash: "
                f"{error.strerror}; read it back before relying on it"
            ) from error


def _scope(up_to: str | None) -> str:
    """Return the folder with all that a barrier must make durable: all of the table, or a region.

    An entry of a log relies on the entries before it, a manifest of a region on the generations
    that it names. Both are in the folder of the region.
    """
    parts = up_to.split("/") if up_to is not None else []
    return "/".join(parts[:2]) if len(parts) > 2 and parts[0] == MEM_WAL_DIR else ""


def _folder_of(path: str) -> str:
    """Return the folder of a normalized absolute path, in a tenth of the time of ``dirname``."""
    return path.rpartition(os.sep)[0] or os.sep


def _replace(temporary: str, path: str) -> None:
    with lock_folder(_folder_of(path), exclusive=False):
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


@contextmanager
def _translated(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            check_not_broken(path)
        raise from_os_error(error, action, path) from error
