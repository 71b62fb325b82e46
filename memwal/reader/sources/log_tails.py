"""Unflushed rows of all regions, read from their logs: sources of a fresh read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ObjectNotFoundError, ReadTimeoutError
from memwal.format.paths import wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.follow import Followed, LogFollower, UnflushedLog
from memwal.lsm.wal.log import gap_error, survey_log
from memwal.reader.sources.cache import LruCache
from memwal.region.manifest_store import RECENT_SECONDS, RegionManifestStore, replacements
from memwal.storage.object_store import ObjectStore
from memwal.util.clock import boot_seconds
from memwal.util.concurrency import run_all

# Of all rows that fresh reads keep, and of those of one region.
_CACHE_BYTES: Final = 1 << 30
_MAX_REGION_BYTES: Final = 1 << 30
_FOLLOWER_BYTES: Final = 4 << 10
_POLL_SECONDS: Final = 0.02
# Well below the time for which nothing is trimmed that was the newest.
_PAUSED_SECONDS: Final = RECENT_SECONDS / 2

_followers: LruCache[LogFollower] = LruCache(
    _CACHE_BYTES, lambda follower: _FOLLOWER_BYTES + follower.nbytes
)


class PositionNotReachedError(Exception):
    """A region's log does not have an entry yet that the read must see."""


class OldManifestError(Exception):
    """A manifest that was not checked again is not the newest one."""


def read_tails(
    base: BaseTable,
    manifests: Mapping[UUID, RegionManifest],
    at_least: Iterable[tuple[UUID, int]] = (),
    *,
    began: float,
    unchecked: bool,
    own: Collection[RegionManifest] = (),
) -> dict[UUID, Followed]:
    """Read the rows that the logs have and no generation of the manifests, by region.

    ``base`` was opened after the manifests were read. If it has a generation of a region that its
    manifest does not list, the manifest is too old to tell which rows are unflushed: then, and if
    entries were collected during the read, ObjectNotFoundError is raised, and the caller begins
    again.

    Afterwards each manifest is checked once more. If it is still the newest, then nothing was
    flushed since it was read, and the end of a log that was found is its end. If it is not, an
    entry that was not found may have been flushed and collected: the log is listed, which shows a
    gap then, since the newest entry of a log stays. With ``unchecked`` manifests, which this
    process read some seconds ago, OldManifestError is raised instead, also if one of the caller's
    ``own`` regions is not the newest. ``began`` is the time, by
    :func:`memwal.util.clock.boot_seconds`, before the manifests were read.

    Raises PositionNotReachedError if the logs do not have all entries ``at_least``, by region.
    """
    try:
        logs = unflushed_logs(base, manifests)
    except ObjectNotFoundError as error:
        if unchecked:
            raise OldManifestError from error
        raise
    found = run_all([partial(read_tail, base, log) for log in logs])
    store = base.location.store
    looked_at = [*manifests.values(), *(own if unchecked else ())]
    is_old = run_all(
        [
            partial(RegionManifestStore(store, manifest.region_id).has_successor, manifest.version)
            for manifest in looked_at
        ]
    )
    if boot_seconds() - began >= _PAUSED_SECONDS:
        # A process that was paused finds no successor of a manifest that was trimmed since.
        is_old = [True] * len(is_old)
    if unchecked and any(is_old):
        raise OldManifestError
    again = [at for at, old in enumerate(is_old) if old]
    listed = run_all([partial(read_tail, base, logs[at], listed=True) for at in again])
    for at, followed in zip(again, listed, strict=True):
        found[at] = followed
    tails = dict(zip(manifests, found, strict=True))
    for region_id, number in at_least:
        if region_id not in tails or tails[region_id].last_position < number:
            raise PositionNotReachedError(f"entry {number} of region {region_id}")
    return tails


def find_tails(base: BaseTable, manifests: Mapping[UUID, RegionManifest]) -> list[UnflushedLog]:
    """Find the logs with entries that no generation of the manifests has, up to their present tips.

    Raises ObjectNotFoundError as :func:`read_tails` does, and CorruptDataError if an entry is lost.
    """
    store = base.location.store

    def with_tip(log: UnflushedLog) -> UnflushedLog:
        survey = survey_log(store, log.region_id, after=log.after, hint=log.hint)
        if survey.missing is not None:
            latest = RegionManifestStore(store, log.region_id).read_latest()
            if not log.is_behind(latest):
                raise ObjectNotFoundError(f"the log of region {log.region_id} was collected")
            raise gap_error(log.region_id, survey.missing, newest=survey.tip - 1)
        return replace(log, last=survey.tip - 1)

    logs = run_all([partial(with_tip, log) for log in unflushed_logs(base, manifests)])
    return [log for log in logs if log.last is not None and log.last > log.after]


def read_tail(base: BaseTable, log: UnflushedLog, *, listed: bool = False) -> Followed:
    """Read the rows of a part of a log; this process keeps them. See :meth:`LogFollower.follow`."""
    location = base.location
    options = tuple(sorted(location.storage_options.items()))
    key = location.uri, options, replacements(location.store), log.region_id
    follower = _followers.get(key, lambda: LogFollower(base.location.store, log.region_id))
    followed = follower.follow(log, RowSchema.of(base), max_bytes=_MAX_REGION_BYTES, listed=listed)
    # With its new weight.
    _followers.put(key, follower)
    return followed


def unflushed_logs(base: BaseTable, manifests: Mapping[UUID, RegionManifest]) -> list[UnflushedLog]:
    """Return the logs behind the generations of the manifests, with ends that are not known.

    Raises ObjectNotFoundError as :func:`read_tails` does if a manifest is too old for ``base``.
    """
    for region_id, manifest in manifests.items():
        if base.details.merged.get(region_id, 0) >= manifest.current_generation:
            raise ObjectNotFoundError(f"region {region_id} was flushed and merged meanwhile")
    return [UnflushedLog.behind(manifest) for manifest in manifests.values()]


def check_logged(store: ObjectStore, entries: Iterable[tuple[UUID, int]]) -> None:
    """Raise PositionNotReachedError if a log never had one of some entries, by region."""
    for region_id, number in entries:
        if store.exists(wal_key(region_id, number)):
            continue
        latest = RegionManifestStore(store, region_id).read_latest()
        if latest is None or latest.replay_after < number:
            raise PositionNotReachedError(f"entry {number} of region {region_id}")


Sources = TypeVar("Sources")


def wait_for_position(read: Callable[[], Sources], seconds: float) -> Sources:
    """Plan a read until the logs have the position that it must see; else ReadTimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return read()
        except PositionNotReachedError as error:
            if time.monotonic() >= deadline:
                raise ReadTimeoutError(
                    f"the logs do not have {error} after {seconds:g} s; give the position of a "
                    "write into this table, or wait longer for it (timeout)"
                ) from error
        time.sleep(_POLL_SECONDS)
