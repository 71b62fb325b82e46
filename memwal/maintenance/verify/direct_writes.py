"""Whether anything but merges wrote to the base table since a generation was merged."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from memwal.errors import MemWalError
from memwal.format.index_details import IndexDetails
from memwal.format.table_manifest import find_mem_wal_index
from memwal.table_index.base_table import BaseTable, read_table_manifest
from memwal.table_index.commit_kinds import REWRITE, commit_kind

# Commits that change no row.
_HARMLESS: Final = frozenset({"CreateIndex", REWRITE, "UpdateConfig"})
_MAX_VERSIONS: Final = 1_000


def only_merges_since(base: BaseTable, region_id: UUID, generation: int) -> bool:
    """Whether every commit since a generation was merged is a merge, or changes no row.

    A delete pass of a merge cannot be told from a direct delete and counts as one. False also
    when the history does not reach back so far: then it is not known.
    """
    after = base.details
    for version in range(base.version, max(0, base.version - _MAX_VERSIONS), -1):
        try:
            before = _details(base, version - 1)
            if before.merged.get(region_id, 0) < generation <= after.merged.get(region_id, 0):
                return True
            if before.merged == after.merged and commit_kind(base, version) not in _HARMLESS:
                return False
        except (MemWalError, OSError, ValueError, RuntimeError):
            # Cleaned up, or an operation that pylance cannot show.
            return False
        after = before
    return False


def _details(base: BaseTable, version: int) -> IndexDetails:
    entry = find_mem_wal_index(read_table_manifest(base.location, version))
    return IndexDetails.decode(entry.details) if entry is not None else IndexDetails()
