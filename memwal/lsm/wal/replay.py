"""Replay at a claim: rows of the log that no flushed generation has (spec: WAL Replay).

The whole log is read once before anything is done with its rows, so a damaged log changes nothing.
The rows stay in memory up to a budget. If the log is larger, only the bounds of its generations are
kept, and its rows are read again, one generation at a time, and flushed.

A generation is flushed whole or not at all: the next replay would skip entries behind a seal that
still carried its number. For the same reason a generation ends where no later entry has its number
or a lower one, which can be later than the first entry with the next number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar
from uuid import UUID

import pyarrow as pa

from memwal.errors import MemWalError
from memwal.format.paths import wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_encoder import encode_sentinel
from memwal.format.wal_entry import TornEntryError, WalEntry, decode_entry
from memwal.format.wal_layout import BlobTarget, blob_target, has_dictionaries
from memwal.lsm.flush.rows import GenerationRows, TableRows
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.claim import Claim
from memwal.lsm.wal.log import LogSurvey, needs_replay, put_entry, read_log
from memwal.lsm.wal.logged_rows import convert_entry, split_entry
from memwal.region.rows import key_column
from memwal.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

# Small batches are joined up to this size: each batch costs some kilobytes besides its rows, and
# keeps the whole log entry in memory that it was read from.
_JOIN_BYTES = 1 << 20
_JOIN_BATCHES = 1024
_BATCH_COST = 8 << 10


@dataclass(frozen=True, slots=True, eq=False)
class LogReader:
    """Reads the stored rows of a log."""

    store: ObjectStore
    region_id: UUID
    row_schema: RowSchema  # converts rows of other clients, and of earlier schemas, to stored rows
    epoch: int  # of the claim; an entry of a higher epoch fences it
    generation: int  # entries that record an earlier one are skipped
    survey: LogSurvey | None  # None to list the log with every read
    # Whether rows that cannot be stored are skipped, because they are in quarantine.
    skip_unusable: bool = False

    def entries(self, *, after: int, last: int) -> Iterator[tuple[int, WalEntry]]:
        """Yield every entry that is not torn, with its position."""
        return read_log(
            self.store,
            self.region_id,
            after=after,
            before=last + 1,
            epoch=self.epoch,
            survey=self.survey,
        )

    def convert(self, position: int, entry: WalEntry) -> list[pa.RecordBatch]:
        """Return the entry's rows as stored rows of the table."""
        if self.skip_unusable:
            return split_entry(self.row_schema, self.region_id, position, entry)[0]
        return convert_entry(self.row_schema, self.region_id, position, entry)

    def rows(self, *, after: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the stored rows of ``generation`` and later ones."""
        for position, entry in self.entries(after=after, last=last):
            if needs_replay(entry, current_generation=self.generation):
                yield from self.convert(position, entry)


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRows:
    """Rows of one generation, which the entries behind ``after``, up to ``last``, have.

    They are read from the log each time. Implements :class:`memwal.lsm.flush.rows.GenerationRows`.
    """

    log: LogReader
    after: int
    last: int

    @property
    def schema(self) -> pa.Schema:
        """Schema of stored rows."""
        return self.log.row_schema.schema

    def keys(self) -> pa.Array:
        """Return the key of every row. Only the keys are held in memory."""
        primary_key = self.log.row_schema.primary_key
        return pa.concat_arrays(
            [_copy_array(key_column(batch, primary_key)) for batch in self.batches()]
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, oldest first, with small batches joined."""
        joiner = BatchJoiner(self.schema)
        for batch in self.log.rows(after=self.after, last=self.last):
            yield from joiner.add(batch)
        yield from joiner.finish()


class BatchJoiner:
    """Joins small batches into fewer, larger ones, in the same order.

    Batches with dictionaries stay as they are: the joined dictionary could have more values than
    the index type can number.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._joins = not has_dictionaries(schema)
        self._pending: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Add a batch, and return the batches that are complete."""
        self._pending.append(batch)
        self._bytes += batch.get_total_buffer_size()
        is_full = self._bytes >= _JOIN_BYTES or len(self._pending) >= _JOIN_BATCHES
        return self.finish() if is_full else []

    def cost(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Return the bytes that batches take in memory after they were joined."""
        overhead = 0 if self._joins else _BATCH_COST * len(batches)
        # An entry is one batch, whose buffers are its own: their total is what nbytes finds in a
        # tenth of the time.
        return overhead + sum(int(batch.get_total_buffer_size()) for batch in batches)

    def finish(self) -> list[pa.RecordBatch]:
        """Return the remaining rows."""
        pending, self._pending, self._bytes = self._pending, [], 0
        if len(pending) < 2 or not self._joins:
            return pending
        return list(pa.Table.from_batches(pending).combine_chunks().to_batches())


def replay(
    store: ObjectStore,
    claim: Claim,
    *,
    row_schema: RowSchema,
    max_bytes: int,
    skip_unusable: bool = False,
) -> Iterator[ReplayedGeneration]:
    """Yield the unflushed generations of the log, in ascending order.

    Torn entries that were lost before they were durable are replaced by sentinels, so that other
    clients can read the log too.

    With ``skip_unusable``, rows that cannot be stored are skipped: the caller has put them into
    quarantine. A generation may then have no rows.

    ``max_bytes`` limits the memory for rows. Prefetched entries, one entry, and the keys of one
    generation come on top. Raises RegionFencedError if another writer claimed the region. Raises
    CorruptDataError if an entry is missing, is damaged, lacks required metadata, or does not fit
    the table: nothing was flushed then.
    """
    log = LogReader(
        store,
        claim.manifest.region_id,
        row_schema,
        claim.manifest.writer_epoch,
        claim.manifest.current_generation,
        claim.survey,
        skip_unusable,
    )
    runs, torn = _read_runs(log, claim, max_bytes)
    _replace_torn(store, claim, torn)
    for run in runs:
        if run is runs[-1] and run.in_memory is None and run.nbytes <= max_bytes:
            # The generations before it are flushed, and their rows are out of memory.
            run.in_memory = _InMemoryRows(row_schema.schema)
            run.in_memory.add(log.rows(after=run.after, last=run.last_position))
        yield run


def has_replayed(
    store: ObjectStore, claimed: RegionManifest, position: int, writer_id: str
) -> bool | None:
    """Return whether a claim found an entry that an earlier writer may have stored.

    ``claimed`` is the manifest of the claim. ``position`` is the one at which that writer tried to;
    the fence of a later claim is at or behind it. An entry there that every later claim replays is
    durable. None if that is not known: the position is flushed, so that the entry may have been
    stored behind a fence that was collected, where no claim replayed it.
    """
    if position <= claimed.replay_after:
        return None
    key = wal_key(claimed.region_id, position)
    try:
        entry = decode_entry(store.get(key), name=key)
    except (MemWalError, TornEntryError):
        return None  # flushed and collected since the claim, damaged, or out of reach
    if entry.writer_id != writer_id:
        return False
    return needs_replay(entry, current_generation=claimed.current_generation) or None


class _InMemoryRows:
    """Rows of a generation in memory, with small batches joined."""

    def __init__(self, schema: pa.Schema) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._joiner = BatchJoiner(schema)

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self._batches += self._joiner.add(batch)

    def finish(self) -> tuple[pa.RecordBatch, ...]:
        self._batches += self._joiner.finish()
        return tuple(self._batches)


class Run(Protocol):
    """Adjacent entries that go into one generation."""

    @property
    def generation(self) -> int:
        """Number of the generation."""

    def join(self, later: Self, /) -> None:
        """Append the entries of the next run."""


RunType = TypeVar("RunType", bound=Run)


def place(
    runs: list[RunType], generation: int | None, *, first: int, new: Callable[[int], RunType]
) -> RunType:
    """Return the run for the next entry: the last one, joined with earlier ones, or a new one.

    ``generation`` is the number that the entry records; an entry that records none belongs to the
    last run, or to generation ``first``. A run is joined with the one before it if that one's
    number is not below the entry's.
    """
    if generation is None:
        generation = runs[-1].generation if runs else first
    while len(runs) > 1 and runs[-2].generation >= generation:
        later = runs.pop()
        runs[-1].join(later)
    if not runs or runs[-1].generation < generation:
        runs.append(new(generation))
    return runs[-1]


@dataclass(slots=True, eq=False)
class ReplayedGeneration:
    """Rows of one generation that only the log has: those of adjacent entries."""

    log: LogReader
    generation: int
    after: int  # position before the first entry
    in_memory: _InMemoryRows | None  # None if the rows have to be read again
    last_position: int = 0  # of the newest entry with its rows; ``replay_after`` after its flush
    # Rows, including superseded ones, their size in memory, and their batches in the log. There are
    # fewer batches in memory.
    rows: int = 0
    nbytes: int = 0
    log_batches: int = 0
    # Generation that Lance is going to flush the rows into, if they have blobs.
    target: BlobTarget = field(default_factory=dict)

    @property
    def batches(self) -> tuple[pa.RecordBatch, ...] | None:
        """The rows, if those of all generations together fit the budget.

        If None, the caller of :func:`replay` has to flush and publish this generation before it
        asks for the next one.
        """
        return None if self.in_memory is None else self.in_memory.finish()

    @property
    def contents(self) -> GenerationRows:
        """Source of the rows for a flush."""
        batches, row_schema = self.batches, self.log.row_schema
        if batches is None:
            return LoggedRows(self.log, self.after, self.last_position)
        return TableRows(pa.Table.from_batches(batches, row_schema.schema), row_schema.primary_key)

    def add(self, position: int, batches: Sequence[pa.RecordBatch], cost: int) -> None:
        self.last_position = position
        self.rows += sum(batch.num_rows for batch in batches)
        self.log_batches += len(batches)
        self.nbytes += cost
        if self.in_memory is not None:
            self.in_memory.add(batches)

    def join(self, later: ReplayedGeneration) -> None:
        """Append the entries of the next run."""
        self.last_position = later.last_position
        self.rows += later.rows
        self.log_batches += later.log_batches
        self.nbytes += later.nbytes
        self.target = later.target or self.target
        if self.in_memory is not None and later.in_memory is not None:
            self.in_memory.add(later.in_memory.finish())


def _read_runs(
    log: LogReader, claim: Claim, max_bytes: int
) -> tuple[list[ReplayedGeneration], list[int]]:
    """Read the whole log; return its runs, and the positions of torn entries."""
    joiner = BatchJoiner(log.row_schema.schema)
    runs: list[ReplayedGeneration] = []
    torn: list[int] = []
    total, expected = 0, claim.manifest.replay_after + 1
    for position, entry in log.entries(after=expected - 1, last=claim.next_position - 1):
        torn += range(expected, position)
        expected = position + 1
        if not needs_replay(entry, current_generation=log.generation):
            continue
        batches = log.convert(position, entry)
        cost = joiner.cost(batches)
        total += cost

        def new_run(number: int, after: int = position - 1) -> ReplayedGeneration:
            return ReplayedGeneration(log, number, after, _InMemoryRows(log.row_schema.schema))

        run = place(runs, entry.generation, first=log.generation, new=new_run)
        if total > max_bytes:
            for other in runs:
                other.in_memory = None
        run.add(position, batches, cost)
        run.target = blob_target(entry.schema.metadata) or run.target
    return runs, torn


def _replace_torn(store: ObjectStore, claim: Claim, positions: Sequence[int]) -> None:
    if not positions:
        return
    region_id = claim.manifest.region_id
    logger.warning(
        "entries %s of the log of region %s are torn, and nothing but sentinels follows them: "
        "they were lost before they were durable, and are replaced",
        ", ".join(map(str, positions)),
        region_id,
    )
    epoch = claim.manifest.writer_epoch
    data = encode_sentinel(writer_epoch=epoch, writer_id=claim.writer_id)
    for position in positions:
        put_entry(store, region_id, position, data, epoch)


def _copy_array(array: pa.Array) -> pa.Array:
    """Copy an array, so that it does not keep the batch in memory that it is from."""
    return pa.concat_arrays([array, array.slice(0, 0)])
