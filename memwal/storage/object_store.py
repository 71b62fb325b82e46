"""Object store interface, and a put-if-absent that resolves ambiguous answers by reading back."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from memwal.errors import (
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    ResourceLimitError,
    StoreError,
    StoreUnavailableError,
)
from memwal.util.retry import retry_unavailable

Data = bytes | bytearray | memoryview
"""Content to store: any buffer, as it is at the time of the call."""

STAMP_SETTLES_NS: Final = 1_000_000_000
"""Age from which on a later change of a folder has another :meth:`ObjectStore.folder_stamp`.

File systems take the time of changes from a clock that ticks every few milliseconds: a folder that
changed less than a tick ago may change again under the same time.
"""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Key, size and time of an object, as a listing returns them."""

    key: str  # Relative to the root of the table.
    size: int  # Bytes.
    modified: datetime  # Last change by the clock of the store, in UTC.
    # Changes with the content, unless the store gives none; local files have none.
    e_tag: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """Symbolic link below the folder of a table."""

    key: str  # Relative to the root of the table.
    target: str  # As the link has it: absolute, or relative to the folder of the link.
    is_folder: bool  # Whether it leads to a folder, which is listed below the link.
    is_broken: bool  # Whether it leads nowhere, to itself, or to a folder above it.


class ObjectStore(ABC):
    """Store of one table's objects.

    Keys are ``/``-separated and relative to the root of the table. They never start or end with
    ``/``, have no empty, ``.`` or ``..`` part, and their last part is not the name of a temporary
    file (``.*.tmp``); any other key raises :class:`~memwal.errors.InvalidInputError` before a
    request is sent. A prefix is the key of a folder, or ``""`` for the root; one trailing ``/`` is
    allowed. ``list("a")`` never returns ``ab/x``.

    Symbolic links below the root of a local table are followed by everything that reads, lists or
    writes; a link that leads nowhere raises :class:`~memwal.errors.CorruptDataError` when it is
    read. They are never followed by a deletion.

    Thread-safe. Every method may raise :class:`~memwal.errors.StoreAccessError`,
    :class:`~memwal.errors.StoreUnavailableError` and :class:`~memwal.errors.TableSetupError` (the
    bucket does not exist, or is in another cloud region).
    """

    uri: str  # Address of the root, without secrets.
    # Whether the objects are files of this machine. Only then do :meth:`sync` and
    # :meth:`barrier` do anything.
    is_local: bool

    @property
    def lance_commits(self) -> bool:
        """Whether Lance's own commits here are durable and never overwrite another version.

        If False, memwal stores the versions.
        """
        return not self.is_local

    @abstractmethod
    def create(self, key: str, data: Data) -> None:
        """Store an object unless the key exists (put-if-absent); durable on return.

        Raises
        ------
        ObjectExistsError
            The key exists. If the client retried the request, the object may be the one of this
            call: read it back to find out, see :func:`create_settled`.
        StoreFullError
            No space; nothing is visible under the key.
        StoreUnavailableError
            It is not known whether the object was stored.
        """

    @abstractmethod
    def put(self, key: str, data: Data) -> None:
        """Store an object, replacing an existing one; durable on return."""

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> None:
        """Store an object as :meth:`put` does, from chunks.

        This default joins the chunks in memory. The local and the cloud store do not.
        """
        self.put(key, b"".join(chunks))

    @abstractmethod
    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        """Replace an object if its content equals ``expected`` (compare-and-swap).

        Raises
        ------
        ConflictError
            The content differs, or the object does not exist. Nothing was written.
        StoreUnavailableError
            It is not known whether the object was replaced.
        UnsupportedStoreError
            The store has neither conditional puts nor locks.
        """

    def folder_stamp(self, prefix: str) -> int | None:
        """Return when an object of a folder was last created or deleted, in ns since the epoch.

        0 if there is no such folder. None if the store has no such time, as object stores.
        """
        return None

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Read an object; ObjectNotFoundError if the key does not exist."""

    @abstractmethod
    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Read up to ``length`` bytes from offset ``start``; less if the object ends earlier."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of an object; None if the key does not exist."""

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""
        return self.head(key) is not None

    def exists_within(self, key: str, *, within: str, proof: str) -> bool:
        """Return whether a key exists in a folder that must be in its place.

        ``within`` is a folder above the object, which may be unmounted, or moved away and back: the
        folder of a region. ``proof`` is a pattern of names in it, one of which exists whenever it
        is in its place: another process may have begun to write into a folder in its stead. Object
        stores cannot lose a folder for a moment, and do without both.

        Raises ObjectNotFoundError if a local folder is not in its place.
        """
        return self.exists(key)

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object below a folder, at any depth, in any order.

        A folder that does not exist is empty. Objects that are created or deleted while the listing
        runs may or may not appear. Temporary files never appear. A symbolic link that leads nowhere
        is listed like an object, so that it is not taken for absent.
        """

    @abstractmethod
    def list_folders(self, prefix: str) -> builtins.list[str]:
        """Return the names of the immediate sub-folders, sorted.

        The local store includes empty folders; object stores have none. A symbolic link that leads
        nowhere may have led to a folder, and is included.
        """

    def list_links(self, prefix: str) -> Iterator[LinkInfo]:
        """Yield every symbolic link below a folder, at any depth. Object stores have none."""
        return iter(())

    def list_temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the temporary files below a folder, at any depth. Object stores have none.

        See :meth:`delete_stale_temporaries`.
        """
        return iter(())

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object. Does nothing if the key does not exist.

        Like every deletion, raises :class:`~memwal.errors.LinkRefusedError` if a symbolic link lies
        on the way to the object; see :meth:`check_no_link`.
        """

    @abstractmethod
    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, in batches if the store supports it. Keys that do not exist are skipped.

        If it raises, some of them may be deleted already.
        """

    @abstractmethod
    def delete_folder(self, prefix: str) -> None:
        """Delete a folder, which must not be the root, and everything below it, if it exists."""

    @abstractmethod
    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        """Delete temporary files below a folder, left by processes that died during a write.

        Such files are never listed and only take space. Object stores have none. Files that are not
        ``older_than`` stay: their writes may still be running. Returns the number of deleted files.
        """

    def check_no_link(self, prefix: str) -> None:
        """Raise LinkRefusedError if a symbolic link lies on the way to a folder, or is the folder.

        Files below the folder would be deleted behind that link, which a local store refuses.
        Object stores have no links, and do nothing.
        """
        return

    @abstractmethod
    def sync(self, prefix: str) -> None:
        """Make everything below a folder durable, and the folders from it up to the root.

        For files that were not written through this class, such as those of Lance. Does nothing on
        object stores, which are always durable. Raises ObjectNotFoundError if a local folder does
        not exist.
        """

    @abstractmethod
    def barrier(self, *, up_to: str | None = None) -> None:
        """Make everything durable that was written to the file system of the table.

        Needed once before deleting files that an unsynced commit of Lance replaced. The cost grows
        with the unwritten data of all processes on that file system; on a system without ``syncfs``
        with the number of files of the table, of which the first call syncs each. Does nothing on
        object stores, which are always durable. With ``up_to``, the key of an object, only data
        older than this object has to be durable: the call returns at once if an earlier barrier of
        this store covers it.
        """

    def keeps_versions(self, key: str) -> bool | None:
        """Return whether the store keeps overwritten and deleted objects (bucket versioning).

        The metadata of an existing object shows it; None if that of this store does not.
        """
        return None

    def hold(self, folders: Iterable[str]) -> ObjectStore:
        """Return this store for a process that relies on some folders to stay in their places.

        Folders that do not exist are made now, except the root. From then on the returned store
        makes none of them again. If another folder stands in the place of one of them, or none
        does, because the table was moved or a backup was put there, every write of an object
        below it raises :class:`~memwal.errors.TableReplacedError`; so does :meth:`check_held`.
        An object whose write raised may be in the folder that was moved away.

        A folder of an object store is a part of names and has no identity: such a store returns
        itself.
        """
        return self

    def expect_new_table(self) -> None:
        """Take a missing object for absent, although a table was here before.

        Called before a new table is written to this address. Without it, a local store whose table
        is gone raises StoreUnavailableError, and a database that decides the commits refuses the
        names of its objects. Object stores do nothing.
        """
        return

    def check_held(self) -> None:
        """Raise TableReplacedError if a folder that :meth:`hold` named is not in its place."""
        return

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"


