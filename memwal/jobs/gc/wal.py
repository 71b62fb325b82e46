"""Collector of log entries that neither a kept generation nor a replay needs.

The newest entry always stays: Lance finds the tip by listing the log, and would put its next fence
at the front of an empty log, where it fences no writer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from memwal.format.paths import parse_wal_name, wal_dir, wal_key
from memwal.jobs.gc.decision import Decision, Kind, Reason
from memwal.jobs.gc.history import History
from memwal.jobs.gc.options import Ages, moment
from memwal.storage.object_store import ObjectStore

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a log, oldest first: 24 bytes each, however many there are.

    Attributes
    ----------
    positions, sizes, times : numpy.ndarray, shape (entries,)
        Unsigned numbers, bytes, and seconds since the epoch.
    """

    positions: Numbers
    sizes: Numbers
    times: Numbers

    @classmethod
    def list(cls, store: ObjectStore, region_id: UUID) -> Entries:
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


def judge_entries(
    entries: Entries, history: History, ages: Ages
) -> Iterator[tuple[Numbers, Decision]]:
    """Decide about the log, in a few ranges; yields the positions with each decision."""
    bound = history.settled.replay_after if history.settled is not None else 0
    at = entries.positions
    newest = at == at.max(initial=0)
    replay = ~newest & (at > history.latest.replay_after)
    needed = ~newest & ~replay & (at > bound)
    young = ~newest & ~replay & ~needed & (entries.times > ages.expired.timestamp())
    goes = ~(newest | replay | needed | young)

    def decision(chosen: Numbers, reason: Reason, words: str, until: str | None = None) -> Decision:
        first, last = at[chosen][[0, -1]].tolist()
        return Decision(
            kind=Kind.LOG,
            what=f"{first}..{last}" if last > first else str(first),
            region_id=str(history.region_id),
            objects=int(chosen.sum()),
            bytes=int(entries.sizes[chosen].sum()),
            goes=reason is Reason.UNNEEDED,
            reason=reason,
            words=words,
            until=until,
        )

    if goes.any():
        words = "flushed into generations that are no longer kept"
        yield at[goes], decision(goes, Reason.UNNEEDED, words)
    if young.any():
        until = _time(entries.times[young].max() + ages.grace.total_seconds())
        words = "written within the grace period"
        yield at[young], decision(young, Reason.GRACE, words, until)
    if needed.any():
        if history.latest.flushed:
            words = f"generation {history.oldest_kept} is kept, whose rows they hold, or newer ones"
            yield at[needed], decision(needed, Reason.GENERATION_KEPT, words)
        else:
            until = moment(history.written(history.latest.version) + ages.grace)
            words = "their generations were dropped within the grace period"
            yield at[needed], decision(needed, Reason.GRACE, words, until)
    if replay.any():
        words = "not flushed: the next claim replays them"
        yield at[replay], decision(replay, Reason.REPLAY, words)
    if newest.any():
        words = "the newest entry always stays: it tells where the log ends"
        yield at[newest], decision(newest, Reason.NEWEST_ENTRY, words)


def delete(store: ObjectStore, history: History, positions: Numbers) -> None:
    """Delete entries, oldest first as far as the store keeps an order.

    A run that dies in between may leave some in front of others that are gone: all of them are
    behind what a replay begins with, where nobody looks.
    """
    region = history.region_id
    store.delete_many(wal_key(region, position) for position in positions.tolist())


def _time(seconds: float) -> str:
    return moment(datetime.fromtimestamp(seconds, UTC))
