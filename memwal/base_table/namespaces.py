"""Lance namespace clients that create a table's next version by put-if-absent.

Before that, they check the files that the version adds, and sync them. Every commit to the base
table passes here: commits that Lance makes in one call (a merge records its progress only so), and
commits of uncommitted parts.

Lance asks for a subclass of :class:`lance_namespace.LanceNamespace` that answers with its models,
and takes any object that answers with dictionaries. These classes do the latter: the import of
``lance_namespace`` takes half a second of a processor, more than a small merge.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit
from uuid import uuid4

from memwal.base_table.named_files import check_new_files, decode_new_rows
from memwal.base_table.snapshot import open_dataset, read_table_manifest, table_manifest_key
from memwal.errors import LinkRefusedError, MemWalError, TableSetupError
from memwal.format.lance_manifest import with_mem_wal_details
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import table_manifest_keys
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore, create_settled
from memwal.util.retry import LostRaceError

if TYPE_CHECKING:
    import lance_namespace

logger = logging.getLogger(__name__)

Response = dict[str, Any]

_VERSIONS_FOLDER = "_versions/"


class DurableNamespace:
    """A namespace of one table that creates a version after its files are durable.

    Lance rebases a commit on newer versions that do not conflict with it, as without a namespace.
    ``version`` is the one on which the commit was prepared; ``accept`` returns whether it may be
    rebased on a newer version, by default on any.
    """

    def __init__(
        self,
        location: TableLocation,
        version: int,
        *,
        accept: Callable[[int], bool] | None = None,
    ) -> None:
        self._location = location
        self._store: ObjectStore = location.store
        self._version = version
        self._accept = accept
        self._inverted = self._has_inverted_names()
        local = location.local_path
        path = str(local) if local is not None else urlsplit(location.uri).path
        # The table's folder in Lance's object store.
        self._root = path.strip("/") + "/"
        # Outcome of the commit: the version that it created last, or the error.
        self.created: int | None = None
        self.failure: MemWalError | None = None

    def namespace_id(self) -> str:
        return f"memwal-{self._root}-{self._version}"

    def describe_table(self, request: Mapping[str, Any]) -> Response:
        return {
            "location": self._location.uri,
            "managed_versioning": True,
            "storage_options": self._location.lance_options(),
        }

    def list_table_versions(self, request: Mapping[str, Any]) -> Response:
        latest = self._latest()
        return {"versions": [self._table_version(latest)] if latest else []}

    def describe_table_version(self, request: Mapping[str, Any]) -> Response:
        return {"version": self._table_version(request["version"])}

    def create_table_version(self, request: Mapping[str, Any]) -> Response:
        version = request["version"]
        staging = _VERSIONS_FOLDER + request["manifest_path"].rpartition(_VERSIONS_FOLDER)[2]
        try:
            try:
                self._check(version)
                # First the files that a collector may delete by their age.
                staged = self._store.get(staging)
                before = self._manifest_before(version)
                manifest = self._complete(check_new_files(self._store, staged, before=before))
                decode_new_rows(self._location, manifest, before=before, version=version)
                # The files of the version must be durable before it: on local disks Lance does not
                # fsync.
                self._store.barrier()
                taken = create_settled(self._store, self._final_key(version), manifest)
            except MemWalError as error:
                self.failure = error
                raise
            if taken is not None:
                self._taken(version)
            self.created = version
        finally:
            try:
                self._store.delete(staging)
            except LinkRefusedError as error:
                # The commit is not affected. The staged manifest takes space, and is never a
                # version.
                logger.warning("%s is not deleted: %s", staging, error)
        return {"version": self._table_version(version)}

    def _complete(self, manifest: bytes) -> bytes:
        """Return the manifest of the new version, of the one that Lance staged."""
        return manifest

    def _has_inverted_names(self) -> bool:
        """Return whether manifests are named so that the newest comes first in a listing."""
        key = table_manifest_key(self._location, self._version)
        return key == table_manifest_keys(self._version)[0]

    def _latest(self) -> int:
        return int(open_dataset(self._location).version)

    def _check(self, version: int) -> None:
        """Refuse a version that this commit must not create."""
        below = version - 1
        if self._accept is not None and below != self._version and not self._accept(below):
            raise LostRaceError(
                f"version {below} of {self._location} conflicts with the commit that was prepared "
                f"on version {self._version}; read the table again and retry"
            )

    def _manifest_before(self, version: int) -> bytes | None:
        try:
            return read_table_manifest(self._location, version - 1)
        except TableSetupError as error:
            # This process was paused, and the table has gone on for so long that the version that
            # this one follows was cleaned up; its own name may be free again.
            raise LostRaceError(
                f"version {version - 1} of {self._location} was cleaned up; read the table again"
            ) from error

    def _taken(self, version: int) -> NoReturn:
        """Refuse a version that another process created."""
        raise _conflict(f"version {version} exists")

    def _table_version(self, version: int) -> Response:
        key = self._final_key(version)
        info = self._store.head(key)
        if info is None:
            from lance_namespace import TableVersionNotFoundError

            raise TableVersionNotFoundError(str(version))
        return {
            "version": version,
            "manifest_path": self._root + key,
            "manifest_size": info.size,
        }

    def _final_key(self, version: int) -> str:
        inverted, plain = table_manifest_keys(version)
        return inverted if self._inverted else plain


class PinnedNamespace(DurableNamespace):
    """A namespace whose latest version is the one that was read, so that Lance never rebases.

    With ``details``, the new version has these details of the MemWAL index, so that rows and their
    merge progress are in one commit.
    """

    def __init__(
        self, location: TableLocation, version: int, *, details: IndexDetails | None = None
    ) -> None:
        super().__init__(location, version)
        self._details = details

    def describe_table_version(self, request: Mapping[str, Any]) -> Response:
        if not isinstance(self.failure, LostRaceError) or not self._version:
            return super().describe_table_version(request)
        # This commit created nothing. Lance asks whether the version that was refused is its own:
        # four times within 0.2 s if there is none. The version that was read is not its own either.
        return {"version": self._table_version(self._version) | {"version": request["version"]}}

    def _complete(self, manifest: bytes) -> bytes:
        if self._details is None:
            return manifest
        return with_mem_wal_details(manifest, self._details.encode(), uuid4())

    def _latest(self) -> int:
        return self.created or self._version

    def _check(self, version: int) -> None:
        if version != self._version + 1:
            self._taken(version)

    def _taken(self, version: int) -> NoReturn:
        self.failure = LostRaceError(
            f"version {self._version} of {self._location} is no longer the latest; read it again"
        )
        raise _conflict(f"version {self._version} is no longer the latest")


class NewTableNamespace(PinnedNamespace):
    """A namespace of a table that does not exist yet."""

    def __init__(self, location: TableLocation) -> None:
        super().__init__(location, 0)

    def declare_table(self, request: object) -> lance_namespace.DeclareTableResponse:
        # Lance's Python code reads the attributes of this answer, and has imported the library.
        from lance_namespace import DeclareTableResponse

        return DeclareTableResponse(**self.describe_table({}))

    def _has_inverted_names(self) -> bool:
        return True

    def _manifest_before(self, version: int) -> bytes | None:
        return None


def _conflict(message: str) -> Exception:
    """Return the error by which Lance learns that another commit took the version."""
    from lance_namespace import ConcurrentModificationError

    error: Exception = ConcurrentModificationError(message)
    return error
