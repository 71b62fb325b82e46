"""Commits as a strict compare-and-swap.

Lance rebases an ordinary commit over whatever landed in between, unless it finds a conflict.
Details of the MemWAL index that were read before would then silently take back merge progress, and
a merge would go past progress that it did not know. A namespace client with managed versioning
decides the version itself: :class:`_PinnedNamespace` knows one version as the latest, and creates
the next one only by put-if-absent. Any concurrent commit takes that name first, and ours is
refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import lance
import lance_namespace
from lance.dataset import Index, LanceOperation

from memwal.errors import ConflictError, MemWalError, OutcomeUnknownError, TableSetupError
from memwal.format.index_details import DETAILS_TYPE_URL, IndexDetails
from memwal.format.names import MEM_WAL_INDEX_NAME, table_manifest_keys
from memwal.storage.base import ObjectStore
from memwal.storage.location import TableLocation
from memwal.storage.settled import create_settled
from memwal.table_index.base_table import BaseTable, table_manifest_key

Result = TypeVar("Result")

_VERSIONS_FOLDER = "_versions/"


def commit_strictly(
    base: BaseTable, commit: Callable[[lance.LanceDataset], Result]
) -> Result | None:
    """Run something that makes one commit, provided that ``base`` is still the latest version.

    Parameters
    ----------
    base : BaseTable
        The version that the commit was prepared on.
    commit : callable
        Commits through the data set that it is given, once, without retries.

    Returns
    -------
    object
        What ``commit`` returned; None when it failed after its commit was stored.

    Raises
    ------
    ConflictError
        Another commit landed since ``base`` was read. Nothing was changed.
    OutcomeUnknownError, StoreError
        The store failed, or did not say whether the new version exists.
    OSError, ValueError, RuntimeError
        Whatever ``commit`` raises before it commits.
    """
    namespace = _PinnedNamespace(base.location, base.version)
    dataset = lance.LanceDataset(
        base.location.uri,
        storage_options=dict(base.location.storage_options) or None,
        namespace_client=namespace,
        table_id=["table"],
        namespace_client_managed_versioning=True,
    )
    try:
        result = commit(dataset)
    except (OSError, ValueError, RuntimeError) as error:
        if namespace.outcome.created:
            return None
        if namespace.outcome.failure is not None:
            raise namespace.outcome.failure from error
        raise
    return result


def commit_details(base: BaseTable, details: IndexDetails) -> int:
    """Replace the MemWAL index details, provided that ``base`` is still the latest version.

    Parameters
    ----------
    base : BaseTable
        What the details were derived from.
    details : IndexDetails
        The new details, whole.

    Returns
    -------
    int
        The new version of the table.

    Raises
    ------
    ConflictError
        Another commit landed since ``base`` was read. Nothing was changed.
    OutcomeUnknownError
        The store did not say whether the new version exists.
    """
    base.require_mem_wal()
    if base.index is None:
        raise TableSetupError(f"MemWAL is not enabled on {base.location}")
    new = _index(base.version, str(uuid.uuid4()), details.encode())
    old = _index(base.version, str(base.index.uuid), None)
    namespace = _PinnedNamespace(base.location, base.version)
    cause: BaseException | None = None
    try:
        lance.LanceDataset.commit(
            base.location.uri,
            LanceOperation.CreateIndex(new_indices=[new], removed_indices=[old]),
            read_version=base.version,
            storage_options=dict(base.location.storage_options) or None,
            namespace_client=namespace,
            table_id=["table"],
            namespace_client_managed_versioning=True,
            max_retries=0,
        )
    except (OSError, ValueError, RuntimeError) as error:
        # Lance reports a refusal in several ways, one of them "result unknown"; what the
        # namespace saw is the truth.
        cause = error
    outcome = namespace.outcome
    if outcome.created:
        return base.version + 1
    if outcome.failure is not None:
        raise outcome.failure from cause
    if cause is None:
        raise OutcomeUnknownError(
            f"the commit to {base.location} returned without creating version {base.version + 1}; "
            "read the table's latest version before trying again"
        )
    raise ConflictError(
        f"version {base.version} of {base.location} is no longer the latest; read it again"
    ) from cause


def _index(version: int, index_uuid: str, details: bytes | None) -> Index:
    return Index(
        uuid=index_uuid,
        name=MEM_WAL_INDEX_NAME,
        fields=[],
        dataset_version=version,
        fragment_ids=[],
        index_version=0,
        created_at=datetime.now(UTC) if details is not None else None,
        index_details=(DETAILS_TYPE_URL, details) if details is not None else None,
    )


@dataclass(slots=True)
class _Outcome:
    created: bool = False
    failure: MemWalError | None = None


class _PinnedNamespace(lance_namespace.LanceNamespace):  # type: ignore[misc]
    """A namespace of one table whose latest version is the one that was read."""

    def __init__(self, location: TableLocation, version: int) -> None:
        self._location = location
        self._store: ObjectStore = location.store
        self._version = version
        self._inverted = table_manifest_key(location, version) == table_manifest_keys(version)[0]
        self._root = _object_path(location)
        self.outcome = _Outcome()

    def namespace_id(self) -> str:
        return f"memwal-{self._root}-{self._version}"

    def describe_table(self, request: Any) -> lance_namespace.DescribeTableResponse:
        return lance_namespace.DescribeTableResponse(
            location=self._location.uri, managed_versioning=True
        )

    def list_table_versions(self, request: Any) -> lance_namespace.ListTableVersionsResponse:
        version = self._version + 1 if self.outcome.created else self._version
        return lance_namespace.ListTableVersionsResponse(versions=[self._table_version(version)])

    def describe_table_version(self, request: Any) -> lance_namespace.DescribeTableVersionResponse:
        version = _value(request, "version")
        return lance_namespace.DescribeTableVersionResponse(version=self._table_version(version))

    def create_table_version(self, request: Any) -> lance_namespace.CreateTableVersionResponse:
        version = _value(request, "version")
        staging = self._key_of(_value(request, "manifest_path"))
        try:
            if version != self._version + 1:
                self._refuse()
            try:
                manifest = self._store.get(staging)
                taken = create_settled(self._store, self._final_key(version), manifest)
            except MemWalError as error:
                self.outcome.failure = error
                raise
            if taken is not None:
                self._refuse()
            self.outcome.created = True
        finally:
            self._store.delete(staging)
        return lance_namespace.CreateTableVersionResponse(version=self._table_version(version))

    def _refuse(self) -> NoReturn:
        self.outcome.failure = ConflictError(
            f"version {self._version} of {self._location} is no longer the latest; read it again"
        )
        raise lance_namespace.ConcurrentModificationError(
            f"version {self._version} is no longer the latest"
        )

    def _table_version(self, version: int) -> lance_namespace.TableVersion:
        key = self._final_key(version)
        info = self._store.head(key)
        if info is None:
            raise lance_namespace.TableVersionNotFoundError(str(version))
        return lance_namespace.TableVersion(
            version=version, manifest_path=self._root + key, manifest_size=info.size
        )

    def _final_key(self, version: int) -> str:
        inverted, plain = table_manifest_keys(version)
        return inverted if self._inverted else plain

    @staticmethod
    def _key_of(path: str) -> str:
        return _VERSIONS_FOLDER + path.rpartition(_VERSIONS_FOLDER)[2]


def _object_path(location: TableLocation) -> str:
    """The table's folder as Lance names it inside its object store, with a slash at the end."""
    local = location.local_path
    path = str(local) if local is not None else urlsplit(location.uri).path
    return path.strip("/") + "/"


def _value(request: Any, name: str) -> Any:
    """Requests arrive as models or as plain dictionaries, depending on the call."""
    return request[name] if isinstance(request, dict) else getattr(request, name)