def create_settled(store: ObjectStore, key: str, data: Data) -> bytes | None:
    """Create an object; if the answer is ambiguous, read the key back to find out whose it is.

    "Already exists" after a retry, a timeout, or a 500 after the write does not tell whose object
    is there. The stored bytes do, provided that no other process can have written the same ones. A
    retry with the same bytes is safe, even if an earlier request is still on its way.

    Returns None if the object exists with ``data`` as its content; otherwise the content that
    another process stored. Raises OutcomeUnknownError if the store kept failing: the object may
    appear, now or later. After StoreAccessError, StoreFullError or ResourceLimitError nothing was
    written.
    """
    was_unanswered = False

    def attempt() -> bytes | None:
        nonlocal was_unanswered
        try:
            return _create_or_read(store, key, data)
        except StoreUnavailableError:
            was_unanswered = True
            raise

    try:
        return retry_unavailable(attempt)
    except StoreError as error:
        if not was_unanswered:
            # A refusal before anything was written.
            raise
        raise OutcomeUnknownError(
            f"the store did not say whether {key} was written; it may or may not be there"
        ) from error


def is_temporary(name: str) -> bool:
    """Return whether this is the name of a temporary file of a write."""
    return name.startswith(".") and name.endswith(".tmp")


def check_key(key: str) -> str:
    """Return ``key`` if it is valid.

    It is refused if it is empty or absolute, has an empty, ``.`` or ``..`` part or a NUL, or is the
    name of a temporary file.
    """
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in key or is_temporary(parts[-1]):
        raise InvalidInputError(
            f"{key!r} cannot name an object: use parts joined by single '/', relative to the "
            "table, none of them '', '.' or '..', and not a temporary name ('.*.tmp')"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` without its trailing ``/`` if it is a valid key."""
    return check_key(prefix.removesuffix("/")) if prefix else prefix


def check_folder(prefix: str) -> str:
    """Return ``prefix`` as :func:`check_prefix` does, but refuse the root."""
    if not prefix:
        raise InvalidInputError("refusing to delete the root of a table: name a folder inside it")
    return check_prefix(prefix)


def check_range(start: int, length: int) -> None:
    """Refuse an invalid byte range."""
    if start < 0 or length <= 0:
        raise InvalidInputError(
            f"cannot read {length} bytes from offset {start}: the offset must be at least 0 and "
            "the length at least 1"
        )


def _create_or_read(store: ObjectStore, key: str, data: Data) -> bytes | None:
    try:
        store.create(key, data)
    except ObjectExistsError:
        try:
            stored = store.get(key)
        except ObjectNotFoundError as error:
            # The key existed a moment ago and is gone now: a collector deleted it, so the caller
            # has no claim to the key any more.
            raise StoreUnavailableError(f"{key} was there and then it was not") from error
        except ResourceLimitError as error:
            # The key exists, and may be ours: this is no refusal before anything was written.
            raise StoreUnavailableError(f"{key} exists, and could not be read") from error
        # Cast to unsigned bytes for the comparison: Arrow's buffers have signed ones.
        return None if memoryview(data).cast("B") == stored else stored
    return None
