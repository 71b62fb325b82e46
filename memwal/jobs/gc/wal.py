"""Collectors of a region's log entries, and of the old versions of its manifest.

The newest entry of a log is always kept: Lance finds the end of the log by listing it, and would
put its next fence at the front of an empty log, where it fences no writer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar
from uuid import UUID

import numpy as np
import numpy.typing as npt

from memwal.format.paths import APPLIED_DIR, manifest_dir, parse_wal_name, wal_dir, wal_key
from memwal.format.region_manifest import INCARNATION_NUMBERS
from memwal.jobs.gc.collector import GcContext, RegionState, carry_out
from memwal.jobs.gc.decision import Decision, GarbageKind, Reason, moment
from memwal.lsm.wal.applied_steps import write_book_before_delete
from memwal.lsm.wal.log import lost_log_error
from memwal.storage.object_store import ObjectStore
from memwal.util.arrays import Mask

LogPositions = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class LogEntries:
    """Entries of a log, oldest first, in 24 bytes each."""

    positions: LogPositions
    sizes: npt.NDArray[np.uint64]  # in bytes
    times: npt.NDArray[np.float64]  # in seconds since the epoch

    @classmethod
    def list(cls, store: ObjectStore, region_id: UUID) -> LogEntries:
        """List a region's log."""
        positions, sizes, times = array("Q"), array("Q"), array("d")
        for info in store.list(wal_dir(region_id)):
            position = parse_wal_name(info.key.rpartition("/")[2])
            if position is not None:
                positions.append(position)
                sizes.append(info.size)
                times.append(info.modified.timestamp())
        numbers = np.frombuffer(positions, np.uint64)
        order = np.argsort(numbers)
        return cls(
            numbers[order],
            np.frombuffer(sizes, np.uint64)[order],
            np.frombuffer(times, np.float64)[order],
        )


@dataclass(frozen=True, slots=True)
class LogCollector:
    """Deletes log entries that neither a kept generation nor a replay needs."""

    kind: ClassVar[GarbageKind] = GarbageKind.LOG
    region: RegionState

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about the log, in up to five ranges."""
        region = self.region
        entries = LogEntries.list(region.store, region.region_id)
        newest = int(entries.positions.max(initial=0))
        lost = lost_log_error(
            region.store, region.region_id, region.history.latest.last_logged, newest=newest
        )
        if lost is not None:
            raise lost
        for positions, decision in self._decide(entries, context):
            yield carry_out(
                decision,
                region.store,
                wal_dir(region.region_id),
                partial(self._delete, positions),
                dry_run=context.options.dry_run,
            )

    def _delete(self, positions: LogPositions) -> None:
        region = self.region
        # If the region had no such folder when it was listed, no entry that is old enough to be
        # deleted is a step.
        if APPLIED_DIR in region.folders:
            write_book_before_delete(region.store, region.region_id, until=int(positions.max()))
        # Oldest first as far as the store keeps an order. A run that dies in between may leave some
        # in front of others that are gone: all of them are before the position where a replay
        # begins, where no process reads.
        region.store.delete_many(
            wal_key(region.region_id, position) for position in positions.tolist()
        )

    def _decide(
        self, entries: LogEntries, context: GcContext
    ) -> Iterator[tuple[LogPositions, Decision]]:
        """Yield each range of entries with the decision about it."""
        history, grace = self.region.history, context.options.grace
        bound = history.settled.replay_after if history.settled is not None else 0
        positions, times = entries.positions, entries.times
        newest = positions == positions.max(initial=0)
        replay = ~newest & (positions > history.latest.replay_after)
        needed = ~newest & ~replay & (positions > bound)
        young = ~newest & ~replay & ~needed & (times > context.expired.timestamp())
        earlier = positions < history.latest.incarnation * INCARNATION_NUMBERS
        garbage = ~(newest | replay | needed | young | earlier)
        if garbage.any():
            message = "flushed into generations that are no longer kept"
            yield self._range(entries, garbage, Reason.UNNEEDED, message)
        if young.any():
            end = times[young].max() + grace.total_seconds()
            until = moment(datetime.fromtimestamp(end, UTC))
            message = "written within the grace period"
            yield self._range(entries, young, Reason.GRACE, message, until)
        if needed.any() and history.latest.flushed:
            message = (
                f"generation {history.oldest_kept} is kept, and they hold rows of it or of newer "
                "generations"
            )
            yield self._range(entries, needed, Reason.GENERATION_KEPT, message)
        elif needed.any():
            until = moment(history.written(history.latest.version) + grace)
            message = "their generations were dropped within the grace period"
            yield self._range(entries, needed, Reason.GRACE, message, until)
        if replay.any():
            message = "not flushed: the next writer that claims the region replays them"
            yield self._range(entries, replay, Reason.REPLAY, message)
        if newest.any():
            message = "the newest entry is always kept: it marks the end of the log"
            yield self._range(entries, newest, Reason.NEWEST_ENTRY, message)

    def _range(
        self,
        entries: LogEntries,
        selected: Mask,
        reason: Reason,
        message: str,
        until: str | None = None,
    ) -> tuple[LogPositions, Decision]:
        positions = entries.positions[selected]
        first, last = positions[[0, -1]].tolist()
        return positions, Decision(
            kind=self.kind,
            what=f"{first}..{last}" if last > first else str(first),
            region_id=str(self.region.region_id),
            objects=len(positions),
            bytes=int(entries.sizes[selected].sum()),
            reason=reason,
            message=message,
            until=until,
        )


@dataclass(frozen=True, slots=True)
class ManifestCollector:
    """Deletes the manifest versions before the one that bounds the log.

    That version stays, and so does everything newer: later bounds are read from those. Versions are
    deleted oldest first, one by one. While a version exists, no version after it was ever trimmed;
    by this, a process that was paused tells the end of the history from a gap in it.
    """

    kind: ClassVar[GarbageKind] = GarbageKind.MANIFESTS
    region: RegionState

    def collect(self, context: GcContext) -> Iterator[Decision]:
        """Decide about the stored versions, in up to two ranges."""
        region, history = self.region, self.region.history
        first_needed = history.settled.version if history.settled is not None else 0
        stored = sorted(history.objects)
        old = [version for version in stored if version < first_needed]
        needed = [version for version in stored if version >= first_needed]
        if old:
            message = "no process reads them, and a newer one bounds the log"
            yield carry_out(
                self._decision(old, Reason.UNNEEDED, message),
                region.store,
                manifest_dir(region.region_id),
                partial(self._delete, old),
                dry_run=context.options.dry_run,
            )
        message = "the newest version, and those that tell from where on the log is needed"
        yield self._decision(needed, Reason.MANIFEST_NEEDED, message)

    def _delete(self, versions: list[int]) -> None:
        region, history = self.region, self.region.history
        # The hint names a version that stays before any version is deleted.
        region.manifests.refresh_hint(history.latest.version)
        for version in versions:
            region.store.delete(history.objects[version].key)

    def _decision(self, versions: list[int], reason: Reason, message: str) -> Decision:
        history = self.region.history
        first, last = versions[0], versions[-1]
        return Decision(
            kind=self.kind,
            what=f"{first}..{last}" if last > first else str(first),
            region_id=str(self.region.region_id),
            objects=len(versions),
            bytes=sum(history.objects[version].size for version in versions),
            reason=reason,
            message=message,
        )
