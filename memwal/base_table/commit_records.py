"""Records of commits to the base table: the operation that made a version, and its details."""

from __future__ import annotations

from typing import Final

from memwal.base_table.snapshot import BaseTable, read_table_manifest
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import NewerFormatError, ObjectNotFoundError, TableSetupError
from memwal.format.lance_manifest import (
    Transaction,
    decode_transaction,
    find_mem_wal_index,
    named_files,
    transaction_in,
)
from memwal.format.memwal_index import IndexDetails
from memwal.storage.object_store import ObjectStore

APPEND = "Append"
"""Operation that adds fragments: a merge into a table without a primary key, or a direct write."""
REWRITE = "Rewrite"
"""Operation of a compaction: other fragments with the same rows."""
DETAILS_CHANGE = "CreateIndex"
"""Operation of a change of the MemWAL index details, and of an index build: the same rows."""
RESTORE = "Restore"
"""Operation that brings the rows and the merge progress of an older version back."""

_MAX_TRACED: Final = 32


def commit_operation(base: BaseTable, version: int) -> str | None:
    """Return the name of the Lance operation that made a version.

    None if its record is gone, or pylance does not know the operation: that commit may have changed
    anything.
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
        if isinstance(translated, (ObjectNotFoundError, NewerFormatError)):
            return None
        raise translated from error
    return None if transaction is None else type(transaction.operation).__name__


def read_transaction(store: ObjectStore, manifest: bytes) -> Transaction | None:
    """Return the transaction that made the version of a manifest file; None if its record is gone.

    Older clients of Lance store it in a file of its own alone, which takes a request.
    """
    found = transaction_in(manifest)
    if isinstance(found, str):
        try:
            found = store.get(found)
        except ObjectNotFoundError:
            return None
    return None if found is None else decode_transaction(found)


def read_details(base: BaseTable, version: int) -> IndexDetails:
    """Return the MemWAL index details of a stored version; empty ones if it has none."""
    entry = find_mem_wal_index(read_table_manifest(base.location, version))
    return IndexDetails.decode(entry.details) if entry is not None else IndexDetails()


def was_taken_away(base: BaseTable) -> bool:
    """Return whether MemWAL was taken away and enabled anew, with other rows than before.

    Rows that were flushed before are then older than rows that were written to the base table
    directly. Only checked for a table without merge progress, since region marks tell of others:
    this reads the manifests of up to ``_MAX_TRACED`` versions, as far as they are stored.
    """
    if base.index is None or base.details.merged:
        return False
    enabled, is_gap = base.version, False
    for version in range(base.version - 1, max(base.version - _MAX_TRACED, 0), -1):
        try:
            manifest = read_table_manifest(base.location, version)
        except TableSetupError:
            return False
        if find_mem_wal_index(manifest) is None:
            is_gap = True
            continue
        if is_gap and _row_files(manifest) != _row_files(
            read_table_manifest(base.location, enabled)
        ):
            return True
        enabled, is_gap = version, False
    return False


def _row_files(manifest: bytes) -> set[str]:
    """Return the data files and the deletion files of a version."""
    folders = ("data/", "_deletions/")
    return {file.key for file in named_files(manifest) if file.key.startswith(folders)}
