"""Records of commits to the base table: which operation made a version, and for which merge.

A merge that is divided into tasks commits its rows in a Lance ``Update``, and its progress in the
details of a later version. The message of the ``Update`` names the run and what it merged, so that
whoever looks back at the versions knows that it wrote rows of generations and no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from memwal.base_table.snapshot import BaseTable, read_table_manifest
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import NewerFormatError, ObjectNotFoundError, TableSetupError
from memwal.format.lance_manifest import find_mem_wal_index, named_files
from memwal.format.memwal_index import IndexDetails

REWRITE = "Rewrite"
"""Operation of a compaction: other fragments with the same rows."""
DETAILS_CHANGE = "CreateIndex"
"""Operation of a change of the MemWAL index details, and of an index build: the same rows."""
RESTORE = "Restore"
"""Operation that brings the rows and the merge progress of an older version back."""

_MESSAGE_PROPERTY = "__lance_commit_message"
_PREFIX = "memwal merge "
_MAX_TRACED: Final = 32

MARKED = "Update"
"""Operation of a merge by Lance, which marks generations as merged."""


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Rows of a divided merge that a commit added."""

    run_id: UUID
    merged: Mapping[UUID, int]  # the newest generation of each region


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """Operation that made a version, and the rows of a merge that it added."""

    kind: str  # name of the Lance operation
    rows: AddedRows | None = None  # of a divided merge


def commit_record(base: BaseTable, version: int) -> CommitRecord | None:
    """Return the record of the commit that made a version.

    None if it is gone, or has an operation that pylance does not know: that commit may have changed
    anything.
    """
    try:
        transaction = base.dataset.read_transaction(version)
    except TypeError as error:
        # pylance cannot represent the indexes that a rewrite remapped.
        if "RewrittenIndex" in str(error):
            return CommitRecord(REWRITE)
        raise
    except (OSError, ValueError, RuntimeError) as error:
        translated = translate_lance_error(error, f"reading the commits of {base.location}")
        if isinstance(translated, (ObjectNotFoundError, NewerFormatError)):
            return None
        raise translated from error
    if transaction is None:
        return None
    message = (transaction.transaction_properties or {}).get(_MESSAGE_PROPERTY)
    return CommitRecord(type(transaction.operation).__name__, _parse(message))


def read_details(base: BaseTable, version: int) -> IndexDetails:
    """Return the MemWAL index details of a stored version; empty ones if it has none."""
    entry = find_mem_wal_index(read_table_manifest(base.location, version))
    return IndexDetails.decode(entry.details) if entry is not None else IndexDetails()


def was_taken_away(base: BaseTable) -> bool:
    """Return whether MemWAL was taken away and enabled anew, with other rows than before.

    Rows that were flushed before are then older than what was written to the base table directly.
    Only asked of a table without merge progress, since region marks tell of others: this reads the
    manifests of up to ``_MAX_TRACED`` versions, as far as they are stored.
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


def merge_message(rows: AddedRows) -> str:
    """Return the message of the commit that adds these rows."""
    merged = {str(region_id): rows.merged[region_id] for region_id in sorted(rows.merged)}
    values = {"run": str(rows.run_id), "merged": merged}
    return _PREFIX + json.dumps(values, separators=(",", ":"))


def _parse(message: str | None) -> AddedRows | None:
    if message is None or not message.startswith(_PREFIX):
        return None
    try:
        values = json.loads(message.removeprefix(_PREFIX))
        merged = {UUID(region_id): int(number) for region_id, number in values["merged"].items()}
        return AddedRows(UUID(values["run"]), merged)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
