"""Reading the rows of a log, again and again, without keeping them in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.names import wal_key
from memwal.format.wal_entry import WalEntry
from memwal.region.newest import key_column
from memwal.storage.base import ObjectStore
from memwal.writer.log import READ_AHEAD_BYTES, LogSurvey, needs_replay, read_log
from memwal.writer.rows import RowShape

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

    See :class:`memwal.writer.generation_rows.GenerationRows`.

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
