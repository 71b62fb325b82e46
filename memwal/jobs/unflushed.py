"""Rows that are acknowledged and wait in the log of a region for a writer that flushes them.

A living writer of memwal flushes a MemTable when it is ``max_memtable_age`` old, and each flush
commits the manifest of the region. If the oldest unflushed rows, and the newest version of the
manifest, are more than twice that age old, the region has no living writer: it ended by an
exception, was killed, or its machine lost power. Nobody sees the rows then but a recovery, or the
next writer that claims the region.

Whether a writer lives cannot be observed, and one that was paused for long counts as dead. A
recovery that fences it harms nothing, see :mod:`memwal.lsm.wal.recovery`. Writers of other clients
are different: they flush by size alone, and stop when they are fenced. While the newest claim of a
region is another client's, its rows are left for as long as its generations are by default
(:mod:`memwal.jobs.foreign_claims`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ObjectNotFoundError
from memwal.format.paths import manifest_key, wal_key
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.format.wal_entry import TornEntryError
from memwal.jobs.foreign_claims import find_foreign_claim
from memwal.jobs.options import GcOptions
from memwal.lsm.wal.log import find_tip, read_head
from memwal.reader.cache.lru import LruCache
from memwal.storage.object_store import ObjectStore
from memwal.writer.region_writer.options import WriterOptions, WriterSettings

_MAX_CACHED: Final = 100_000
_FOREIGN_SECONDS: Final = GcOptions().foreign_claim.total_seconds()

# Whether an entry is a sentinel, by store, key and time: a new table may have the same keys.
_sentinels: LruCache[bool] = LruCache(_MAX_CACHED)


@dataclass(frozen=True, slots=True)
class UnflushedLog:
    """Unflushed rows of a region."""

    written: datetime  # when the oldest of them were stored, by the store's clock
    changed: datetime  # when the newest version of the manifest was
    is_foreign: bool  # whether the newest claim of the region is another client's

    def age(self, now: float) -> float:
        """Return the seconds since the rows were stored, at ``now`` in seconds since the epoch."""
        return max(0.0, now - self.written.timestamp())

    def has_no_writer(self, base: BaseTable, *, now: float) -> bool:
        """Return whether the writer counts as dead, at ``now`` in seconds since the epoch."""
        return self.is_older_than(_FOREIGN_SECONDS if self.is_foreign else _silence(base), now=now)

    def is_older_than(self, seconds: float, *, now: float) -> bool:
        """Return whether rows and manifest are at least so old."""
        return now - max(self.written, self.changed).timestamp() >= seconds


def find_unflushed(
    store: ObjectStore, manifest: RegionManifest, *, tip: int | None = None
) -> UnflushedLog | None:
    """Return since when rows wait in the log of a region; None if none do.

    A sealed region has none. Costs one small request for each entry up to the first with rows, a
    second one for each that this process has not seen before, and if there are rows two more, for
    the manifest and the newest claim. Without the ``tip`` of the log, its first free position, one
    more finds it if the hint in the manifest is exact.
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
            if info is None:
                # It was replaced a moment ago.
                return None
            is_foreign = find_foreign_claim(store, manifest, tip=tip) is not None
            return UnflushedLog(written, info.modified, is_foreign)
    return None


def _silence(base: BaseTable) -> float:
    """Return the seconds in which a living writer of a table would have flushed twice."""
    settings = WriterSettings.of(WriterOptions(), base.details.writer_config_defaults)
    return 2 * settings.max_memtable_age


def _written(store: ObjectStore, region_id: UUID, position: int) -> datetime | None:
    """Return when an entry was stored; None if it has no rows.

    It has none either if it was flushed and collected since the manifest was read, or if it was
    lost before it was durable.
    """
    key = wal_key(region_id, position)
    info = store.head(key)
    if info is None:
        return None
    try:
        is_sentinel = _sentinels.get(
            (store.uri, key, info.modified),
            lambda: read_head(store, region_id, position).is_sentinel,
        )
    except (ObjectNotFoundError, TornEntryError):
        return None
    return None if is_sentinel else info.modified
