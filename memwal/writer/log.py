"""The write-ahead log of one region: finding its tip, reading it, appending to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from memwal.errors import (
    ConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    RegionFencedError,
)
from memwal.format.names import wal_key
from memwal.format.wal_entry import (
    TornEntryError,
    WalEntry,
    decode_entry,
    encode_entry,
    encode_sentinel,
)
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

    A torn entry at the tip counts as absent: it was never acknowledged.

    Raises
    ------
    RegionFencedError
        An entry has a higher epoch than ``epoch``: whoever reads is fenced itself.
    CorruptDataError
        A torn entry has others behind it.
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
            if store.exists(wal_key(region_id, position + 1)):
                raise
            return
        if entry.writer_epoch > epoch:
            raise _fenced(region_id, epoch, entry.writer_epoch)
        yield position, entry


def fence(store: ObjectStore, region_id: UUID, *, epoch: int, writer_id: str, start: int) -> int:
    """Put the fence sentinel at the tip and return its position.

    From then on a writer with a lower epoch finds a higher one where it wants to append.
    """
    data = encode_sentinel(writer_epoch=epoch, writer_id=writer_id)
    position = find_tip(store, region_id, start=start)
    while _take(store, region_id, position, data, epoch) is not None:
        position += 1
    return position


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a group of writes went, and the foreign entries that had to be taken up before it."""

    position: int
    absorbed: tuple[pa.RecordBatch, ...]


class LogAppender:
    """Appends entries with one writer's epoch.

    Parameters
    ----------
    next_position : int
        First free position, as far as known.
    verify_epoch : callable
        Raises RegionFencedError when the region was claimed by somebody else.
    check_interval : float
        Seconds for which a successful ``verify_epoch`` is relied on.
    adopt : callable
        Makes stored rows of a foreign entry's batch.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        region_id: UUID,
        *,
        epoch: int,
        writer_id: str,
        next_position: int,
        schema: pa.Schema,
        verify_epoch: Callable[[], None],
        check_interval: float,
        adopt: Callable[[pa.RecordBatch], list[pa.RecordBatch]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._region_id = region_id
        self._epoch = epoch
        self._writer_id = writer_id
        self._schema = schema
        self._verify_epoch = verify_epoch
        self._check_interval = check_interval
        self._adopt = adopt
        self._clock = clock
        # Never yet: a claim may have paused on its way, too.
        self._verified_at = -math.inf
        self.next_position = next_position

    def append(self, batches: Sequence[pa.RecordBatch], *, generation: int) -> Appended:
        """Make a group of writes durable as one entry.

        A position that is taken by a lower epoch holds rows that nobody has replayed: they go
        into our entry, before our own, so that they are neither lost nor out of order.

        Raises
        ------
        RegionFencedError
            Another writer claimed the region. The group may be in the log all the same, and its
            rows then belong to what the other writer replays; they are not acknowledged.
        OutcomeUnknownError
            The store does not tell whether the entry is there. Nothing may be appended after it.
        """
        rows = list(batches)
        absorbed: list[pa.RecordBatch] = []
        while True:
            data = memoryview(
                encode_entry(
                    absorbed + rows,
                    schema=self._schema,
                    writer_epoch=self._epoch,
                    generation=generation,
                    writer_id=self._writer_id,
                )
            )
            position = self.next_position
            foreign = _take(self._store, self._region_id, position, data, self._epoch)
            self.next_position = position + 1
            if foreign is None:
                break
            for batch in foreign.batches:
                absorbed += self._adopt(batch)
        self._check_epoch()
        return Appended(position=position, absorbed=tuple(absorbed))

    def _check_epoch(self) -> None:
        """Look at the epoch again unless that was done a moment ago.

        A writer that slept since its last look may have been fenced, and the sentinel that would
        have stopped it may have been collected: then its entry lies behind everything that
        anybody will replay, and must not be acknowledged.
        """
        now = self._clock()
        if now - self._verified_at >= self._check_interval:
            self._verify_epoch()
            self._verified_at = now


def _take(
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
            if store.exists(wal_key(region_id, position + 1)):
                raise CorruptDataError(
                    f"{key} is damaged and has entries behind it; nothing was changed, "
                    "restore it from a backup"
                ) from error
            try:
                store.replace(key, data, expected=stored)
            except ConflictError:
                continue
            return None
        if entry.writer_epoch > epoch:
            raise _fenced(region_id, epoch, entry.writer_epoch)
        return entry


def _fenced(region_id: UUID, epoch: int, other: int) -> RegionFencedError:
    return RegionFencedError(
        f"region {region_id} was claimed by another writer (epoch {other}, ours is {epoch}); "
        "open a new writer to claim it back"
    )
