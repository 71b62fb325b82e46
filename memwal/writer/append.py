"""Appending to the write-ahead log of one region, with one writer's epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from memwal.format.names import wal_key
from memwal.format.wal_entry import decode_entry, encode_entry
from memwal.storage.base import ObjectStore
from memwal.writer.log import take

_CHECK_ATTEMPTS = 5


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
            foreign = take(self._store, self._region_id, position, data, self._epoch)
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
