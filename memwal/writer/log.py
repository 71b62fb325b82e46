"""The write-ahead log of one region: finding its tip, reading it, taking a position in it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from memwal.errors import (
    ConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    RegionFencedError,
)
from memwal.format.names import wal_key
from memwal.format.wal_entry import TornEntryError, WalEntry, decode_entry, encode_sentinel
from memwal.storage.base import Data, ObjectStore
from memwal.storage.settled import create_settled


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


def read_log(
    store: ObjectStore, region_id: UUID, *, after: int, epoch: int
) -> Iterator[tuple[int, WalEntry]]:
    """Entries behind position ``after``, in order, up to the first free position.

    Torn entries at the end count as absent: they were lost before they were safe.

    Raises
    ------
    RegionFencedError
        An entry has a higher epoch than ``epoch``: whoever reads is fenced itself.
    CorruptDataError
        A torn entry has whole ones behind it.
    """
    position = after
    while True:
        position += 1
        key = wal_key(region_id, position)
        try:
            entry = decode_entry(store.get(key), name=key)
        except ObjectNotFoundError:
            return
        except TornEntryError:
            if not _torn_to_the_end(store, region_id, position + 1):
                raise
            return
        if entry.writer_epoch > epoch:
            raise fenced_by(region_id, epoch, entry.writer_epoch)
        yield position, entry


def fence(
    store: ObjectStore, region_id: UUID, *, epoch: int, writer_id: str, after: int, hint: int
) -> int:
    """Put the fence sentinel at the tip and return its position.

    From then on a writer with a lower epoch finds a higher one where it wants to append.

    Parameters
    ----------
    after : int
        Last position that flushed generations cover.
    hint : int
        A position that was taken already, or 0.
    """
    data = encode_sentinel(writer_epoch=epoch, writer_id=writer_id)
    position = find_tip(store, region_id, start=max(after, hint) + 1)
    while position - 1 > after and _is_torn(store, wal_key(region_id, position - 1)):
        position -= 1
    while take(store, region_id, position, data, epoch) is not None:
        # The older writer may be faster than one attempt here: look for the tip again rather than
        # walk behind it.
        position = find_tip(store, region_id, start=position + 1)
    return position


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
            if not _torn_to_the_end(store, region_id, position + 1):
                raise CorruptDataError(
                    f"{key} is damaged and has whole entries behind it; nothing was changed, "
                    "restore it from a backup"
                ) from error
            try:
                store.replace(key, data, expected=stored)
            except ConflictError:
                continue
            return None
        if entry.writer_epoch > epoch:
            raise fenced_by(region_id, epoch, entry.writer_epoch)
        return entry


def _torn_to_the_end(store: ObjectStore, region_id: UUID, position: int) -> bool:
    """Whether nothing but torn entries stands at and behind a position.

    A machine that crashes can leave several files empty whose writer did not sync them.
    """
    while True:
        key = wal_key(region_id, position)
        if not store.exists(key):
            return True
        if not _is_torn(store, key):
            return False
        position += 1


def _is_torn(store: ObjectStore, key: str) -> bool:
    try:
        decode_entry(store.get(key), name=key)
    except TornEntryError:
        return True
    except ObjectNotFoundError:
        return False
    return False


def fenced_by(region_id: UUID, epoch: int, other: int) -> RegionFencedError:
    return RegionFencedError(
        f"region {region_id} was claimed by another writer (epoch {other}, ours is {epoch}); "
        "open a new writer to claim it back"
    )
