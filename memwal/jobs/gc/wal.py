"""Collectors of a region's log entries, and of the old versions of its manifest.

The newest entry of a log is always kept: Lance finds the end of the log by listing it, and would
put its next fence at the front of an empty log, where it fences no writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import numpy as np
import numpy.typing as npt

from memwal.format.paths import APPLIED_DIR, manifest_dir, parse_wal_name, wal_dir, wal_key
from memwal.format.region_manifest import INCARNATION_NUMBERS
from memwal.jobs.gc.collector import Extent, RegionState, decide
from memwal.jobs.gc.decision import Decision, DecisionReason, GarbageKind, Reason
from memwal.lsm.wal.applied_steps import write_book_before_delete
from memwal.lsm.wal.log import lost_log_error
from memwal.storage.object_store import ObjectStore
from memwal.util.arrays import Mask

LogPositions = npt.NDArray[np.uint64]


# Position of an entry, its size in bytes, and its time in seconds since the epoch.
_ENTRY = np.dtype([("position", "<u8"), ("size", "<u8"), ("time", "<f8")])


def list_log(store: ObjectStore, region_id: UUID) -> npt.NDArray[np.void]:
    """List the entries of a region's log, oldest first, in 24 bytes each."""
    entries = (
        (position, info.size, info.modified.timestamp())
        for info in store.list(wal_dir(region_id))
        if (position := parse_wal_name(info.key.rpartition("/")[2])) is not None
    )
    return np.sort(np.fromiter(entries, _ENTRY), order="position")


def collect_log(region: RegionState) -> Iterator[Decision]:
    """Delete entries of the log that neither a kept generation nor a replay needs."""
    store, region_id = region.store, region.region_id
    entries = list_log(store, region_id)
    newest = int(entries["position"].max(initial=0))
    lost = lost_log_error(store, region_id, region.history.latest.last_logged, newest=newest)
    if lost is not None:
        raise lost
    for selected, why in _decide_log(entries, region):
        if selected.any():
            positions = entries["position"][selected]
            extent = Extent(len(positions), int(entries["size"][selected].sum()))
            what = _range(*positions[[0, -1]].tolist())
            yield region.context.carry_out(
                decide(region_id, GarbageKind.LOG, what, extent, why),
                wal_dir(region_id),
                partial(_delete_entries, region, positions),
            )


def _delete_entries(region: RegionState, positions: LogPositions) -> None:
    # If the region had no such folder when it was listed, no entry that is old enough to be
    # deleted is a step.
    if APPLIED_DIR in region.folders:
        write_book_before_delete(region.store, region.region_id, until=int(positions.max()))
    # Oldest first as far as the store keeps an order. A run that dies in between may leave some
    # in front of others that are gone: all of them are before the position where a replay
    # begins, where no process reads.
    region.store.delete_many(wal_key(region.region_id, position) for position in positions.tolist())


def _decide_log(
    entries: npt.NDArray[np.void], region: RegionState
) -> Iterator[tuple[Mask, DecisionReason]]:
    """Yield the entries of up to five ranges, each with the reason for deleting or keeping it."""
    context, history, grace = region.context, region.history, region.context.options.grace
    bound = history.settled.replay_after if history.settled is not None else 0
    positions, times = entries["position"], entries["time"]
    newest = positions == positions.max(initial=0)
    replay = ~newest & (positions > history.latest.replay_after)
    needed = ~newest & ~replay & (positions > bound)
    young = ~newest & ~replay & ~needed & (times > context.expired.timestamp())
    earlier = positions < history.latest.incarnation * INCARNATION_NUMBERS
    garbage = ~(newest | replay | needed | young | earlier)
    yield garbage, (Reason.UNNEEDED, "flushed into generations that are no longer kept", None)
    end = datetime.fromtimestamp(times[young].max(initial=0), UTC) + grace
    yield young, (Reason.GRACE, "written within the grace period", end)
    if history.latest.flushed:
        kept = f"generation {history.latest.oldest_kept} is kept"
        message = f"{kept}, and they hold rows of it or of newer generations"
        yield needed, (Reason.GENERATION_KEPT, message, None)
    else:
        end = history.written(history.latest.version) + grace
        message = "their generations were dropped within the grace period"
        yield needed, (Reason.GRACE, message, end)
    message = "not flushed: the next writer that claims the region replays them"
    yield replay, (Reason.REPLAY, message, None)
    message = "the newest entry is always kept: it marks the end of the log"
    yield newest, (Reason.NEWEST_ENTRY, message, None)


def collect_manifests(region: RegionState) -> Iterator[Decision]:
    """Delete the manifest versions before the one that bounds the log, in up to two ranges.

    That version stays, and so does everything newer: later bounds are read from those. Versions are
    deleted oldest first, one by one. While a version exists, no version after it was ever trimmed;
    by this, a process that was paused tells the end of the history from a gap in it.
    """
    history = region.history
    first_needed = history.settled.version if history.settled is not None else 0
    stored = sorted(history.objects)
    old = [version for version in stored if version < first_needed]
    needed = [version for version in stored if version >= first_needed]
    garbage: DecisionReason = (
        Reason.UNNEEDED,
        "no process reads them, and a newer one bounds the log",
        None,
    )
    message = "the newest version, and those that tell from where on the log is needed"
    for versions, why in ((old, garbage), (needed, (Reason.MANIFEST_NEEDED, message, None))):
        if versions:
            extent = Extent(len(versions), sum(history.objects[v].size for v in versions))
            what = _range(versions[0], versions[-1])
            yield region.context.carry_out(
                decide(region.region_id, GarbageKind.MANIFESTS, what, extent, why),
                manifest_dir(region.region_id),
                partial(_delete_manifests, region, versions),
            )


def _delete_manifests(region: RegionState, versions: list[int]) -> None:
    # The hint names a version that stays before any version is deleted.
    region.manifests.refresh_hint(region.history.latest.version)
    for version in versions:
        region.store.delete(region.history.objects[version].key)


def _range(first: int, last: int) -> str:
    return f"{first}..{last}" if last > first else str(first)
