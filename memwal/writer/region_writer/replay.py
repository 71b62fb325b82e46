"""Replay at a claim: rows of the log that no flushed generation has (spec: WAL Replay).

The whole log is read once before anything is done with it, so a damaged log changes nothing.
Meanwhile its rows stay in memory, up to a budget; of a log that is larger only the bounds of its
generations are kept, and its rows are read again one generation at a time, to be flushed as they
come.

A generation is flushed whole or not at all: entries behind a seal that still carried its number
would be skipped by the next replay. For the same reason a generation ends where no later entry has
its number or a lower one, which can be later than where the next number begins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.paths import wal_key
from memwal.format.wal_encoder import encode_sentinel
from memwal.format.wal_entry import WalEntry
from memwal.lsm.flush.rows import GenerationRows, TableRows
from memwal.lsm.wal.claim import Claim
from memwal.lsm.wal.log import READ_AHEAD_BYTES, LogSurvey, needs_replay, read_log, take
from memwal.region.rows import key_column
from memwal.storage.object_store import ObjectStore
from memwal.writer.region_writer.rows import RowShape

# Entries with few rows are joined up to this: each batch costs some kilobytes beside its rows, and
# keeps the whole entry in memory that it was read from.
_JOIN_BYTES = 1 << 20
_JOIN_BATCHES = 1024
_BATCH_COST = 8 << 10


@dataclass(frozen=True, slots=True, eq=False)
class RowLog:
    """A log as a source of stored rows.

    Attributes
    ----------
    shape : RowShape
        Brings rows of other clients, and of earlier schemas, into the stored form.
    epoch : int
        Whose entries are read: its own, and those of earlier ones.
    generation : int
        Entries that say an earlier generation than this are left out.
    survey : LogSurvey or None
        Made anew with each reading when it is not given.
    read_ahead_bytes : int
        How much of the log is read before its turn.
    """

    store: ObjectStore
    region_id: UUID
    shape: RowShape
    epoch: int
    generation: int
    survey: LogSurvey | None
    read_ahead_bytes: int = READ_AHEAD_BYTES

    def entries(self, *, after: int, last: int) -> Iterator[tuple[int, WalEntry]]:
        """Every entry that is not torn."""
        return read_log(
            self.store,
            self.region_id,
            after=after,
            before=last + 1,
            epoch=self.epoch,
            survey=self.survey,
            max_bytes=self.read_ahead_bytes,
        )

    def takes_over(self, entry: WalEntry) -> bool:
        """Whether an entry has rows of the generation or later ones."""
        return needs_replay(entry, current_generation=self.generation)

    def adopted(self, position: int, entry: WalEntry) -> list[pa.RecordBatch]:
        """The entry's rows in the stored form."""
        try:
            return [rows for batch in entry.batches for rows in self.shape.adopt(batch)]
        except InvalidInputError as error:
            raise CorruptDataError(
                f"the rows of {wal_key(self.region_id, position)} do not fit the table: {error}. "
                "Bring the table's schema back into a form that they fit; what no generation has "
                "yet can be given up by opening the region's writer with replay=False"
            ) from error

    def rows(self, *, after: int, last: int) -> Iterator[pa.RecordBatch]:
        """Rows of the generation and later ones, in the stored form."""
        for position, entry in self.entries(after=after, last=last):
            if self.takes_over(entry):
                yield from self.adopted(position, entry)


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRows:
    """Rows that are read from the log each time.

    See :class:`memwal.lsm.flush.rows.GenerationRows`.

    Parameters
    ----------
    after, last : int
        The rows are those of the entries behind ``after``, up to ``last``.
    """

    log: RowLog
    after: int
    last: int

    @property
    def schema(self) -> pa.Schema:
        """The stored form."""
        return self.log.shape.schema

    def keys(self) -> pa.Array:
        """The key of every row; nothing else stays in memory."""
        primary_key = self.log.shape.primary_key
        return pa.concat_arrays(
            [_owned(key_column(batch, primary_key)) for batch in self.batches()]
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, oldest first, small batches joined."""
        joiner = Joiner(self.schema)
        for batch in self.log.rows(after=self.after, last=self.last):
            yield from joiner.add(batch)
        yield from joiner.finish()


class Joiner:
    """Makes fewer batches of small ones, in the same order.

    Batches with dictionaries stay as they are: joining could meet more values than the type of
    their indices can tell apart.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._joins = not _has_dictionaries(schema)
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Take a batch; what is complete comes back."""
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        full = self._bytes >= _JOIN_BYTES or len(self._waiting) >= _JOIN_BATCHES
        return self.finish() if full else []

    def cost(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Bytes that batches take in memory once they were joined."""
        overhead = 0 if self._joins else _BATCH_COST * len(batches)
        return overhead + sum(int(batch.nbytes) for batch in batches)

    def finish(self) -> list[pa.RecordBatch]:
        """What is left."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if len(waiting) < 2 or not self._joins:
            return waiting
        return list(pa.Table.from_batches(waiting).combine_chunks().to_batches())


def _owned(array: pa.Array) -> pa.Array:
    """A copy that does not keep the batch in memory which the array is from."""
    return pa.concat_arrays([array, array.slice(0, 0)])


def _has_dictionaries(fields: Iterable[pa.Field]) -> bool:
    return any(
        pa.types.is_dictionary(field.type)
        or _has_dictionaries(field.type.field(n) for n in range(field.type.num_fields))
        for field in fields
    )


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedGeneration:
    """Rows of one generation that stand in the log only.

    Attributes
    ----------
    generation : int
        Its number.
    last_position : int
        Of the newest entry with its rows; what ``replay_after`` becomes with its flush.
    rows, bytes, log_batches : int
        Rows, superseded ones included, what they take in memory, and in how many batches the log
        has them. In memory there are fewer.
    is_last : bool
        Whether none follows: the rows to come may join this one unless it has to be flushed.
    contents : GenerationRows
        The rows, to be flushed from.
    batches : tuple of pyarrow.RecordBatch or None
        The rows, where those of all generations together fit the budget. None: the generation has
        to be flushed, and named in the manifest, before the next one is asked for.
    """

    generation: int
    last_position: int
    rows: int
    bytes: int
    log_batches: int
    is_last: bool
    contents: GenerationRows
    batches: tuple[pa.RecordBatch, ...] | None


def replay(
    store: ObjectStore,
    claim: Claim,
    *,
    shape: RowShape,
    max_bytes: int,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
) -> Iterator[ReplayedGeneration]:
    """Generations to take over, in ascending order.

    Torn entries that count as absent are replaced by sentinels, so that other clients can read
    the log too.

    Parameters
    ----------
    shape : RowShape
        Brings rows of other clients, and of earlier schemas, into the stored form.
    max_bytes : int
        Rows that are kept in memory. Beside them there are at most what is read ahead, an entry,
        and the keys of one generation.
    read_ahead_bytes : int, default 8 MiB
        How much of the log is read before its turn.

    Raises
    ------
    RegionFencedError
        The region was claimed by another writer.
    CorruptDataError
        An entry is missing, damaged, does not say what it must, or does not fit the table. Nothing
        was flushed.
    """
    log = RowLog(
        store,
        claim.manifest.region_id,
        shape,
        claim.manifest.writer_epoch,
        claim.manifest.current_generation,
        claim.survey,
        read_ahead_bytes,
    )
    runs, torn = _read_runs(log, claim, max_bytes)
    _replace_torn(store, claim, torn)
    for number, run in enumerate(runs):
        is_last = number == len(runs) - 1
        if is_last and run.held is None and run.bytes <= max_bytes:
            # What came before it is flushed by now, and out of memory.
            run.held = _Held(shape.schema)
            run.held.add(log.rows(after=run.after, last=run.last_position))
        batches = None if run.held is None else run.held.finish()
        yield ReplayedGeneration(
            generation=run.generation,
            last_position=run.last_position,
            rows=run.rows,
            bytes=run.bytes,
            log_batches=run.batches,
            is_last=is_last,
            contents=(
                LoggedRows(log, run.after, run.last_position)
                if batches is None
                else TableRows(pa.Table.from_batches(batches, shape.schema), shape.primary_key)
            ),
            batches=batches,
        )


class _Held:
    """Rows of a generation that stay in memory."""

    def __init__(self, schema: pa.Schema) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._joiner = Joiner(schema)

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self._batches += self._joiner.add(batch)

    def finish(self) -> tuple[pa.RecordBatch, ...]:
        self._batches += self._joiner.finish()
        return tuple(self._batches)


@dataclass(slots=True, eq=False)
class _Run:
    """Neighbouring entries that go into one generation.

    Attributes
    ----------
    after : int
        Position before its first entry.
    bytes : int
        What its rows take in memory.
    held : _Held or None
        Its rows; None when they are to be read again.
    """

    generation: int
    after: int
    held: _Held | None
    last_position: int = 0
    rows: int = 0
    batches: int = 0
    bytes: int = 0

    def add(self, position: int, batches: Sequence[pa.RecordBatch], cost: int) -> None:
        self.last_position = position
        self.rows += sum(batch.num_rows for batch in batches)
        self.batches += len(batches)
        self.bytes += cost
        if self.held is not None:
            self.held.add(batches)

    def join(self, later: _Run) -> None:
        """Take the entries of the next run, too."""
        self.last_position = later.last_position
        self.rows += later.rows
        self.batches += later.batches
        self.bytes += later.bytes
        if self.held is not None and later.held is not None:
            self.held.add(later.held.finish())


def _read_runs(log: RowLog, claim: Claim, max_bytes: int) -> tuple[list[_Run], list[int]]:
    """Read the whole log, and divide it into generations; also says which entries are torn."""
    joiner = Joiner(log.shape.schema)
    runs: list[_Run] = []
    torn: list[int] = []
    total, expected = 0, claim.manifest.replay_after + 1
    for position, entry in log.entries(after=expected - 1, last=claim.next_position - 1):
        torn += range(expected, position)
        expected = position + 1
        if not log.takes_over(entry):
            continue
        batches = log.adopted(position, entry)
        cost = joiner.cost(batches)
        total += cost
        run = _run_of(runs, entry, position, log)
        if total > max_bytes:
            for large in runs:
                large.held = None
        run.add(position, batches, cost)
    return runs, torn


def _run_of(runs: list[_Run], entry: WalEntry, position: int, log: RowLog) -> _Run:
    """The run that an entry goes into: the last one, joined with those before it or begun anew."""
    generation = entry.generation
    if generation is None:
        generation = runs[-1].generation if runs else log.generation
    while len(runs) > 1 and runs[-2].generation >= generation:
        later = runs.pop()
        runs[-1].join(later)
    if not runs or runs[-1].generation < generation:
        runs.append(_Run(generation, position - 1, _Held(log.shape.schema)))
    return runs[-1]


def _replace_torn(store: ObjectStore, claim: Claim, positions: Sequence[int]) -> None:
    """Put sentinels in the place of entries that count as absent."""
    if not positions:
        return
    region_id = claim.manifest.region_id
    logger.warning(
        "entries %s of the log of region %s are torn, and nothing but sentinels follows them: "
        "they were lost before they were safe, and are replaced",
        ", ".join(map(str, positions)),
        region_id,
    )
    epoch = claim.manifest.writer_epoch
    data = encode_sentinel(writer_epoch=epoch, writer_id=claim.writer_id)
    for position in positions:
        take(store, region_id, position, data, epoch)
