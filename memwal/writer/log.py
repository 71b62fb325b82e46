"""The write-ahead log of one region: finding its tip, reading it, appending to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import (
    ConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RegionFencedError,
    StoreError,
    StoreUnavailableError,
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

_CHECK_ATTEMPTS = 5


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
            raise _fenced(region_id, epoch, entry.writer_epoch)
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
    while _take(store, region_id, position, data, epoch) is not None:
        # The older writer may be faster than one attempt here: look for the tip again rather than
        # walk behind it.
        position = find_tip(store, region_id, start=position + 1)
    return position


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry that is durable and acknowledged.

    Attributes
    ----------
    position : int
        Where it stands in the log.
    batches : tuple of pyarrow.RecordBatch
        Its rows as they stand there, in memory of their own: foreign rows that had to be taken
        up first, then those of the group. What callers do to their buffers later does not matter.
    """

    position: int
    batches: tuple[pa.RecordBatch, ...]


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
        self._foreign: list[pa.RecordBatch] = []
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
            The store does not tell whether the entry is there, or whether the region is still
            ours. Nothing may be appended after it.
        StoreFullError, StoreAccessError
            The store refused; the position is still free.
        """
        while True:
            data = memoryview(
                encode_entry(
                    [*self._foreign, *batches],
                    schema=self._schema,
                    writer_epoch=self._epoch,
                    generation=generation,
                    writer_id=self._writer_id,
                )
            )
            position = self.next_position
            foreign = _take(self._store, self._region_id, position, data, self._epoch)
            if foreign is not None:
                # Kept until an entry of ours has them: their position is behind us from now on.
                self._foreign += [rows for batch in foreign.batches for rows in self._adopt(batch)]
            self.next_position = position + 1
            if foreign is None:
                break
        self._check_epoch()
        self._foreign = []
        key = wal_key(self._region_id, position)
        return Appended(position=position, batches=decode_entry(data, name=key).batches)

    def _check_epoch(self) -> None:
        """Look at the epoch again unless that was done a moment ago.

        A writer that slept since its last look may have been fenced, and the sentinel that would
        have stopped it may have been collected: then its entry lies behind everything that
        anybody will replay, and must not be acknowledged.
        """
        now = self._clock()
        if now - self._verified_at < self._check_interval:
            return
        retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_attempt(_CHECK_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.05, max=2),
            reraise=True,
        )
        try:
            retrying(self._verify_epoch)
        except StoreError as error:
            raise OutcomeUnknownError(
                f"an entry of region {self._region_id} is in the log, but the store does not tell "
                "whether the region is still ours; open a new writer"
            ) from error
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
            raise _fenced(region_id, epoch, entry.writer_epoch)
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


def _fenced(region_id: UUID, epoch: int, other: int) -> RegionFencedError:
    return RegionFencedError(
        f"region {region_id} was claimed by another writer (epoch {other}, ours is {epoch}); "
        "open a new writer to claim it back"
    )
