"""Append to the write-ahead log of one region under one writer's epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from memwal.format.wal_encoder import EncodedEntry, EntryEncoder
from memwal.format.wal_layout import AppliedSteps, newest_steps
from memwal.lsm.wal.log import take
from memwal.storage.object_store import ObjectStore
from memwal.util.clock import boot_seconds

Adopt = Callable[[pa.RecordBatch], list[pa.RecordBatch]]

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


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """An entry on its way into the log.

    Attributes
    ----------
    position : int
        Where it is to stand.
    generation : int
    batches : tuple of pyarrow.RecordBatch
        The group's rows as they were given.
    entry : EncodedEntry
        Those, behind foreign rows that had to be taken up.
    applied : mapping of str to int or None
        The newest step of each source that the region has, if the group is one.
    """

    position: int
    generation: int
    batches: tuple[pa.RecordBatch, ...]
    entry: EncodedEntry
    applied: AppliedSteps | None = None


class LogAppender:
    """Appends entries with one writer's epoch.

    Parameters
    ----------
    next_position : int
        First free position, as far as known.
    schema : pyarrow.Schema
        Of the rows.
    adopt : callable
        Makes stored rows of a foreign entry's batch.
    verify_epoch : callable
        Raises RegionFencedError when the region was claimed by somebody else.
    verified_at : float
        When the region was last known to be ours, by ``clock``: a moment before ``verify_epoch``,
        or a look like it, was started and then succeeded. Never yet by default, since a claim may
        have paused on its way, too; the first append then looks.
    check_interval : float
        Seconds for which a successful ``verify_epoch`` is relied on.
    clock : callable
        Seconds that go on while the machine sleeps.
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
        adopt: Adopt,
        verify_epoch: Callable[[], None],
        check_interval: float,
        verified_at: float = -math.inf,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._store = store
        self._region_id = region_id
        self._epoch = epoch
        self._writer_id = writer_id
        self._verify_epoch = verify_epoch
        self._check_interval = check_interval
        self._clock = clock
        self._verified_at = verified_at
        self._foreign: list[pa.RecordBatch] = []
        self._foreign_steps: dict[str, int] = {}
        self.next_position = next_position
        self.use(schema, adopt)

    def use(self, schema: pa.Schema, adopt: Adopt) -> None:
        """Take rows of another schema from now on: the table's columns have changed."""
        self._adopt = adopt
        self._encoder = EntryEncoder(schema, writer_epoch=self._epoch, writer_id=self._writer_id)
        self._foreign = [rows for batch in self._foreign for rows in adopt(batch)]

    def append(self, batches: Sequence[pa.RecordBatch], *, generation: int) -> Appended:
        """Make a group of writes durable as one entry.

        The same as :meth:`prepare`, :meth:`put` and :meth:`acknowledge`, and with their errors.
        Who writes into many logs at once prepares and acknowledges them one after the other, and
        puts them side by side: only then there is something to wait for.
        """
        return self.acknowledge(self.put(self.prepare(batches, generation=generation)))

    @property
    def foreign_steps(self) -> AppliedSteps:
        """Steps of the entries that had to be taken up."""
        return dict(self._foreign_steps)

    def prepare(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: int,
        applied: AppliedSteps | None = None,
    ) -> PreparedEntry:
        """Encode a group of writes; nothing is stored yet.

        Parameters
        ----------
        applied : mapping of str to int, optional
            The newest step of each source that the region has with this group, if it is one.

        Raises
        ------
        InvalidInputError
            A batch has another schema.
        """
        if applied:
            applied = newest_steps(applied, self._foreign_steps)
        rows = [*self._foreign, *batches]
        entry = self._encoder.encode(rows, generation=generation, applied=applied)
        return PreparedEntry(self.next_position, generation, tuple(batches), entry, applied)

    def put(self, prepared: PreparedEntry) -> PreparedEntry:
        """Store an entry at the next position, and return it as it stands in the log.

        A position that is taken by a lower epoch holds rows that nobody has replayed: they go
        into our entry, before our own, so that they are neither lost nor out of order.

        Raises
        ------
        RegionFencedError
            Another writer claimed the region. The group may be in the log all the same, and its
            rows then belong to what the other writer replays; they are not acknowledged.
        OutcomeUnknownError
            The store does not tell whether the entry is there. Nothing may be appended after it.
        StoreFullError, StoreAccessError
            The store refused; the position is still free.
        """
        while True:
            position, data = prepared.position, prepared.entry.data
            foreign = take(self._store, self._region_id, position, data, self._epoch)
            if foreign is not None:
                # Kept until an entry of ours has them: their position is behind us from now on.
                self._foreign += [rows for batch in foreign.batches for rows in self._adopt(batch)]
                self._foreign_steps = newest_steps(self._foreign_steps, foreign.applied)
            self.next_position = position + 1
            if foreign is None:
                return prepared
            prepared = self.prepare(
                prepared.batches, generation=prepared.generation, applied=prepared.applied
            )

    def acknowledge(self, stored: PreparedEntry) -> Appended:
        """Make sure that the region was still ours when an entry was stored.

        Raises
        ------
        RegionFencedError
            It was not; the rows belong to what the other writer replays, if they are in its log.
        OutcomeUnknownError
            The store does not tell. Nothing may be appended after it.
        """
        self._check_epoch()
        self._foreign = []
        return Appended(position=stored.position, batches=stored.entry.batches)

    def _check_epoch(self) -> None:
        """Look at the epoch again unless that was done a moment ago.

        A writer that slept since its last look may have been fenced, and the sentinel that would
        have stopped it may have been collected: then its entry lies behind everything that
        anybody will replay, and must not be acknowledged.
        """
        now = self._clock()
        if now - self._verified_at < self._check_interval:
            return
        try:
            self._verify_epoch()
        except StoreUnavailableError:
            self._check_epoch_again()
        except StoreError as error:
            raise self._unverified() from error
        self._verified_at = now

    def _check_epoch_again(self) -> None:
        retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_attempt(_CHECK_ATTEMPTS - 1),
            wait=wait_random_exponential(multiplier=0.05, max=2),
            reraise=True,
        )
        try:
            retrying(self._verify_epoch)
        except StoreError as error:
            raise self._unverified() from error

    def _unverified(self) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"an entry of region {self._region_id} is in the log, but the store does not tell "
            "whether the region is still ours; open a new writer"
        )


def joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Many small batches as one, in their order: an entry's cost goes by its batches.

    Parameters
    ----------
    batches : sequence of pyarrow.RecordBatch
        All in one schema. Columns may have dictionaries of their own, which become one.

    Returns
    -------
    list of pyarrow.RecordBatch
        One batch; the given ones where their rows do not fit into one, such as more than 2 GiB of
        text.
    """
    if len(batches) == 1:
        return [*batches]
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowInvalid:
        return [*batches]
