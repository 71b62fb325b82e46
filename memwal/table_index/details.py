"""Changing the MemWAL index details on top of whatever they are now."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from memwal.errors import ConflictError
from memwal.format.index_details import IndexDetails
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, open_base
from memwal.table_index.strict_commit import commit_details


def update_details(
    location: TableLocation,
    change: Callable[[BaseTable], IndexDetails],
    *,
    index_id: UUID | None = None,
    attempts: int = 50,
) -> BaseTable:
    """Apply a change to the details, again on each newer version until it lands.

    Parameters
    ----------
    change : callable
        Gets the table as it is and returns the whole new details. Called once per attempt, and
        must therefore not have effects of its own.
    index_id : UUID, optional
        See :func:`memwal.table_index.strict_commit.commit_details`.
    attempts : int, default 50
        A conflict needs another commit to land first, so that somebody always gets on; 50 lost
        races in a row mean that something else is wrong.

    Returns
    -------
    BaseTable
        The table at the new version, or as it was when the change is no change.

    Raises
    ------
    ConflictError
        Every attempt lost.
    """
    for _ in range(attempts):
        base = open_base(location)
        base.require_mem_wal()
        details = change(base)
        if details == base.details:
            return base
        try:
            version = commit_details(base, details, index_id=index_id)
        except ConflictError:
            continue
        return open_base(location, version=version)
    raise ConflictError(
        f"the details of {location} changed under each of {attempts} attempts; try again later"
    )
