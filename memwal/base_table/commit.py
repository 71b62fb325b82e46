"""Commits to the base table: strict compare-and-swap, or rebased onto accepted versions.

A commit that loses against another one raises LostRaceError, which
:func:`~memwal.util.retry.retry_lost_races` answers with another attempt on the newest version.

Lance rebases an ordinary commit onto every version that landed in between, unless it finds a
conflict. Details of the MemWAL index that were read before would then silently take back merge
progress, and a merge would pass over progress that it did not know. A namespace client with managed
versioning decides the version itself; :mod:`memwal.base_table.namespaces` has two kinds. A pinned
one reports the version that was read as the latest, and creates the next version only by
put-if-absent: any concurrent commit takes that name first, and our commit is refused. The other
kind lets Lance rebase, but only onto versions that the caller accepts.

A version appears only after the files that it adds were checked: Lance drops some errors of its
writes, and a commit that loses one raises LostWriteError. On a local disk they are synced as well,
which Lance itself does not do: a machine that crashes could be left with a torn version that keeps
the table from opening. Other stores are durable by themselves.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import lance
import pyarrow as pa
from lance.dataset import Index, LanceOperation

from memwal.base_table.namespaces import DurableNamespace, NewTableNamespace, PinnedNamespace
from memwal.base_table.snapshot import BaseTable, is_version_stored, open_base
from memwal.boundary.lance_errors import first_line, translate_lance_error
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    MemWalError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    ResourceLimitError,
    StoreAccessError,
    StoreFullError,
    TableSetupError,
)
from memwal.format.memwal_index import DETAILS_TYPE_URL, IndexDetails, StoredRegionSpec
from memwal.format.paths import MEM_WAL_INDEX_NAME
from memwal.region.spec import RegionSpec
from memwal.storage.local_files import write_behind
from memwal.storage.location import TableLocation
from memwal.util.log import redact_store_response
from memwal.util.retry import LostRaceError, retry_lost_races

# The last one: a commit without rows touches no rows of another commit, and is refused for its
# merge progress instead.
_CONFLICT_WORDS = ("conflict", "concurrent", "contention", "stale sstable compaction")
# A path in an error. In Lance's own source files, and in the answer of a store, the words count.
_PATH = re.compile(r"(?<!\S)(?!\S*(\.rs:|<))\S*/\S*")
# Syncing less takes no time worth another thread.
_WRITE_BEHIND_BYTES = 64 << 20


def is_conflict(error: Exception, location: TableLocation) -> bool:
    """Return whether a commit failed because of another one, and may be retried on top of it.

    Lance raises ``OSError`` and ``ValueError``, with the cause in the text only. Names of files in
    it, and the address of the table, which may have spaces, do not count.
    """
    folder = location.uri.rpartition("://")[2].partition("/")[2]
    text = _PATH.sub("", str(error).lower().replace(f"{folder.lower()}/", "/"))
    return any(word in text for word in _CONFLICT_WORDS)


Result = TypeVar("Result")


def commit_durably(
    base: BaseTable,
    commit: Callable[[lance.LanceDataset], Result],
    *,
    doing: str | None = None,
    accept: Callable[[int], bool] | None = None,
    once: bool = True,
) -> tuple[Result | None, int | None]:
    """Run a commit that Lance may rebase; its version appears when its files are whole and durable.

    ``commit`` commits through the data set that it gets, once, without retries. ``doing`` begins
    the messages. ``accept`` tells whether the commit may follow a version that is newer than
    ``base``; by default it may follow any.

    Returns the result of ``commit``, and the version that it created last, or None. If ``commit``
    makes one version only (``once``), an error after that version was stored is ignored, and the
    result is None.

    Raises
    ------
    LostRaceError
        The commit conflicts with another one, or was not accepted, or the version of ``base`` was
        cleaned up. Nothing was changed.
    LostWriteError
        A file that the version would have named was not written whole. Nothing was changed.
    OutcomeUnknownError, StoreError
        The store failed, or did not say whether the new version exists.
    """
    base.check_changeable()
    doing = doing or f"committing to {base.location}"
    try:
        namespace = DurableNamespace(base.location, base.version, accept=accept)
        dataset = lance.LanceDataset(
            base.location.uri,
            version=base.version,
            storage_options=base.location.lance_options(),
            namespace_client=namespace,
            table_id=["table"],
            namespace_client_managed_versioning=True,
        )
        result = _run_through(namespace, lambda: commit(dataset), once=once)
        return result, namespace.created
    except (MemWalError, OSError, RuntimeError, ValueError) as error:
        translated = error
        if not isinstance(error, MemWalError):
            redact_store_response(error)
            if is_conflict(error, base.location):
                raise LostRaceError(f"{doing} met another commit: {first_line(error)}") from error
            translated = translate_lance_error(error, doing)
        signs = (TableSetupError, ObjectNotFoundError, CorruptDataError)
        if isinstance(translated, signs) and not is_version_stored(base.location, base.version):
            # This process was paused, and the table has gone on: its version was cleaned up.
            raise LostRaceError(
                f"{doing}: version {base.version} was cleaned up meanwhile; read the table again"
            ) from error
        if translated is error:
            raise
        raise translated from error


def create_durably(location: TableLocation, rows: pa.Table, **options: object) -> None:
    """Write a new Lance table; ``options`` are those of ``lance.write_dataset``.

    On a local disk its first version appears when all its files are synced, so that a machine that
    crashes during the creation leaves a whole table or none.

    Raises
    ------
    TableSetupError
        There is a table already, possibly created by another process during the call.
    OutcomeUnknownError, StoreError
        The store failed, or did not say whether the table exists.
    """
    location.store.expect_new_table()
    try:
        if location.store.lance_commits:
            options |= {"storage_options": location.lance_options()}
            lance.write_dataset(rows, location.uri, mode="create", **options)
            return
        namespace = NewTableNamespace(location)
        options |= {"namespace_client": namespace, "table_id": ["table"]}
        _run_through(namespace, lambda: lance.write_dataset(rows, mode="create", **options))
    except (ConflictError, OSError, RuntimeError, ValueError) as error:
        exists = isinstance(error, ConflictError) or "already exists" in str(error).lower()
        if exists or is_conflict(error, location):
            raise TableSetupError(
                f"there is a table at {location} already; "
                "open it, or enable MemWAL on it with memwal.enable(uri, region_spec=...) or the "
                "command memwal enable"
            ) from error
        if isinstance(error, MemWalError):
            raise
        raise translate_lance_error(error, f"creating {location}") from error


def _run_through(
    namespace: DurableNamespace, commit: Callable[[], Result], *, once: bool = True
) -> Result | None:
    try:
        return commit()
    except (OSError, ValueError, RuntimeError) as error:
        redact_store_response(error)
        if once and namespace.created:
            return None
        if namespace.failure is not None:
            raise namespace.failure from error
        raise


def commit_details(
    base: BaseTable, details: IndexDetails, *, index_id: uuid.UUID | None = None
) -> int:
    """Replace the MemWAL index details, provided that ``base`` is still the latest version.

    Returns the new version. ``index_id`` is the UUID of the index from this version up to the next
    commit; random by default.

    Raises
    ------
    LostRaceError
        Another commit landed since ``base`` was read. Nothing was changed.
    OutcomeUnknownError
        The store did not say whether the new version exists.
    """
    base.require_mem_wal()
    if base.index is None:
        raise TableSetupError(f"MemWAL is not enabled on {base.location}")
    new = _index(base.version, str(index_id or uuid.uuid4()), details.encode())
    old = _index(base.version, str(base.index.uuid), None)
    return commit_strictly(
        base, LanceOperation.CreateIndex(new_indices=[new], removed_indices=[old])
    )


def commit_strictly(
    base: BaseTable,
    operation: LanceOperation.BaseOperation,
    *,
    details: IndexDetails | None = None,
) -> int:
    """Commit an operation, provided that ``base`` is still the latest version.

    Returns the new version. With ``details``, the same commit replaces the MemWAL index details,
    which have to be made from those of ``base``.

    Raises
    ------
    LostRaceError
        Another commit landed since ``base`` was read, or its version was cleaned up. Nothing was
        changed.
    LostWriteError
        A file that the version would have named was not written whole. Nothing was changed.
    OutcomeUnknownError
        The store did not say whether the new version exists.
    """
    base.check_changeable()
    try:
        namespace = PinnedNamespace(base.location, base.version, details=details)
    except TableSetupError as error:
        if is_version_stored(base.location, base.version):
            raise
        # This process was paused, and the table has gone on.
        raise LostRaceError(
            f"version {base.version} of {base.location} was cleaned up; read the table again"
        ) from error
    cause: Exception | None = None
    try:
        lance.LanceDataset.commit(
            base.location.uri,
            operation,
            read_version=base.version,
            storage_options=base.location.lance_options(),
            namespace_client=namespace,
            table_id=["table"],
            namespace_client_managed_versioning=True,
            max_retries=0,
        )
    except (OSError, ValueError, RuntimeError) as error:
        # Lance reports a refusal in several ways, one of them "result unknown"; the outcome that
        # the namespace recorded is the true one.
        redact_store_response(error)
        cause = error
    if namespace.created:
        return base.version + 1
    if namespace.failure is not None:
        raise namespace.failure from cause
    if cause is None:
        raise OutcomeUnknownError(
            f"the commit to {base.location} returned without creating version {base.version + 1}; "
            "read the table's latest version before trying again"
        )
    # The namespace was not asked: it records a lost race as its failure. Lance writes its record of
    # the commit first, and a store that refuses that is no race, which another attempt could win.
    refusal = translate_lance_error(cause, f"committing to {base.location}")
    if isinstance(
        refusal, (StoreAccessError, StoreFullError, ResourceLimitError)
    ) and not is_conflict(cause, base.location):
        raise refusal from cause
    raise LostRaceError(
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


def update_details(
    location: TableLocation,
    change: Callable[[BaseTable], IndexDetails],
    *,
    index_id: uuid.UUID | None = None,
    attempts: int = 50,
) -> BaseTable:
    """Change the details, and repeat on each newer version until the commit succeeds.

    ``change`` takes the latest version of the table and returns the complete new details. It is
    called once per attempt, and must therefore have no side effects. Returns the table at the new
    version, or unchanged if the details do not change. ``index_id`` as in :func:`commit_details`.

    Each lost race means that another commit succeeded, so some process always makes progress; a
    long series of lost races means that something else is wrong.

    Raises
    ------
    ConflictError
        Another commit won the race in every attempt.
    """

    def attempt() -> BaseTable:
        base = open_base(location)
        base.require_mem_wal()
        details = change(base)
        if details == base.details:
            return base
        version = commit_details(base, details, index_id=index_id)
        return open_base(location, version=version)

    return retry_lost_races(
        attempt,
        attempts=attempts,
        seconds=0,
        exhausted=ConflictError(
            f"the details of {location} changed under each of {attempts} attempts; try again later"
        ),
    )


def newest_spec(base: BaseTable) -> StoredRegionSpec | None:
    """Return a table's newest region spec, by which new rows are routed; None without one."""
    return max(base.details.region_specs, key=lambda spec: spec.spec_id, default=None)


def current_spec(base: BaseTable) -> tuple[int, RegionSpec]:
    """Return the id and content of a table's newest region spec; TableSetupError without one."""
    stored = newest_spec(base)
    if stored is None:
        raise TableSetupError(
            f"{base.location} has no region spec; its regions are written one by one"
        )
    names = {field_id: name for name, field_id in base.field_ids().items()}
    return stored.spec_id, RegionSpec.from_stored(stored, names)


def is_same_spec(stored: StoredRegionSpec, spec: RegionSpec, base: BaseTable) -> bool:
    """Return whether a stored spec divides the rows of a table as ``spec`` does."""
    bound = spec.bind(base.field_ids(), base.schema, spec_id=stored.spec_id)
    pending = replace(spec, pending=True).bind(
        base.field_ids(), base.schema, spec_id=stored.spec_id
    )
    return stored in (bound, pending)


def write_rows_behind(location: TableLocation, size: int) -> AbstractContextManager[None]:
    """Start writing new data files of a local table to disk while the block creates them.

    Nothing is done for fewer bytes than take any time.
    """
    folder = location.local_path
    if folder is None or size < _WRITE_BEHIND_BYTES:
        return nullcontext()
    return write_behind(folder / "data")
