"""Unflushed rows of all regions, read from their logs: sources of a fresh read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ObjectNotFoundError, ReadTimeoutError
from memwal.format.region_manifest import RegionManifest
from memwal.lsm.memtable.indexes import UnflushedRows
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.follow import Followed, LogFollower, UnflushedLog
from memwal.lsm.wal.log import find_tip
from memwal.reader.cache.lru import LruCache
from memwal.util.concurrency import run_all

# Of all rows that fresh reads keep, and of those of one region.
_CACHE_BYTES: Final = 1 << 30
_MAX_REGION_BYTES: Final = 1 << 30
_FOLLOWER_BYTES: Final = 4 << 10
_POLL_SECONDS: Final = 0.02

_followers: LruCache[LogFollower] = LruCache(
    _CACHE_BYTES, lambda follower: _FOLLOWER_BYTES + follower.nbytes
)


class PositionNotReachedError(Exception):
    """A region's log does not have an entry yet that the read must see."""


def read_tails(
    base: BaseTable,
    manifests: Mapping[UUID, RegionManifest],
    at_least: Iterable[tuple[UUID, int]] = (),
) -> dict[UUID, Sequence[UnflushedRows]]:
    """Read the rows that the logs have and no generation of the manifests, by region.

    Raises PositionNotReachedError if they do not have all entries ``at_least``, by region.

    ``base`` was opened after the manifests were read. If it has a generation of a region that its
    manifest does not list, the manifest is too old to tell which rows are unflushed: then, and if
    entries were collected meanwhile, ObjectNotFoundError is raised, and the caller begins again.
    """
    logs = _unflushed_logs(base, manifests)
    found = run_all([partial(read_tail, base, log) for log in logs])
    tails = dict(zip(manifests, found, strict=True))
    for region_id, number in at_least:
        if region_id not in tails or tails[region_id].last_position < number:
            raise PositionNotReachedError(f"entry {number} of region {region_id}")
    return {region_id: followed.rows for region_id, followed in tails.items()}


def find_tails(base: BaseTable, manifests: Mapping[UUID, RegionManifest]) -> list[UnflushedLog]:
    """Find the logs with entries that no generation of the manifests has, up to their present tips.

    Raises ObjectNotFoundError as :func:`read_tails` does.
    """
    store = base.location.store

    def with_tip(log: UnflushedLog) -> UnflushedLog:
        start = max(log.after, log.hint) + 1
        return replace(log, last=find_tip(store, log.region_id, start=start) - 1)

    logs = run_all([partial(with_tip, log) for log in _unflushed_logs(base, manifests)])
    return [log for log in logs if log.last is not None and log.last > log.after]


def read_tail(base: BaseTable, log: UnflushedLog) -> Followed:
    """Read what a part of a log has; this process keeps it. See :meth:`LogFollower.follow`."""
    key = _key(base, log.region_id)
    follower = _followers.get(key, lambda: LogFollower(base.location.store, log.region_id))
    followed = follower.follow(log, RowSchema.of(base), max_bytes=_MAX_REGION_BYTES)
    # With its new weight.
    _followers.put(key, follower)
    return followed


def _unflushed_logs(
    base: BaseTable, manifests: Mapping[UUID, RegionManifest]
) -> list[UnflushedLog]:
    for region_id, manifest in manifests.items():
        if base.details.merged.get(region_id, 0) >= manifest.current_generation:
            raise ObjectNotFoundError(f"region {region_id} was flushed and merged meanwhile")
    return [UnflushedLog.behind(manifest) for manifest in manifests.values()]


def _key(base: BaseTable, region_id: UUID) -> tuple[object, ...]:
    location = base.location
    return location.uri, tuple(sorted(location.storage_options.items())), region_id


Sources = TypeVar("Sources")


def wait_for_position(read: Callable[[], Sources], seconds: float) -> Sources:
    """Plan a read until the logs have the position that it has to see.

    Raises ReadTimeoutError if they do not have it after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return read()
        except PositionNotReachedError as error:
            if time.monotonic() >= deadline:
                raise ReadTimeoutError(
                    f"the logs do not have {error} after {seconds:g} s: it was written into "
                    "another table, or is lost; or give a longer timeout"
                ) from error
        time.sleep(_POLL_SECONDS)
