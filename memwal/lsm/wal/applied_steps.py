"""Applied steps of a region, as its log records them (see docs/design/0008).

Every log entry that is a step carries the newest step of each source, so the newest such entry
tells all. The collector writes what it deletes from the log into a *book* first: a book covers the
log up to the position in its name, never changes, and states what the entries up to that position
said. A region without a book never had a step: the first step writes an empty book before its
entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from memwal.format.paths import applied_dir, applied_key, parse_applied_name, wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_entry import EntryHead, TornEntryError, decode_head
from memwal.format.wal_layout import MAX_U64, AppliedSteps, decode_applied, encode_applied
from memwal.lsm.wal.abandon import read_abandoned
from memwal.lsm.wal.log import damaged_entry, find_tip
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectStore, create_settled

# The first message of an entry is a schema, some kilobytes; rows may follow it by the megabyte.
_HEAD_BYTES = 16 << 10
_ATTEMPTS = 5

MAX_SOURCE_BYTES = 512
"""Length of a source's name at most: every entry that is a step holds it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a source.

    Attributes
    ----------
    source : str
        Who writes: a query, a replication slot, a topic's partition.
    version : int
        Which step: grows from one to the next.

    Raises
    ------
    InvalidInputError
        The name is empty or too long, or the version is no unsigned 64-bit integer.
    """

    source: str
    version: int

    def __post_init__(self) -> None:
        if not self.source or len(self.source.encode()) > MAX_SOURCE_BYTES:
            raise InvalidInputError(
                f"the name of a source has 1 to {MAX_SOURCE_BYTES} bytes, got "
                f"{len(self.source.encode())}"
            )
        if not 0 <= self.version <= MAX_U64:
            raise InvalidInputError(
                f"version {self.version} of {self.source!r} is not an unsigned 64-bit integer"
            )


@dataclass(frozen=True, slots=True)
class Applied:
    """What a region tells of its steps.

    Attributes
    ----------
    steps : mapping of str to int
        The newest one of each source.
    position, epoch : int
        The newest entry that is a step, and the claim that wrote it; 0 where only a book tells.
    """

    steps: AppliedSteps
    position: int = 0
    epoch: int = 0


def look_up(store: ObjectStore, manifest: RegionManifest) -> Applied | None:
    """What a region tells of its steps, without a claim."""
    seen = max(manifest.replay_after, manifest.wal_last_seen)
    tip = find_tip(store, manifest.region_id, start=seen + 1)
    return read_applied(store, manifest.region_id, tip=tip)


def is_through(store: ObjectStore, region_id: UUID, step: Step) -> bool:
    """Whether a region has a step, and nobody has to claim it for the rows to be seen.

    They are flushed, or another writer claimed the region since, which has them.
    """
    manifest = RegionManifestStore(store, region_id).read_latest()
    if manifest is None:
        return False
    found = look_up(store, manifest)
    if found is None or found.steps.get(step.source, -1) < step.version:
        return False
    return found.position <= manifest.replay_after or found.epoch < manifest.writer_epoch


def read_applied(store: ObjectStore, region_id: UUID, *, tip: int) -> Applied | None:
    """The newest step of each source that a region has.

    Parameters
    ----------
    tip : int
        First position of the log that does not count.

    Returns
    -------
    Applied or None
        None: the region never had a step, and no book.

    Raises
    ------
    CorruptDataError
        An entry that may have told of steps is missing or damaged, and was not given up.
    """
    for _ in range(_ATTEMPTS):
        book = _newest_book(store, region_id)
        if book is None:
            return None
        try:
            found = _newest_in_log(store, region_id, after=book, before=tip)
            if found is not None:
                return found
            key = applied_key(region_id, book)
            return Applied(decode_applied(store.get(key), name=key))
        except ObjectNotFoundError:
            # A collector wrote another book and took what this look still wanted.
            if _newest_book(store, region_id) == book:
                raise
    raise OutcomeUnknownError(
        f"the log of region {region_id} is collected faster than it is read; try again"
    )


def open_book(store: ObjectStore, region_id: UUID, *, tip: int) -> None:
    """Announce that a region will have steps, before its first one.

    Parameters
    ----------
    tip : int
        Position behind all entries of the log. Steps before it are forgotten.
    """
    _write_book(store, region_id, tip - 1, {})


def keep_applied(store: ObjectStore, region_id: UUID, *, until: int) -> None:
    """Write down what entries up to a position tell of steps, before they are deleted.

    Costs a listing where the region never had a step. Older books go.

    Raises
    ------
    CorruptDataError
        See :func:`read_applied`. Nothing may be deleted.
    """
    book = _newest_book(store, region_id)
    if book is None:
        return
    if book < until:
        applied = read_applied(store, region_id, tip=until + 1)
        _write_book(store, region_id, until, {} if applied is None else applied.steps)
    store.delete_many(applied_key(region_id, old) for old in _books(store, region_id)[:-1])


def _newest_in_log(
    store: ObjectStore, region_id: UUID, *, after: int, before: int
) -> Applied | None:
    """What the newest entry between two positions tells that is a step."""
    rows_at: int | None = None
    for position in range(before - 1, after, -1):
        try:
            head = _read_head(store, region_id, position)
        except TornEntryError as error:
            # As a replay has it: torn where no rows follow, it was lost before it was safe.
            if rows_at is None or _is_given_up(store, region_id, position):
                continue
            raise damaged_entry(region_id, position, behind=rows_at) from error
        except ObjectNotFoundError:
            if _is_given_up(store, region_id, position):
                continue
            if _newest_book(store, region_id) != after:
                raise
            raise _lost(region_id, position, tip=before) from None
        if head.applied:
            return Applied(head.applied, position, head.writer_epoch)
        if not head.is_sentinel and rows_at is None:
            rows_at = position
    return None


def _lost(region_id: UUID, position: int, *, tip: int) -> CorruptDataError:
    return CorruptDataError(
        f"{wal_key(region_id, position)} is missing, and may have told which steps region "
        f"{region_id} has: a step that comes again could be written twice. Restore it. Where no "
        "source will repeat what it did before now, begin a new account instead: "
        f"memwal.lsm.wal.applied_steps.open_book(table.location.store, region_id, tip={tip})"
    )


def _read_head(store: ObjectStore, region_id: UUID, position: int) -> EntryHead:
    key = wal_key(region_id, position)
    length = _HEAD_BYTES
    while True:
        found = decode_head(store.get_range(key, start=0, length=length), name=key)
        if isinstance(found, EntryHead):
            return found
        if found <= length:
            raise TornEntryError(f"WAL entry {key} is torn: it ends within its schema")
        length = found


def _is_given_up(store: ObjectStore, region_id: UUID, position: int) -> bool:
    return any(
        record.first_position <= position <= record.last_position
        for record in read_abandoned(store, region_id)
    )


def _write_book(store: ObjectStore, region_id: UUID, position: int, applied: AppliedSteps) -> None:
    data = encode_applied(applied)
    # Two that cover the same log say the same.
    other = create_settled(store, applied_key(region_id, position), data)
    if other is not None:
        raise CorruptDataError(
            f"{applied_key(region_id, position)} says {other[:100]!r} of a log that says "
            f"{data[:100]!r}; keep both and call a human"
        )


def _newest_book(store: ObjectStore, region_id: UUID) -> int | None:
    books = _books(store, region_id)
    return books[-1] if books else None


def _books(store: ObjectStore, region_id: UUID) -> list[int]:
    """Positions that books cover, ascending."""
    names = (info.key.rpartition("/")[2] for info in store.list(applied_dir(region_id)))
    return sorted(p for name in names if (p := parse_applied_name(name)) is not None)
