"""Object store interface, and a put-if-absent that resolves ambiguous answers by reading back.

"Already exists" after a retry, a timeout, or a 500 after the write does not tell whose object is
there. The stored bytes do, provided that no other process can have written the same ones. A retry
with the same bytes is safe, even if an earlier request is still on its way.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import (
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)

Data = bytes | bytearray | memoryview
"""What may be stored: any of the buffer types, taken as it is at the time of the call."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing tells of one object.

    Attributes
    ----------
    key : str
        Name relative to the root of the table.
    size : int
        Length in bytes.
    modified : datetime
        Time of the last change by the clock of the store, in UTC.
    """

    key: str
    size: int
    modified: datetime


class ObjectStore(ABC):
    """The objects of one table.

    Keys are ``/``-separated and relative to the root of the table. They never start or end with
    ``/``, have no empty, ``.`` or ``..`` part, and their last part is not the name of a temporary
    file (``.*.tmp``); any other key raises :class:`~memwal.errors.InvalidInputError` before the
    store is asked. A prefix is the key of a folder, or ``""`` for the root; one trailing ``/`` is
    allowed. ``list("a")`` never shows ``ab/x``.

    All methods may be called from many threads at once. All of them may raise
    :class:`~memwal.errors.StoreAccessError`, :class:`~memwal.errors.StoreUnavailableError` and
    :class:`~memwal.errors.TableSetupError` (the bucket does not exist, or lies elsewhere).

    Attributes
    ----------
    uri : str
        Where the root is, without secrets.
    is_local : bool
        Whether the objects are files of this machine. Only then do :meth:`sync` and
        :meth:`barrier` have something to do.
    lance_commits : bool
        Whether a version of a table that Lance itself stores here is durable, and never in the
        place of another one. If not, versions are stored by us.
    """

    uri: str
    is_local: bool

    @property
    def lance_commits(self) -> bool:
        return not self.is_local

    @abstractmethod
    def create(self, key: str, data: Data) -> None:
        """Store an object under a name that is free; durable when it returns.

        Raises
        ------
        ObjectExistsError
            The name is taken. After a request that was retried inside the client, it can be
            taken by this very call: whoever must know reads the object back.
        StoreFullError
            No space; nothing is visible under the name.
        StoreUnavailableError
            It is not known whether the object was stored.
        """

    @abstractmethod
    def put(self, key: str, data: Data) -> None:
        """Store an object, over the one that has the name; durable when it returns."""

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> None:
        """Store an object as :meth:`put` does, of chunks, for one that memory need not hold.

        Here they are joined; stores that can do better do.
        """
        self.put(key, b"".join(chunks))

    @abstractmethod
    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        """Replace an object only while its content equals ``expected``.

        Raises
        ------
        ConflictError
            The content differs, or the object is gone. Nothing was written.
        StoreUnavailableError
            It is not known whether the object was replaced.
        UnsupportedStoreError
            The store has neither conditional puts nor locks.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Read an object.

        Raises
        ------
        ObjectNotFoundError
            No object has the name.
        """

    @abstractmethod
    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Read up to ``length`` bytes from offset ``start``.

        Fewer bytes, or none, come back where the object ends earlier.

        Raises
        ------
        ObjectNotFoundError
            No object has the name.
        InvalidInputError
            ``start`` is negative or ``length`` is not positive.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """Tell size and time of an object, or ``None`` when there is none."""

    def exists(self, key: str) -> bool:
        """Tell whether an object has the name."""
        return self.head(key) is not None

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object below a folder, at any depth and in no promised order.

        A folder that does not exist is empty. What is created or deleted while the listing runs
        may or may not be shown. Temporary files never are.
        """

    @abstractmethod
    def list_folders(self, prefix: str) -> builtins.list[str]:
        """Return the names of the immediate sub-folders, sorted.

        The local store also names folders that are empty; object stores do not have those.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; one that does not exist is fine."""

    @abstractmethod
    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete many objects, in batches where the store can; absent ones are fine.

        When it raises, some of them may be deleted already.
        """

    @abstractmethod
    def delete_folder(self, prefix: str) -> None:
        """Delete everything below a folder, and the folder; one that does not exist is fine.

        Raises
        ------
        InvalidInputError
            ``prefix`` is empty: the root is the table itself.
        """

    @abstractmethod
    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        """Delete what processes that died in the middle of a write left below a folder.

        Such files are harmless and never listed; they only take space. Object stores have none.

        Parameters
        ----------
        prefix : str
            The folder to look in, at any depth.
        older_than : timedelta
            Younger files may belong to a write that is still running, and stay.

        Returns
        -------
        int
            How many were deleted.
        """

    @abstractmethod
    def sync(self, prefix: str) -> None:
        """Make everything below a folder durable, and the folders from it up to the root.

        For what was written past this class, such as files that Lance wrote. Object stores are
        durable as they are.

        Raises
        ------
        ObjectNotFoundError
            A local folder is not there.
        """

    @abstractmethod
    def barrier(self, *, up_to: str | None = None) -> None:
        """Make everything durable that was written to the file system the table is on.

        Needed once before something is deleted that an unsynced commit of Lance replaced. It
        costs as much as there is unwritten data of anybody on that file system. Object stores
        are durable as they are.

        Parameters
        ----------
        up_to : str, optional
            Key of an object. What was written until it was is enough: nothing is done where this
            store has made all of that durable already.
        """

    def keeps_versions(self, key: str) -> bool | None:
        """Tell whether what is overwritten and deleted is kept, as far as an object shows it.

        Returns
        -------
        bool or None
            None when objects of this store do not show it.
        """
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"


def is_temporary(name: str) -> bool:
    """Tell whether a file name is one that a write uses before the object gets its own."""
    return name.startswith(".") and name.endswith(".tmp")


def check_key(key: str) -> str:
    """Return ``key`` when it may name an object.

    Raises
    ------
    InvalidInputError
        It is empty, absolute, has an empty, ``.`` or ``..`` part, a NUL, or the name of a
        temporary file.
    """
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in key or is_temporary(parts[-1]):
        raise InvalidInputError(
            f"{key!r} cannot name an object: use parts joined by single '/', relative to the "
            "table, none of them '', '.' or '..', and not a temporary name ('.*.tmp')"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` without its trailing ``/`` when it may name a folder, or ``""``.

    Raises
    ------
    InvalidInputError
        As for :func:`check_key`.
    """
    return check_key(prefix.removesuffix("/")) if prefix else prefix


