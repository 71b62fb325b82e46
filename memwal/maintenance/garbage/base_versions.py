"""Old versions of the base table, which are Lance's to clean up.

Lance keeps the newest version, tagged ones, and those that branches start from; it takes the data,
index and transaction files that only the others name. Nothing of that is done a second way here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import open_base, translate_lance_error


def clean_base_versions(
    location: TableLocation, *, older_than: timedelta, dry_run: bool
) -> Decision | None:
    """Have Lance clean old versions up, or tell what it would; None when there are none."""
    dataset = open_base(location).dataset
    if not dry_run:
        # Lance keeps the version that is open, and somebody may have committed it just now.
        location.store.barrier()
    options: dict[str, Any] = {"older_than": older_than, "error_if_tagged_old_versions": False}
    try:
        stats = (
            dataset.explain_cleanup_old_versions(**options).stats
            if dry_run
            else dataset.cleanup_old_versions(**options)
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise translate_lance_error(error, f"cleaning old versions of {location} up") from error
    versions, freed = int(stats.old_versions), int(stats.bytes_removed)
    if not versions and not freed:
        return None
    return Decision(
        kind=Kind.BASE_VERSIONS,
        what="old versions",
        objects=versions,
        bytes=freed,
        goes=True,
        reason=Reason.UNNEEDED,
        words="older than the retention, neither tagged nor where a branch starts",
    )
