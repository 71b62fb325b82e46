"""Commits to the base table: strict compare-and-swap, or rebased onto accepted versions.

Lance rebases an ordinary commit onto every version that landed in between, unless it finds a
conflict. Details of the MemWAL index that were read before would then silently take back merge
progress, and a merge would pass over progress that it did not know. A namespace client with managed
versioning decides the version itself; :mod:`memwal.base_table.namespaces` has two kinds. A pinned
one reports the version that was read as the latest, and creates the next version only by
put-if-absent: any concurrent commit takes that name first, and our commit is refused. The other one
lets Lance rebase, but only onto versions that the caller accepts.

On a local disk a version appears only after all its files are synced, which Lance itself does not
do: a machine that crashes could be left with a torn version that keeps the table from opening.
Other stores are durable by themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import lance
import pyarrow as pa
from lance.dataset import Index, LanceOperation

from memwal.base_table.snapshot import BaseTable, translate_lance_error
from memwal.errors import (
    ConflictError,
    MemWalError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    TableSetupError,
)
from memwal.format.memwal_index import DETAILS_TYPE_URL, IndexDetails
from memwal.format.paths import MEM_WAL_INDEX_NAME
from memwal.storage.location import TableLocation
from memwal.util.redaction import redact_store_response

if TYPE_CHECKING:
    from memwal.base_table.namespaces import DurableNamespace

# The last one: a commit without rows touches no rows of another commit, and is refused for its
# merge progress instead.
_CONFLICT_WORDS = ("conflict", "concurrent", "contention", "stale sstable compaction")


def is_conflict(error: Exception) -> bool:
    """Return whether a commit failed because of another one, and may be retried on top of it.

    Lance raises ``OSError`` and ``ValueError``, with the cause in the text only.
    """
    text = str(error).lower()
    return any(word in text for word in _CONFLICT_WORDS)


Result = TypeVar("Result")


def commit_durably(
    base: BaseTable,
    commit: Callable[[lance.LanceDataset], Result],
    *,
    accept: Callable[[int], bool] | None = None,
    once: bool = True,
) -> Result | None:
    """Run a commit that Lance may rebase; on a local disk its version appears when it is synced.

    Parameters
    ----------
    base : BaseTable
        The version that the commit was prepared on.
    commit : callable
        Commits through the data set that it gets, once, without retries.
    accept : callable, optional
        Tells whether the commit may follow this version, which is newer than ``base``; by default
        it may follow any.
    once : bool, default True
        Whether ``commit`` makes one version only: an error after that version was stored is then
        ignored.

    Returns
    -------
    object
        What ``commit`` returned; None if it raised after its version was stored.

    Raises
    ------
    ConflictError
        The commit was not accepted. Nothing was changed.
    OutcomeUnknownError, StoreError
        The store failed, or did not say whether the new version exists.
    OSError, ValueError, RuntimeError
        What ``commit`` raises, conflicts included.
    """
    if accept is None and base.location.store.lance_commits:
        return commit(base.dataset)
    # A late import: its library takes half a second to import, and a producer never needs it.
    from memwal.base_table.namespaces import DurableNamespace

    namespace = DurableNamespace(base.location, base.version, accept=accept)
    return _commit_through(namespace, base, commit, once=once)


def create_durably(location: TableLocation, rows: pa.Table, **options: Any) -> None:
    """Write a new Lance table.

    On a local disk its first version appears when all its files are synced, so that a machine that
    crashes meanwhile leaves a whole table or none.

    Parameters
    ----------
    rows : pyarrow.Table
        With the schema of the table.
    options
        As for ``lance.write_dataset``.

    Raises
    ------
    TableSetupError
        There is a table already, possibly created by another process meanwhile.
    OutcomeUnknownError, StoreError
        The store failed, or did not say whether the table exists.
    """
    try:
        if location.store.lance_commits:
            options |= {"storage_options": location.lance_options()}
            lance.write_dataset(rows, location.uri, mode="create", **options)
            return
        from memwal.base_table.namespaces import NewTableNamespace

        namespace = NewTableNamespace(location)
        options |= {"namespace_client": namespace, "table_id": ["table"]}
        _run_through(namespace, lambda: lance.write_dataset(rows, mode="create", **options))
    except (ConflictError, OSError, RuntimeError, ValueError) as error:
        exists = isinstance(error, ConflictError) or "already exists" in str(error).lower()
        if exists or is_conflict(error):
            raise TableSetupError(
                f"there is a table at {location} already; "
                "open it, or enable MemWAL on it with memwal.enable(uri, region_spec=...)"
            ) from error
        if isinstance(error, MemWalError):
            raise
        raise translate_lance_error(error, f"creating {location}") from error


def _commit_through(
    namespace: DurableNamespace,
    base: BaseTable,
    commit: Callable[[lance.LanceDataset], Result],
    *,
    once: bool = True,
) -> Result | None:
    dataset = lance.LanceDataset(
        base.location.uri,
        version=base.version,
        storage_options=base.location.lance_options(),
        namespace_client=namespace,
        table_id=["table"],
        namespace_client_managed_versioning=True,
    )
    return _run_through(namespace, lambda: commit(dataset), once=once)


def _run_through(
    namespace: DurableNamespace, commit: Callable[[], Result], *, once: bool = True
) -> Result | None:
    try:
        return commit()
    except (OSError, ValueError, RuntimeError) as error:
        redact_store_response(error)
        if once and namespace.outcome.created:
            return None
        if namespace.outcome.failure is not None:
            raise namespace.outcome.failure from error
        raise


def commit_details(
    base: BaseTable, details: IndexDetails, *, index_id: uuid.UUID | None = None
) -> int:
    """Replace the MemWAL index details, provided that ``base`` is still the latest version.

    Parameters
    ----------
    base : BaseTable
        The version that the details were derived from.
    details : IndexDetails
        The new details, complete.
    index_id : UUID, optional
        UUID of the index from this version up to the next commit; random by default.

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
    new = _index(base.version, str(index_id or uuid.uuid4()), details.encode())
    old = _index(base.version, str(base.index.uuid), None)
    # A late import: its library takes half a second to import, and a producer never needs it.
    from memwal.base_table.namespaces import PinnedNamespace

    namespace = PinnedNamespace(base.location, base.version)
    cause: BaseException | None = None
    try:
        lance.LanceDataset.commit(
            base.location.uri,
            LanceOperation.CreateIndex(new_indices=[new], removed_indices=[old]),
            read_version=base.version,
            storage_options=base.location.lance_options(),
            namespace_client=namespace,
            table_id=["table"],
            namespace_client_managed_versioning=True,
            max_retries=0,
        )
    except (OSError, ValueError, RuntimeError) as error:
        # Lance reports a refusal in several ways, one of them "result unknown"; the outcome that
        # the namespace recorded is what happened.
        redact_store_response(error)
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


REWRITE = "Rewrite"
"""Operation of a compaction: other fragments with the same rows."""


def commit_kind(base: BaseTable, version: int) -> str | None:
    """Return the name of the Lance operation that made a version; None if its record is gone.

    Raises
    ------
    StoreError
        The record cannot be read.
    """
    try:
        transaction = base.dataset.read_transaction(version)
    except TypeError as error:
        # pylance cannot represent the indexes that a rewrite remapped.
        if "RewrittenIndex" in str(error):
            return REWRITE
        raise
    except (OSError, ValueError, RuntimeError) as error:
        translated = translate_lance_error(error, f"reading the commits of {base.location}")
        if isinstance(translated, ObjectNotFoundError):
            return None
        raise translated from error
    return None if transaction is None else type(transaction.operation).__name__