def check_folder(prefix: str) -> str:
    """Return ``prefix`` as :func:`check_prefix` does, but refuse the root.

    Raises
    ------
    InvalidInputError
        It is empty, or as for :func:`check_key`.
    """
    if not prefix:
        raise InvalidInputError("refusing to delete the root of a table: name a folder inside it")
    return check_prefix(prefix)


def check_range(start: int, length: int) -> None:
    """Refuse a range that is not one.

    Raises
    ------
    InvalidInputError
        ``start`` is negative or ``length`` is not positive.
    """
    if start < 0 or length <= 0:
        raise InvalidInputError(
            f"cannot read {length} bytes from offset {start}: the offset must be at least 0 and "
            "the length at least 1"
        )


_ATTEMPTS = 5


def create_settled(store: ObjectStore, key: str, data: Data) -> bytes | None:
    """Create an object, and find out what stands under the key when the store does not say.

    "Already exists" after a retry, a timeout, a 500 after the write: none of them tells whose
    object it is. The bytes do, when they are ones that nobody else can have written. Trying again
    with the same bytes is safe, also when an earlier request is still on its way.

    Returns
    -------
    bytes or None
        None when the object is there with ``data`` in it; otherwise the bytes of somebody else.

    Raises
    ------
    OutcomeUnknownError
        The store kept failing; the object may appear, now or later.
    StoreAccessError, StoreFullError
        The store refused the first try; nothing was written.
    """
    try:
        # On the hot path of every write: the machinery of retries costs more than the rest here.
        # Anything but a store that is unavailable is a refusal, before anything could happen.
        return _create_or_read(store, key, data)
    except StoreUnavailableError as error:
        return _retry(store, key, data, first=error)


def _retry(store: ObjectStore, key: str, data: Data, *, first: StoreError) -> bytes | None:
    failures = [first]

    def attempt() -> bytes | None:
        if failures:
            raise failures.pop()
        return _create_or_read(store, key, data)

    retrying = Retrying(
        retry=retry_if_exception_type(StoreUnavailableError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    try:
        return retrying(attempt)
    except StoreError as error:
        raise OutcomeUnknownError(
            f"the store did not say whether {key} was written; it may or may not be there"
        ) from error


def _create_or_read(store: ObjectStore, key: str, data: Data) -> bytes | None:
    try:
        store.create(key, data)
    except ObjectExistsError:
        try:
            stored = store.get(key)
        except ObjectNotFoundError as error:
            # Taken a moment ago and gone now: a collector was here, which ends our claim to it.
            raise StoreUnavailableError(f"{key} was there and then it was not") from error
        # Compared as bytes: buffers of Arrow call their bytes signed.
        return None if memoryview(data).cast("B") == stored else stored
    return None
