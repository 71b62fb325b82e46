"""Rows that are acknowledged and wait in the log of a region for a writer that flushes them.

A living writer of memwal flushes a MemTable when it is ``max_memtable_age`` old, and each flush
commits the manifest of the region. If the oldest unflushed rows, and the newest version of the
manifest, are more than twice that age old, the region has no living writer: it ended by an
exception, was killed, or its machine lost power. Only a recovery sees the rows then, or the next
writer that claims the region.

Whether a writer lives cannot be observed, and one that was paused for long counts as dead. A
recovery that fences it harms nothing, see :mod:`memwal.lsm.wal.log`. Writers of other clients
are different: they flush by size alone, and stop when they are fenced. While the newest claim of a
region is another client's, its rows are left for as long as its generations are by default
(:mod:`memwal.jobs.foreign_claims`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
from memwal.lsm.wal.log import find_tip, lost_log_error, read_head, survey_log
from memwal.reader.sources.cache import LruCache
from memwal.region.manifest_store import read_manifests
from memwal.storage.object_store import ObjectStore
from memwal.writer.region_writer.options import WriterOptions, WriterSettings

_MAX_CACHED: Final = 100_000
_FOREIGN_SECONDS: Final = GcOptions().foreign_claim.total_seconds()

# Whether an entry is a sentinel, by store, key and time: a new table may have the same keys.
_sentinels: LruCache[bool] = LruCache(_MAX_CACHED)

LOG_CHECK_SECONDS: Final = 600.0
# Monotonic time of the latest listing of a log that lacked nothing, by store and region.
_checked_logs: LruCache[float] = LruCache(_MAX_CACHED)


def find_unflushed(
    store: ObjectStore, manifest: RegionManifest, *, tip: int | None = None
) -> datetime | None:
    """Return when the oldest unflushed rows of a region were stored; None if all are flushed.

    A sealed region has none. Costs one small request for each entry up to the first with rows, and
    a second one for each that this process has not seen before. Without the ``tip`` of the log, its
    first free position, one more finds it if the hint in the manifest is exact.
    """
    if manifest.status != RegionStatus.ACTIVE:
        return None
    if tip is None:
        start = manifest.last_logged + 1
        tip = find_tip(store, manifest.region_id, start=start)
    for position in range(manifest.replay_after + 1, tip):
        written = _written(store, manifest.region_id, position)
        if written is not None:
            return written
    return None


def find_missing_entry(
    store: ObjectStore,
    manifest: RegionManifest,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> int | None:
    """Return the first position of a region's log that lost its entry; None if none did.

    Only positions that no flush covers count, and the newest one, which a collector keeps. A sealed
    region has none. Lists the log; while
    nothing is missing, a process does so at most every ten minutes.
    """
    if manifest.status != RegionStatus.ACTIVE:
        return None
    key, now = (store.uri, manifest.region_id), clock()
    checked_at = _checked_logs.use(key)
    if checked_at is not None and now - checked_at < LOG_CHECK_SECONDS:
        return None
    survey = survey_log(
        store, manifest.region_id, after=manifest.replay_after, hint=manifest.wal_last_seen
    )
    missing = survey.missing
    logged = manifest.last_logged
    if lost_log_error(store, manifest.region_id, logged, newest=survey.newest) is not None:
        # All entries: the newest one is never collected.
        return logged if missing is None else missing
    if missing is not None:
        # A flush since the manifest was read lets the collector delete the entries that it covers.
        # A region that was deleted since then lacks no rows.
        newest = read_manifests(store, [manifest.region_id]).get(manifest.region_id)
        if newest is not None and newest.replay_after < missing:
            return missing
    _checked_logs.put(key, now)
    return None


def has_no_writer(base: BaseTable, manifest: RegionManifest, unchanged_seconds: float) -> bool:
    """Return whether the writer of a region with unflushed rows counts as dead.

    ``unchanged_seconds`` are of :func:`seconds_unchanged`. Costs nothing while they are few, and
    otherwise some small requests, for the newest claim.
    """
    settings = WriterSettings.of(WriterOptions(), base.details.writer_config_defaults)
    if unchanged_seconds < 2 * settings.max_memtable_age:
        return False
    claim = find_foreign_claim(base.location.store, manifest)
    return claim is None or unchanged_seconds >= _FOREIGN_SECONDS


def seconds_unchanged(
    store: ObjectStore, manifest: RegionManifest, written: datetime, *, now: float
) -> float:
    """Return the age of unflushed rows or of the newest manifest, the lesser one; one request.

    ``written`` is of :func:`find_unflushed`, ``now`` in seconds since the epoch.
    """
    info = store.head(manifest_key(manifest.region_id, manifest.version))
    # A version that is gone was replaced a moment ago.
    return -1.0 if info is None else now - max(written, info.modified).timestamp()


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
