"""The write-ahead log of one region: find its tip, read it, write at a position, report damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from memwal.errors import ConflictError, CorruptDataError, ObjectNotFoundError, RegionFencedError
from memwal.format.paths import parse_wal_name, wal_dir, wal_key
from memwal.format.wal_encoder import encode_sentinel
from memwal.format.wal_entry import TornEntryError, WalEntry, decode_entry
from memwal.lsm.wal.prefetch import read_ahead
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import Data, ObjectStore, create_settled


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


READ_AHEAD_BYTES = 8 << 20
"""How much of a log is read before its turn."""

# Of an entry that was appended after the log was surveyed.
_UNKNOWN_SIZE = 1 << 20


def find_tip(store: ObjectStore, region_id: UUID, *, start: int) -> int:
    """First free position at or after ``start``.

    Positions are taken without gaps, so a doubling step and a bisection find the first free one
    in a logarithmic number of requests.
    """
    taken, step = start - 1, 1
    while store.exists(wal_key(region_id, taken + step)):
        taken, step = taken + step, step * 2
    free = taken + step
    while free - taken > 1:
        middle = (taken + free) // 2
        if store.exists(wal_key(region_id, middle)):
            taken = middle
        else:
            free = middle
    return free


@dataclass(frozen=True, slots=True, eq=False)
class LogSurvey:
    """What a listing tells of the entries behind a position.

    Attributes
    ----------
    after : int
        The position; entries up to it are not in the survey.
    entries : numpy.ndarray
        Fields ``position`` and ``size``, in the order of the log.
    tip : int
        First position behind all that are known: no entry stands there or later.
    missing : int or None
        First position before the tip that has no entry, though every position was taken once.
    """

    after: int
    entries: np.ndarray[Any, np.dtype[np.void]]
    tip: int
    missing: int | None

    def size(self, position: int) -> int:
        """Length of an entry in bytes, a guess when it is not in the survey."""
        index = int(np.searchsorted(self.entries["position"], np.uint64(position)))
        known = index < len(self.entries) and self.entries["position"][index] == position
        return int(self.entries["size"][index]) if known else _UNKNOWN_SIZE


def survey_log(store: ObjectStore, region_id: UUID, *, after: int, hint: int = 0) -> LogSurvey:
    """List the log behind a position, and see whether it is whole.

    A listing may leave out what exists; nothing is taken for missing that was not asked for.

    Parameters
    ----------
    after : int
        Last position that flushed generations cover. What is missing up to it was collected.
    hint : int
        A position that was taken already, or 0.
    """
    folder = f"{wal_dir(region_id)}/"
    listed = (
        (position, info.size)
        for info in store.list(folder)
        if (position := parse_wal_name(info.key.removeprefix(folder))) is not None
        and position > after
    )
    entries = np.fromiter(listed, dtype=[("position", np.uint64), ("size", np.uint64)])
    entries.sort(order="position")
    newest = max(after, hint, int(entries["position"][-1]) if len(entries) else 0)
    return LogSurvey(
        after=after,
        entries=entries,
        tip=find_tip(store, region_id, start=newest + 1),
        missing=_first_missing(store, region_id, entries["position"], after, newest),
    )


def _first_missing(
    store: ObjectStore,
    region_id: UUID,
    listed: np.ndarray[Any, np.dtype[np.uint64]],
    after: int,
    newest: int,
) -> int | None:
    if len(listed) == newest - after:
        return None
    expected = after + 1
    for position in (*listed.tolist(), newest + 1):
        while expected < position:
            if not store.exists(wal_key(region_id, expected)):
                return expected
            expected += 1
        expected = position + 1
    return None


def read_log(
    store: ObjectStore,
    region_id: UUID,
    *,
    after: int,
    epoch: int,
    before: int | None = None,
    survey: LogSurvey | None = None,
    max_bytes: int = READ_AHEAD_BYTES,
) -> Iterator[tuple[int, WalEntry]]:
    """Entries behind position ``after``, in order.

    Torn entries count as absent where nothing but torn ones and sentinels follows: they were lost
    before they were safe.

    Parameters
    ----------
    before : int, optional
        First position that is not read; the tip of the log by default.
    survey : LogSurvey, optional
        Made here when it is not given.
    max_bytes : int, default 8 MiB
        How much is read before its turn.

    Raises
    ------
    RegionFencedError
        An entry has a higher epoch than ``epoch``: whoever reads is fenced itself.
    CorruptDataError
        An entry is missing, or torn with rows behind it, or does not say what it must.
    """
    if survey is None:
        survey = survey_log(store, region_id, after=after)
    end = survey.tip if before is None else before
    wanted = range(after + 1, end)
    contents = read_ahead(
        store,
        ((wal_key(region_id, position), survey.size(position)) for position in wanted),
        max_bytes=max_bytes,
    )
    torn: tuple[int, TornEntryError] | None = None
    with closing(contents):
        for position, data in zip(wanted, contents, strict=True):
            if data is None:
                raise _missing(store, region_id, position, epoch=epoch, newest=end - 1)
            try:
                entry = decode_entry(data, name=wal_key(region_id, position))
            except TornEntryError as error:
                torn = torn or (position, error)
                continue
            if entry.writer_epoch > epoch:
                raise fenced_by(region_id, epoch, entry.writer_epoch)
            if torn is not None and not entry.is_sentinel:
                raise damaged_entry(region_id, torn[0], behind=position) from torn[1]
            yield position, entry


def needs_replay(entry: WalEntry, *, current_generation: int) -> bool:
    """Whether an entry behind ``replay_after`` has rows that no flushed generation has.

    One that does not say its generation may have.
    """
    if entry.is_sentinel or not any(batch.num_rows for batch in entry.batches):
        return False
    return entry.generation is None or entry.generation >= current_generation


def _missing(
    store: ObjectStore, region_id: UUID, position: int, *, epoch: int, newest: int
) -> CorruptDataError | RegionFencedError:
    latest = RegionManifestStore(store, region_id).read_latest()
    if latest is not None and latest.writer_epoch > epoch:
        # Whoever claimed the region may have flushed the entry, and a collector taken it.
        return fenced_by(region_id, epoch, latest.writer_epoch)
    return log_gap(region_id, position, newest=newest)


def fence(
    store: ObjectStore, region_id: UUID, *, epoch: int, writer_id: str, after: int, hint: int
) -> int:
    """Put the fence sentinel at the tip and return its position.

    From then on a writer with a lower epoch finds a higher one where it wants to append. Torn
    entries at the tip are replaced, all of them, so that other clients can read the log too.

    A claim that was overtaken should not put its sentinel behind that of the newer one: the newer
    writer would find it where it wants to append. So it looks at what is last, and all that can
    happen in between is that this happens all the same, and costs that writer a position.

    Parameters
    ----------
    after : int
        Last position that flushed generations cover.
    hint : int
        A position that was taken already, or 0.

    Raises
    ------
    RegionFencedError
        The region was claimed with a higher epoch meanwhile.
    """
    data = encode_sentinel(writer_epoch=epoch, writer_id=writer_id)
    position, tip = _place(store, region_id, max(after, hint) + 1, epoch=epoch, after=after)
    while True:
        # What stands before the sentinel may be by somebody who syncs nothing. If it went when the
        # machine crashes, and the sentinel stayed, the log would have a gap.
        store.barrier(up_to=wal_key(region_id, position - 1))
        if take(store, region_id, position, data, epoch) is not None:
            # The older writer may be faster than one attempt here: look for the tip again rather
            # than walk behind it.
            position, tip = _place(store, region_id, position + 1, epoch=epoch, after=after)
        elif position + 1 < tip:
            position += 1
        else:
            return position


def _place(
    store: ObjectStore, region_id: UUID, start: int, *, epoch: int, after: int
) -> tuple[int, int]:
    """Where a sentinel goes, looked for from ``start`` on: behind what is whole; and the tip."""
    tip = position = find_tip(store, region_id, start=start)
    while position - 1 > after and _is_torn(store, region_id, position - 1, epoch):
        position -= 1
    return position, tip


def take(
    store: ObjectStore, region_id: UUID, position: int, data: Data, epoch: int
) -> WalEntry | None:
    """Put an entry at a position. Returns None when it is there, or the older one that is.

    Raises RegionFencedError when a higher epoch is there.
    """
    key = wal_key(region_id, position)
    while True:
        stored = create_settled(store, key, data)
        if stored is None:
            return None
        try:
            entry = decode_entry(stored, name=key)
        except TornEntryError as error:
            if not _is_lost_tip(store, region_id, position + 1, epoch):
                raise damaged_entry(region_id, position, behind=position + 1) from error
            try:
                store.replace(key, data, expected=stored)
            except ConflictError:
                continue
            return None
        if entry.writer_epoch > epoch:
            raise fenced_by(region_id, epoch, entry.writer_epoch)
        return entry


def _is_lost_tip(store: ObjectStore, region_id: UUID, position: int, epoch: int) -> bool:
    """Whether no rows stand at and behind a position: nothing but torn entries and sentinels.

    A machine that crashes can leave several files empty whose writer did not sync them, and a
    client that claims the region then puts its sentinel behind them before it finds out.
    """
    while True:
        key = wal_key(region_id, position)
        try:
            entry = decode_entry(store.get(key), name=key)
        except ObjectNotFoundError:
            return True
        except TornEntryError:
            position += 1
            continue
        if entry.writer_epoch > epoch:
            raise fenced_by(region_id, epoch, entry.writer_epoch)
        if not entry.is_sentinel:
            return False
        position += 1


def _is_torn(store: ObjectStore, region_id: UUID, position: int, epoch: int) -> bool:
    """Whether an entry is torn. Raises RegionFencedError when it has a higher epoch."""
    key = wal_key(region_id, position)
    try:
        entry = decode_entry(store.get(key), name=key)
    except TornEntryError:
        return True
    except ObjectNotFoundError:
        return False
    if entry.writer_epoch > epoch:
        raise fenced_by(region_id, epoch, entry.writer_epoch)
    return False
