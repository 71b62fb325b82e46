"""The write-ahead log of one region: find its tip, read it, write at a position, report damage.

A recovery claims a region whose rows wait in the log although no writer seems to live, replays and
flushes them, and never appends. Whether a writer lives cannot be observed, so that it may fence a
writer that was only slow. Such a writer claims the region back, where it would stop for any other
claim: two producers that fenced each other for ever would both look healthy.

The sentinel of a recovery's claim has a writer id of its own kind. The newest entry of a log is
never collected. So if the newest claim of a region is a recovery's, the newest entry is its
sentinel; each process that claimed the region since then has put an entry behind it. A recovery
that died between its manifest and its sentinel is not recognised: the writer stops, as for any
claim, and the rows stay in the log.

Claiming back is an ordinary claim: manifest, sentinel, replay. It is right at every step of the
recovery, and even if the recovery still runs: rows that the recovery has flushed are not replayed,
the other rows are, and a recovery that goes on is fenced itself and flushes nothing more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from memwal.base_table.required_regions import lost_error
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    RegionFencedError,
    TableReplacedError,
)
from memwal.format.paths import ANY_MANIFEST, parse_wal_name, region_dir, wal_dir, wal_key
from memwal.format.wal_encoder import encode_sentinel
from memwal.format.wal_entry import (
    EntryHead,
    TornEntryError,
    WalEntry,
    decode_entry,
    decode_head,
)
from memwal.lsm.wal.prefetch import read_ahead
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import Data, ObjectStore, create_settled

_GIVE_UP = (
    "restore the object from a backup, or give up every unflushed row of the region, which is "
    "recorded: memwal abandon TABLE {0} --yes"
)


def gap_error(region_id: UUID, missing: int, *, newest: int) -> CorruptDataError:
    """Return the error for an empty position before the newest entry."""
    return CorruptDataError(
        f"the log of region {region_id} has a gap: entry {missing} is missing "
        f"({wal_key(region_id, missing)}), and the log goes on to entry {newest}. Rows that were "
        f"acknowledged are lost with it. No rows were changed: {_GIVE_UP.format(region_id)}"
    )


def damaged_entry_error(region_id: UUID, position: int, *, behind: int) -> CorruptDataError:
    """Return the error for a torn entry with entries of rows behind it."""
    return CorruptDataError(
        f"entry {position} of the log of region {region_id} is damaged "
        f"({wal_key(region_id, position)}), and entries follow it from {behind} on. No rows were "
        f"changed: {_GIVE_UP.format(region_id)}"
    )


def fenced_error(region_id: UUID, epoch: int, other: int) -> RegionFencedError:
    """Return the error for a writer whose region has another epoch.

    Epochs only grow: a lower one means that an older state of the table was put in its place.
    """
    if other < epoch:
        return TableReplacedError(
            f"region {region_id} is at epoch {other}, before this writer's claim ({epoch}): an "
            "older state of the table, such as a backup, was put in its place. If it is the right "
            "one, open it again with a new writer, and write again what it lacks"
        )
    return RegionFencedError(
        f"region {region_id} was claimed by another writer (epoch {other}, ours is {epoch}); "
        "open a new writer to claim it back"
    )


_HEAD_BYTES = 16 << 10
# For an entry that was appended after the listing.
_ASSUMED_SIZE = 1 << 20

# If more entries than this were appended since an earlier listing, the log is listed again.
_MAX_UNLISTED = 64
# A search for the tip is repeated this often while a writer appends.
_TIP_SEARCHES = 5


def find_tip(store: ObjectStore, region_id: UUID, *, start: int, is_new: bool = False) -> int:
    """Return the first free position at or after ``start``.

    Positions are used without gaps, so a doubling step and a bisection find the first free one
    in a logarithmic number of requests.

    Raises RegionLostError if the folder of the region is not in its place, which a region that
    ``is_new`` does not have yet.
    """

    def is_taken(position: int) -> bool:
        if is_new:
            return store.exists(wal_key(region_id, position))
        return has_entry(store, region_id, position)

    taken, step = start - 1, 1
    while is_taken(taken + step):
        taken, step = taken + step, step * 2
    free = taken + step
    while free - taken > 1:
        middle = (taken + free) // 2
        if is_taken(middle):
            taken = middle
        else:
            free = middle
    return free


def is_free(store: ObjectStore, region_id: UUID, position: int) -> bool:
    """Return whether the log of a region has no entry where none was found a moment ago.

    Raises as :func:`has_entry` does. No request to an object store.
    """
    return not store.is_local or not has_entry(store, region_id, position)


def has_entry(store: ObjectStore, region_id: UUID, position: int) -> bool:
    """Return whether the log of a region has an entry.

    Raises RegionLostError if the folder of the region is not in its place: whether it has the
    entry cannot be known then.
    """
    key = wal_key(region_id, position)
    try:
        return store.exists_within(key, within=region_dir(region_id), proof=ANY_MANIFEST)
    except ObjectNotFoundError as error:
        raise lost_error(store, [region_id]) from error


@dataclass(frozen=True, slots=True, eq=False)
class LogSurvey:
    """Listing of the log entries behind a position."""

    after: int  # position behind which entries were listed
    # Fields ``position`` and ``size``, in the order of the log.
    entries: npt.NDArray[np.void]
    tip: int  # first free position behind all entries
    # First position before the tip without an entry, although every position was used once.
    missing: int | None
    newest: int = 0  # newest position that was found, also up to ``after``; 0 if none was

    @property
    def last_listed(self) -> int:
        """Last position up to which the listing is complete."""
        return int(self.entries["position"][-1]) if len(self.entries) else self.after

    def sizes(self, positions: Sequence[int]) -> list[int]:
        """Return the sizes of entries in bytes, or an estimate for each that was not listed.

        The positions ascend.
        """
        wanted = np.asarray(positions, np.uint64)
        size_of = np.full(len(wanted), _ASSUMED_SIZE, np.uint64)
        is_wanted = np.isin(self.entries["position"], wanted)
        size_of[np.isin(wanted, self.entries["position"])] = self.entries["size"][is_wanted]
        sizes: list[int] = size_of.tolist()
        return sizes


def survey_log(
    store: ObjectStore,
    region_id: UUID,
    *,
    after: int,
    hint: int = 0,
    earlier: LogSurvey | None = None,
    is_new: bool = False,
) -> LogSurvey:
    """List the log behind a position, and find its tip and its first gap.

    A listing may omit existing objects, so a position counts as missing only after a request for it
    found nothing. ``after`` is the last position that flushed generations cover: missing entries up
    to it were collected. ``hint`` is a position that is known to be used, or 0. With an ``earlier``
    survey the log is not listed again if few entries were appended since, unless the region still
    ``is_new``, which is as for :func:`find_tip`.
    """
    if earlier is not None and not is_new:
        extended = _extend_survey(store, region_id, earlier, after=after, hint=hint)
        if extended is not None:
            return extended
    folder = f"{wal_dir(region_id)}/"
    listed = (
        (position, info.size)
        for info in store.list(folder)
        if (position := parse_wal_name(info.key.removeprefix(folder))) is not None
    )
    entries = np.fromiter(listed, dtype=[("position", np.uint64), ("size", np.uint64)])
    entries.sort(order="position")
    last = int(entries["position"][-1]) if len(entries) else 0
    entries = entries[entries["position"] > after]
    known = max(after, hint, last)
    tip = find_tip(store, region_id, start=known + 1, is_new=is_new)
    return LogSurvey(
        after=after,
        entries=entries,
        tip=tip,
        missing=_first_missing(store, region_id, entries["position"], after, known),
        newest=last if tip == known + 1 else tip - 1,
    )


def lost_log_error(
    store: ObjectStore, region_id: UUID, logged: int, *, newest: int
) -> CorruptDataError | None:
    """Return the error for a log that has no entry where it must have one, or None.

    A collector keeps the newest entry of a log. So the log has an entry at or behind ``logged``, a
    position that it had when a manifest was written. ``newest`` is the newest position that a
    listing found after that manifest was read, 0 for none. Costs a request only if that is before
    ``logged``.
    """
    if newest >= logged or has_entry(store, region_id, logged):
        return None
    return CorruptDataError(
        f"the log of region {region_id} is lost: it has no entry at or behind position {logged}, "
        f"which the manifest names ({wal_key(region_id, logged)}). Rows that were acknowledged "
        "since are lost with it. Nothing was changed: if its disk is not mounted, mount it; "
        f"{_GIVE_UP.format(region_id)}"
    )


def _extend_survey(
    store: ObjectStore, region_id: UUID, earlier: LogSurvey, *, after: int, hint: int
) -> LogSurvey | None:
    """Return an earlier survey with the entries appended since; None if the log must be listed.

    Each position behind the listed ones is requested, as if a listing had left it out. If one of
    them is missing, the log is listed.
    """
    if after < earlier.after or (earlier.missing is not None and earlier.missing <= after):
        return None
    first = max(earlier.last_listed, after) + 1
    tip = _find_tip_of_active_log(store, region_id, start=max(earlier.tip, first, hint + 1))
    if tip is None or tip - first > _MAX_UNLISTED:
        return None
    if not all(store.exists(wal_key(region_id, position)) for position in range(first, tip)):
        return None
    appended = np.empty(tip - first, dtype=earlier.entries.dtype)
    appended["position"], appended["size"] = np.arange(first, tip), _ASSUMED_SIZE
    listed = earlier.entries[earlier.entries["position"] > after]
    entries = np.concatenate([listed, appended])
    newest = tip - 1 if len(appended) else earlier.newest
    return LogSurvey(after, entries, tip, earlier.missing, newest)


def _find_tip_of_active_log(store: ObjectStore, region_id: UUID, *, start: int) -> int | None:
    """Return the first free position, if none behind it is used; None if that does not settle.

    A writer that appends makes the position used between the two requests, and the next search
    finds a later one. If an entry is lost, all searches find the same position.
    """
    for _ in range(_TIP_SEARCHES):
        start = find_tip(store, region_id, start=start)
        if not store.exists(wal_key(region_id, start + 1)):
            return start
    return None


def _first_missing(
    store: ObjectStore,
    region_id: UUID,
    listed: npt.NDArray[np.uint64],
    after: int,
    newest: int,
) -> int | None:
    if len(listed) == newest - after:
        return None
    expected = after + 1
    for position in (*listed.tolist(), newest + 1):
        while expected < position:
            if not has_entry(store, region_id, expected):
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
    contents: Mapping[int, bytes] | None = None,
) -> Iterator[tuple[int, WalEntry]]:
    """Yield the entries behind position ``after``, in order.

    Torn entries are skipped if only torn entries and sentinels follow them: they were lost before
    they were durable. ``before`` is the first position that is not read, by default the tip of the
    log. A ``survey`` saves the listing of the log; ``contents`` are entries that were read already.

    Raises RegionFencedError if an entry has a higher epoch than ``epoch``, and CorruptDataError if
    an entry is missing, is torn with rows behind it, or lacks required metadata.
    """
    if survey is None:
        survey = survey_log(store, region_id, after=after)
    end = survey.tip if before is None else before
    positions = range(after + 1, end)
    read = contents or {}
    rest = read_ahead(
        store,
        (
            (wal_key(region_id, number), size)
            for number, size in zip(positions, survey.sizes(positions), strict=True)
            if number not in read
        ),
    )
    torn: tuple[int, TornEntryError] | None = None
    with closing(rest):
        for position in positions:
            data = read[position] if position in read else next(rest)
            if data is None and not is_free(store, region_id, position):
                # The folder of the region was away when the entry was not found.
                data = store.get(wal_key(region_id, position))
            if data is None:
                raise _missing_entry_error(store, region_id, position, epoch=epoch, newest=end - 1)
            try:
                entry = decode_entry(data, name=wal_key(region_id, position))
            except TornEntryError as error:
                torn = torn or (position, error)
                continue
            if entry.writer_epoch > epoch:
                raise fenced_error(region_id, epoch, entry.writer_epoch)
            if torn is not None and not entry.is_sentinel:
                raise damaged_entry_error(region_id, torn[0], behind=position) from torn[1]
            yield position, entry


def needs_replay(entry: WalEntry, *, current_generation: int) -> bool:
    """Return whether an entry behind ``replay_after`` has rows that no flushed generation has.

    An entry that does not record its generation counts as unflushed.
    """
    if entry.is_sentinel or not any(batch.num_rows for batch in entry.batches):
        return False
    return entry.generation is None or entry.generation >= current_generation


def read_head(store: ObjectStore, region_id: UUID, position: int) -> EntryHead:
    """Read the metadata of an entry, without its rows.

    Raises TornEntryError if the entry is torn within its first message, and ObjectNotFoundError if
    there is none.
    """
    key = wal_key(region_id, position)
    length = _HEAD_BYTES
    while True:
        head_or_length = decode_head(store.get_range(key, start=0, length=length), name=key)
        if isinstance(head_or_length, EntryHead):
            return head_or_length
        if head_or_length <= length:
            raise TornEntryError(f"WAL entry {key} is torn: it ends within its schema")
        length = head_or_length


def _missing_entry_error(
    store: ObjectStore, region_id: UUID, position: int, *, epoch: int, newest: int
) -> CorruptDataError | RegionFencedError:
    latest = RegionManifestStore(store, region_id).read_latest()
    if latest is not None and latest.writer_epoch > epoch:
        # The writer that claimed the region may have flushed the entry, and the garbage collector
        # may have deleted it.
        return fenced_error(region_id, epoch, latest.writer_epoch)
    return gap_error(region_id, position, newest=newest)


def fence(
    store: ObjectStore, region_id: UUID, *, epoch: int, writer_id: str, after: int, hint: int
) -> int:
    """Write the fence sentinel at the tip and return its position.

    From then on a writer with a lower epoch finds a higher epoch at the position of its next
    append. All torn entries at the tip are replaced, so that other clients can read the log too.

    A claim that a newer claim has overtaken should not write its sentinel behind the newer
    sentinel: the newer writer would find it at the position of its next append. The last entry is
    therefore read first. If the newer claim wins the race after that read, the sentinel lands
    behind it, and costs the newer writer one position.

    ``after`` is the last position that flushed generations cover, ``hint`` a position that is known
    to be used, or 0. Raises RegionFencedError if the region was claimed with a higher epoch.
    """
    data = encode_sentinel(writer_epoch=epoch, writer_id=writer_id)
    position, tip = _find_fence_position(
        store, region_id, max(after, hint) + 1, epoch=epoch, after=after
    )
    while True:
        # The entry before the sentinel may come from a writer that does not sync. If the machine
        # crashed, that entry was lost and the sentinel was not, the log would have a gap.
        store.barrier(up_to=wal_key(region_id, position - 1))
        if put_entry(store, region_id, position, data, epoch) is not None:
            # The older writer may append faster than this loop advances: search for the tip again
            # rather than follow it position by position.
            position, tip = _find_fence_position(
                store, region_id, position + 1, epoch=epoch, after=after
            )
        elif position + 1 < tip:
            position += 1
        else:
            return position


def _find_fence_position(
    store: ObjectStore, region_id: UUID, start: int, *, epoch: int, after: int
) -> tuple[int, int]:
    """Return the position behind the last whole entry, and the tip, searched from ``start``."""
    tip = position = find_tip(store, region_id, start=start)
    while position - 1 > after and _is_torn(store, region_id, position - 1, epoch):
        position -= 1
    return position, tip


def put_entry(
    store: ObjectStore, region_id: UUID, position: int, data: Data, epoch: int
) -> WalEntry | None:
    """Create an entry, or return the entry of a lower or equal epoch at its position.

    A torn entry without rows behind it is replaced. Raises RegionFencedError, with
    ``not_logged``, if the existing entry has a higher epoch: no request of this call can store its
    entry any more. Raises CorruptDataError if
    it is torn and entries with rows follow it.
    """
    key = wal_key(region_id, position)
    while True:
        stored = create_settled(store, key, data)
        if stored is None:
            return None
        try:
            entry = decode_entry(stored, name=key)
        except TornEntryError as error:
            if not _has_no_rows_from(store, region_id, position + 1, epoch):
                raise damaged_entry_error(region_id, position, behind=position + 1) from error
            try:
                store.replace(key, data, expected=stored)
            except ConflictError:
                continue
            return None
        if entry.writer_epoch > epoch:
            fenced = fenced_error(region_id, epoch, entry.writer_epoch)
            raise RegionFencedError(str(fenced), not_logged=True)
        return entry


def _has_no_rows_from(store: ObjectStore, region_id: UUID, position: int, epoch: int) -> bool:
    """Return whether only torn entries and sentinels exist at and behind a position.

    After a crash of the machine, several files that their writer did not sync can be empty, and a
    client that claims the region then writes its sentinel behind them before it notices.
    """
    while True:
        try:
            entry = _read_entry(store, region_id, position, epoch)
        except TornEntryError:
            position += 1
            continue
        if entry is None:
            return True
        if not entry.is_sentinel:
            return False
        position += 1


def _is_torn(store: ObjectStore, region_id: UUID, position: int, epoch: int) -> bool:
    """Return whether an entry is torn. Raises RegionFencedError if it has a higher epoch."""
    try:
        _read_entry(store, region_id, position, epoch)
    except TornEntryError:
        return True
    return False


def _read_entry(store: ObjectStore, region_id: UUID, position: int, epoch: int) -> WalEntry | None:
    key = wal_key(region_id, position)
    try:
        entry = decode_entry(store.get(key), name=key)
    except ObjectNotFoundError:
        return None
    if entry.writer_epoch > epoch:
        raise fenced_error(region_id, epoch, entry.writer_epoch)
    return entry


_RECOVERY: Final = "recovery-"


def new_writer_id(*, recovers: bool = False) -> str:
    """Return the id of a new claim, by a writer or by a recovery."""
    return (_RECOVERY if recovers else "") + uuid.uuid4().hex


def is_recovered(store: ObjectStore, region_id: UUID) -> bool:
    """Return whether the newest claim of a region is a recovery's."""
    manifest = RegionManifestStore(store, region_id).read_latest()
    if manifest is None:
        return False
    tip = find_tip(store, region_id, start=manifest.last_logged + 1)
    try:
        head = read_head(store, region_id, tip - 1)
    except (ObjectNotFoundError, TornEntryError):
        return False
    is_newest = head.writer_epoch == manifest.writer_epoch
    return is_newest and (head.writer_id or "").startswith(_RECOVERY)
