"""What a claim takes over: the rows of the log that no flushed generation has (spec: WAL Replay).

The whole log is read once before anything is done with it, so that a log that is damaged changes
nothing. Meanwhile its rows stay in memory, up to a budget; of a log that is larger only the bounds
of its generations are kept, and they are read again one by one, to be flushed as they come.

A generation is flushed whole or not at all: entries behind a seal that still carried its number
would be skipped by the next replay. For the same reason a generation ends where no later entry has
its number or a lower one, which can be later than where the next number begins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from memwal.format.wal_entry import WalEntry, encode_sentinel
from memwal.storage.base import ObjectStore
from memwal.writer.claim import Claim
from memwal.writer.generation_rows import GenerationRows, TableRows
from memwal.writer.log import READ_AHEAD_BYTES, take
from memwal.writer.logged_rows import Joiner, LoggedRows, RowLog
from memwal.writer.rows import RowShape

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
