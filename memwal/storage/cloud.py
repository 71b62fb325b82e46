"""Object store over S3, GCS, Azure and memory, through obstore.

obstore does not survive a fork: a child of a process that used it is refused.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import MemoryStore
from obstore.store import ObjectStore as ObstoreBackend

from memwal.errors import (
    ConflictError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TableSetupError,
    UnsupportedStoreError,
)
from memwal.storage import object_store, uris
from memwal.storage.cloud_errors import (
    OBSTORE_ERRORS,
    invalid_options_error,
    translate_errors,
    was_retried,
)
from memwal.storage.credentials import Credentials
from memwal.storage.object_store import Data, ObjectInfo, ObjectStore
from memwal.storage.options import CLOUDS, cloud_settings
from memwal.storage.uris import TableUri
from memwal.util.concurrency import ForkGuard
from memwal.util.log import secret_values

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion


# S3 deletes at most this many objects with one request.
_BATCH = 1000
# Objects that are replaced (version hints, leases) have fewer bytes than this.
_SMALL: Final = 256
_MAX_SEEN: Final = 1024
_EXPRESS_BUCKET = "--x-s3"

# obstore's names of the credentials, by Lance's names.
_OBSTORE_NAMES: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "token",
    "google_storage_token": "token",
    "azure_storage_account_key": "access_key",
    "azure_storage_sas_token": "sas_token",
    "azure_storage_token": "token",
}

_memories: dict[str, MemoryStore] = {}
# Made when this process, or the one that it was forked from, first used obstore.
_first_use: ForkGuard | None = None


class CloudStore(ObjectStore):
    """Store of a table below a prefix of a bucket (``""`` for the bucket itself).

    A process that is forked from one that has used such a store cannot use any: the threads that
    obstore needs do not exist in the child. Calls there raise
    :class:`~memwal.errors.TableSetupError` instead of hanging. Start workers with the ``spawn`` or
    ``forkserver`` method.

    ``secrets`` are never shown in an error message. They are iterated again for each message, so
    they may change.
    """

    is_local = False

    def __init__(
        self,
        backend: obstore.store.ObjectStore,
        *,
        uri: str,
        prefix: str,
        secrets: Iterable[str] = (),
    ) -> None:
        self.uri = uri
        self._backend = backend
        self._root = prefix + "/" if prefix else ""
        self._secrets = secrets
        # Small objects that were read last, with their ETags: a replacement need not read them
        # again. Only atomic changes: no lock needed.
        self._seen: dict[str, tuple[bytes, ObjectMeta]] = {}

    def create(self, key: str, data: Data) -> None:
        path = self._path(key)
        with self._calling("create", key, writes=True):
            self._backend.put(path, memoryview(data).cast("B"), mode="create")

    def put(self, key: str, data: Data) -> None:
        path = self._path(key)
        with self._calling("store", key, writes=True):
            self._backend.put(path, memoryview(data).cast("B"))

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> None:
        path = self._path(key)
        with self._calling("store", key, writes=True):
            self._backend.put(path, iter(chunks))

    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        # A caller mostly expects the object that it has just read.
        content, meta = self._seen.pop(key, (b"", None))
        if meta is not None and content == expected and self._replace_seen(key, data, meta):
            return
        changed = ConflictError(
            f"{self.uri}/{key} is not what was read before; read it again and retry"
        )
        try:
            with self._calling("replace", key):
                result = self._backend.get(self._path(key))
                content = result.bytes().to_bytes()
        except ObjectNotFoundError:
            raise changed from None
        if content != expected or not self._replace_seen(key, data, result.meta):
            raise changed

    def _replace_seen(self, key: str, data: Data, seen: ObjectMeta) -> bool:
        """Replace an object if it is still the one that was seen; return whether it was."""
        tag = seen["e_tag"]
        if tag is None:
            raise UnsupportedStoreError(
                f"cannot replace {self.uri}/{key}: the store gives objects no ETag; use one that "
                "does"
            )
        # Some S3 servers (Ceph) accept their own ETags only without the quotes they return.
        spellings = (tag, tag.strip('"'))
        return any(self._replace_version(key, data, _version(seen, one)) for one in spellings)

    def _replace_version(self, key: str, data: Data, version: UpdateVersion) -> bool:
        with self._calling("replace", key, writes=True):
            try:
                self._backend.put(self._path(key), memoryview(data).cast("B"), mode=version)
            # The last one is S3's answer if the object was deleted.
            except (PreconditionError, AlreadyExistsError, FileNotFoundError) as error:
                if was_retried(error):
                    raise StoreUnavailableError(
                        f"it is not known whether {self.uri}/{key} was replaced: the first "
                        "request got no answer and a second one was refused; read it back"
                    ) from None
                return False
        return True

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._calling("read", key):
            result = self._backend.get(path)
            content = result.bytes().to_bytes()
        if len(content) <= _SMALL:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            self._seen[key] = content, result.meta
        return content

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        object_store.check_range(start, length)
        path = self._path(key)
        try:
            with self._calling("read", key):
                return self._backend.get_range(path, start=start, length=length).to_bytes()
        except StoreUnavailableError:
            # For a start at or past the end, each store has its own error.
            info = self.head(key)
            if info is not None and start >= info.size:
                return b""
            raise

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of an object; None if the key or the bucket does not exist.

        The answer to a HEAD request has no body, so the two cannot be told apart.
        """
        path = self._path(key)
        with suppress(ObjectNotFoundError), self._calling("look at", key):
            return self._info(self._backend.head(path))
        return None

    def keeps_versions(self, key: str) -> bool | None:
        if self.uri.startswith("gs:"):
            # Every object of GCS has a generation, whether or not older ones are kept.
            return None
        with self._calling("look at", key):
            version = self._backend.head(self._path(key))["version"]
        return version not in (None, "null")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = self._walk(object_store.check_prefix(prefix))
        # Consoles and Hadoop store an object for the folder itself, which is not below it.
        folder = (self._root + prefix).rstrip("/")
        return (
            self._info(meta)
            for meta in found
            if meta["path"] != folder
            and not object_store.is_temporary(meta["path"].rpartition("/")[2])
        )

    def list_folders(self, prefix: str) -> builtins.list[str]:
        folder = self._root + object_store.check_prefix(prefix)
        with self._calling("list", prefix):
            listing = self._backend.list_with_delimiter(folder.rstrip("/") or None)
        return sorted(path.rpartition("/")[2] for path in listing["common_prefixes"])

    def delete(self, key: str) -> None:
        self._delete_path(self._path(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        self._delete_paths(self._path(key) for key in keys)

    def delete_folder(self, prefix: str) -> None:
        self._delete_paths(meta["path"] for meta in self._walk(object_store.check_folder(prefix)))

    def _delete_paths(self, paths: Iterable[str]) -> None:
        remaining = iter(paths)
        while batch := list(islice(remaining, _BATCH)):
            try:
                with self._calling("delete objects below", ""):
                    self._backend.delete(batch)
            except ObjectNotFoundError:
                # The store stopped at a key that does not exist.
                for path in batch:
                    self._delete_path(path)

    def _delete_path(self, path: str) -> None:
        with suppress(ObjectNotFoundError), self._calling("delete", path[len(self._root) :]):
            self._backend.delete(path)

    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        object_store.check_prefix(prefix)
        return 0

    def sync(self, prefix: str) -> None:
        object_store.check_prefix(prefix)

    def barrier(self, *, up_to: str | None = None) -> None:
        return

    def _walk(self, prefix: str) -> Iterator[ObjectMeta]:
        folder = (self._root + prefix).rstrip("/")
        with self._calling("list", prefix):
            for batch in self._backend.list(folder or None, chunk_size=_BATCH):
                yield from batch

    def _path(self, key: str) -> str:
        return self._root + object_store.check_key(key)

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        key = meta["path"][len(self._root) :]
        return ObjectInfo(key, meta["size"], meta["last_modified"], meta["e_tag"])

    def _calling(
        self, action: str, key: str, *, writes: bool = False
    ) -> AbstractContextManager[None]:
        _refuse_fork()
        what = f"{self.uri}/{key}".rstrip("/")
        return translate_errors(action, what, secrets=self._secrets, writes=writes)


def memory_backend(name: str) -> MemoryStore:
    """Return the memory store with this name. It lives as long as the process."""
    return _memories.setdefault(name, MemoryStore())


def cloud_backend(
    address: TableUri, options: Mapping[str, str], credentials: Credentials | None = None
) -> ObstoreBackend:
    """Return a client of the bucket of an address, with renewed credentials if given.

    InvalidInputError is raised if an option has an invalid value, or lacks one that it needs, such
    as the secret of an access key.
    """
    settings = cloud_settings(address.scheme, options)
    config = dict(settings.config)
    if address.scheme == uris.S3 and address.authority.endswith(_EXPRESS_BUCKET):
        config["aws_s3_express"] = "true"
    bucket = f"{address.scheme}://{address.authority}"
    try:
        backend: ObstoreBackend = CLOUDS[address.scheme].from_url(
            bucket,
            config=config,
            client_options=settings.client,
            credential_provider=None if credentials is None else _provider(credentials),
            retry_config={
                "max_retries": settings.max_retries,
                "retry_timeout": settings.retry_timeout,
            },
        )
    except OBSTORE_ERRORS as error:
        raise invalid_options_error(
            error, bucket, secrets=secret_values(options, os.environ)
        ) from None
    return backend


def _version(meta: ObjectMeta, tag: str) -> UpdateVersion:
    version = meta["version"]
    return {"e_tag": tag} if version is None else {"e_tag": tag, "version": version}


def _provider(credentials: Credentials) -> Callable[[], dict[str, str | datetime]]:
    def provide() -> dict[str, str | datetime]:
        cached = credentials.current()
        named = {_OBSTORE_NAMES[name]: value for name, value in cached.options.items()}
        return {**named, "expires_at": datetime.fromtimestamp(cached.expires_at, UTC)}

    return provide


def _refuse_fork() -> None:
    global _first_use
    if _first_use is None:
        _first_use = ForkGuard("the client of an object store")
    if _first_use.inherited:
        raise TableSetupError(
            "this process was forked from one that had used an object store, which cannot work: "
            "start workers with the 'spawn' or 'forkserver' method of multiprocessing"
        )
