"""Rows that are acknowledged and wait in the log of a region for a writer that flushes them.

A living writer flushes a MemTable when it is ``max_memtable_age`` old, and each flush commits the
manifest of the region. If the oldest unflushed rows, and the newest version of the manifest, are
more than twice that age old, the region has no living writer: it ended by an exception, was killed,
or its machine lost power. Nobody sees the rows then but a recovery, or the next writer that claims
the region.

Whether a writer lives cannot be observed, and one that was paused for long counts as dead. A
recovery that fences it harms nothing, see :mod:`memwal.lsm.wal.recovery`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ObjectNotFoundError
from memwal.format.paths import manifest_key, wal_key
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.format.wal_entry import TornEntryError
from memwal.lsm.wal.log import find_tip, read_head
from memwal.reader.cache.lru import LruCache
from memwal.storage.object_store import ObjectStore
from memwal.writer.region_writer.options import WriterOptions, WriterSettings

_MAX_CACHED = 100_000

# When an entry was stored; None if it has no rows. Entries never change.
_entries: LruCache[datetime | None] = LruCache(_MAX_CACHED)


@dataclass(frozen=True, slots=True)
class UnflushedLog:
    """Unflushed rows of a region."""

    written: datetime  # when the oldest of them were stored, by the store's clock
    changed: datetime  # when the newest version of the manifest was

    def age(self, now: float) -> float:
        """Return the seconds since the rows were stored, at ``now`` in seconds since the epoch."""
        return max(0.0, now - self.written.timestamp())

    def has_no_writer(self, *, min_age: float, now: float) -> bool:
        """Return whether a writer that flushes within half of ``min_age`` cannot be alive.

        ``min_age`` is in seconds, ``now`` in seconds since the epoch.
        """
        return now - max(self.written, self.changed).timestamp() >= min_age


def find_unflushed(
    store: ObjectStore, manifest: RegionManifest, *, tip: int | None = None
) -> UnflushedLog | None:
    """Return since when rows wait in the log of a region; None if none do.

    A sealed region has none. Costs two small requests for each entry that this process has not seen
    before, up to the first with rows, and one for the manifest. Without the ``tip`` of the log, its
    first free position, one more finds it if the hint in the manifest is exact.
    """
    if manifest.status != RegionStatus.ACTIVE:
        return None
    region_id = manifest.region_id
    if tip is None:
        start = max(manifest.replay_after, manifest.wal_last_seen) + 1
        tip = find_tip(store, region_id, start=start)
    for position in range(manifest.replay_after + 1, tip):
        written = _written(store, region_id, position)
        if written is not None:
            info = store.head(manifest_key(region_id, manifest.version))
            # A version that is gone was replaced a moment ago.
            return None if info is None else UnflushedLog(written, info.modified)
    return None


def recovery_age(base: BaseTable) -> float:
    """Return the seconds after which unflushed rows of a table count as without a writer."""
    settings = WriterSettings.of(WriterOptions(), base.details.writer_config_defaults)
    return 2 * settings.max_memtable_age if settings.max_memtable_age else math.inf


def _written(store: ObjectStore, region_id: UUID, position: int) -> datetime | None:
    key = wal_key(region_id, position)

    def read() -> datetime | None:
        if read_head(store, region_id, position).is_sentinel:
            return None
        info = store.head(key)
        return None if info is None else info.modified

    try:
        return _entries.get((store.uri, key), read)
    except (ObjectNotFoundError, TornEntryError):
        # It was flushed and collected since the manifest was read, or lost before it was durable.
        return None
