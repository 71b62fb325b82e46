"""Rows of a MemTable in log order, joined into few batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError
from memwal.format.values import find_column, single_array
from memwal.util.arrays import Number

Rows = npt.NDArray[np.int64]

# Batches of at least this size are never copied; smaller ones are joined, 16 at a time.
LARGE_ROWS = 1024
LARGE_BYTES = 1 << 18
_FAN_IN = 16
_LARGE = 3


@dataclass(frozen=True, slots=True, eq=False)
class RowView:
    """Immutable view of the rows at one moment; later appends do not change it."""

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]  # oldest rows first
    starts: Rows  # number of the first row of each batch, and the total number of rows

    @classmethod
    def of(cls, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> RowView:
        """Create a view of batches, without a copy."""
        starts = np.zeros(len(batches) + 1, np.int64)
        np.cumsum([batch.num_rows for batch in batches], out=starts[1:])
        return cls(schema, tuple(batches), starts)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def to_table(self) -> pa.Table:
        """Return all rows, oldest first, without a copy."""
        return pa.Table.from_batches(self.batches, schema=self.schema)

    def column(self, path: str, *, start: int = 0) -> pa.ChunkedArray:
        """Return the values of a column from row ``start`` on, one chunk per batch.

        ``path`` is the name of a column, or names of nested fields with dots between them. Raises
        InvalidInputError if there is no such column.
        """
        first = int(self.starts.searchsorted(start, side="right")) - 1
        chunks = [self.chunk(number, path) for number in range(first, len(self.batches))]
        if chunks:
            chunks[0] = chunks[0].slice(start - int(self.starts[first]))
        return pa.chunked_array(chunks, type=self._field(path)[1])

    def column_type(self, path: str) -> pa.DataType:
        """Return the type of a column; ``path`` as in :meth:`column`."""
        return self._field(path)[1]

    def chunk(self, number: int, path: str) -> pa.Array:
        """Return the values of a column in one batch; ``path`` as in :meth:`column`."""
        names, _ = self._field(path)
        column = self.batches[number].column(names[0])
        for name in names[1:]:
            column = pc.struct_field(column, name)
        return column

    def take_column(self, path: str, rows: Rows) -> pa.Array:
        """Return the values of a column in some rows; ``path`` as in :meth:`column`."""
        if not len(rows):
            return pa.array([], self._field(path)[1])
        # From each batch its own rows: Arrow would first join all batches, for however few rows.
        batches = self.starts.searchsorted(rows, side="right") - 1
        order = np.argsort(batches, kind="stable")
        numbers, firsts = np.unique(batches[order], return_index=True)
        parts = [
            self.chunk(number, path).take(pa.array(part - self.starts[number]))
            for number, part in zip(
                numbers.tolist(), np.split(rows[order], firsts[1:]), strict=True
            )
        ]
        taken = parts[0] if len(parts) == 1 else single_array(pa.chunked_array(parts))
        if (np.diff(order) > 0).all():
            return taken
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return taken.take(pa.array(places))

    def take(self, rows: Rows, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows in the given order, of all columns or some top-level ones."""
        fields = list(self.schema if columns is None else map(self.schema.field, columns))
        return pa.Table.from_arrays(
            [self.take_column(field.name, rows) for field in fields], schema=pa.schema(fields)
        )

    def _field(self, path: str) -> tuple[list[str], pa.DataType]:
        found = find_column(self.schema, path)
        if found is None:
            raise InvalidInputError(f"there is no column {path}; name one of the table's")
        return found


class RowBuffer:
    """Append-only buffer of row batches that joins small ones.

    A batch of one row takes some kilobytes beside its values, and every read has a cost per batch,
    so 16 batches of about one size become one until they have 1,024 rows or 256 KiB. A row is
    copied at most three times; batches that are larger when appended are never copied. Rows are
    numbered in log order, and the numbers never change.

    Only one thread may append at a time. :meth:`view` needs no lock.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._batches: list[pa.RecordBatch] = []
        # Rank of each batch: 0 to 2 below 16, 256 and 1,024 rows, 3 for one that is never joined.
        self._ranks: list[int] = []
        self.rows = 0
        self.nbytes = 0

    def append(self, batch: pa.RecordBatch, *, nbytes: int | None = None) -> None:
        """Append rows; asking Arrow for ``nbytes`` takes longer than all the rest."""
        rows = batch.num_rows
        if not rows:
            return
        if nbytes is None:
            nbytes = batch.nbytes
        rank = _rank(rows, nbytes)
        ranks = self._ranks
        keep = len(ranks)
        if rank < _LARGE:
            while keep and ranks[keep - 1] < rank:
                keep -= 1
        if keep < len(ranks):
            self._join(keep, batch, rank)
        else:
            self._batches.append(batch)
            ranks.append(rank)
        while ranks[-1] < _LARGE and ranks[-_FAN_IN:] == [ranks[-1]] * _FAN_IN:
            self._join(len(ranks) - _FAN_IN, None, ranks[-1] + 1)
        self.rows += rows
        self.nbytes += nbytes

    def view(self) -> RowView:
        """Return the rows appended so far."""
        # One call copies the list, so that a join in another thread is seen whole or not at all.
        return RowView.of(self.schema, tuple(self._batches))

    def _join(self, start: int, new_batch: pa.RecordBatch | None, rank: int) -> None:
        """Join the batches from ``start`` on, and one more, into one batch."""
        parts = self._batches[start:]
        if new_batch is not None:
            parts.append(new_batch)
        joined = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        if len(parts) > 1:
            rank = max(rank, _rank(joined.num_rows, joined.nbytes))
        # One assignment, so that no reader sees the parts gone and the joined batch not there.
        self._batches[start:] = [joined]
        self._ranks[start:] = [rank]


def with_room(array: npt.NDArray[Number], used: int, needed: int) -> npt.NDArray[Number]:
    """Return an array with room for ``needed`` values, of which the first ``used`` are copied.

    Readers continue with the old array, which is right for the rows of their views.
    """
    if needed <= len(array):
        return array
    larger = np.zeros(max(needed, min(2 * len(array), needed + (1 << 20))), array.dtype)
    larger[:used] = array[:used]
    return larger


def _rank(rows: int, nbytes: int) -> int:
    if rows >= LARGE_ROWS or nbytes >= LARGE_BYTES:
        return _LARGE
    return 0 if rows < _FAN_IN else 1 if rows < _FAN_IN**2 else 2
