"""What to say of a log that cannot be gone on with."""

from __future__ import annotations

from uuid import UUID

from memwal.errors import CorruptDataError, RegionFencedError
from memwal.format.names import wal_key


def log_gap(region_id: UUID, missing: int, *, newest: int) -> CorruptDataError:
    """What to say when a position is empty though later ones were taken."""
    return CorruptDataError(
        f"the log of region {region_id} has a gap: entry {missing} is missing "
        f"({wal_key(region_id, missing)}), and the log goes on to entry {newest}. Rows that were "
        "acknowledged are lost with it. No rows were changed: restore the object, or give up every "
        "unflushed row of the region by opening its writer with replay=False"
    )


def damaged_entry(region_id: UUID, position: int, *, behind: int) -> CorruptDataError:
    """What to say when an entry cannot be read though rows follow it."""
    return CorruptDataError(
        f"entry {position} of the log of region {region_id} is damaged "
        f"({wal_key(region_id, position)}), and entries follow it from {behind} on. No rows were "
        "changed: restore the object from a backup, or give up every unflushed row of the region "
        "by opening its writer with replay=False"
    )


def fenced_by(region_id: UUID, epoch: int, other: int) -> RegionFencedError:
    """What to say to a writer whose region has a higher epoch."""
    return RegionFencedError(
        f"region {region_id} was claimed by another writer (epoch {other}, ours is {epoch}); "
        "open a new writer to claim it back"
    )
