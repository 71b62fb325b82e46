"""Rows of a MemTable in the order of the log, joined into few batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# A batch of so many rows or bytes is kept as it came; smaller ones are joined, 16 at a time.
LARGE_ROWS = 1024
LARGE_BYTES = 1 << 18
_FAN_IN = 16
_LARGE = 3


@dataclass(frozen=True, slots=True, eq=False)
class RowView:
    """The rows that were there at one moment; later appends do not change it.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of every batch.
    batches : tuple of pyarrow.RecordBatch
        Oldest rows first.
    starts : numpy.ndarray of int64, shape (batches + 1,)
        Row number of the first row of each batch, and the number of all rows.
    """

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]
    starts: Rows

    @classmethod
    def of(cls, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> RowView:
        """View batches that somebody else keeps."""
        starts = np.zeros(len(batches) + 1, np.int64)
        np.cumsum([batch.num_rows for batch in batches], out=starts[1:])
        return cls(schema, tuple(batches), starts)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def to_table(self) -> pa.Table:
        """All rows, oldest first, without a copy."""
        return pa.Table.from_batches(self.batches, schema=self.schema)

    def column(self, path: str, *, start: int = 0) -> pa.ChunkedArray:
        """Values of a column from row ``start`` on, one chunk per batch.

        Parameters
        ----------
        path : str
            Name of a column, or names of nested fields with dots between them.

        Raises
        ------
        InvalidInputError
            When there is no such column.
        """
        first = int(self.starts.searchsorted(start, side="right")) - 1
        chunks = [self.chunk(number, path) for number in range(first, len(self.batches))]
        if chunks:
            chunks[0] = chunks[0].slice(start - int(self.starts[first]))
        return pa.chunked_array(chunks, type=self._field(path)[1])

    def column_type(self, path: str) -> pa.DataType:
        """Type of a column; ``path`` as in :meth:`column`."""
        return self._field(path)[1]

    def chunk(self, number: int, path: str) -> pa.Array:
        """Values of a column in one batch; ``path`` as in :meth:`column`."""
        names, _ = self._field(path)
        column = self.batches[number].column(names[0])
        for name in names[1:]:
            column = pc.struct_field(column, name)
        return column

    def take_column(self, path: str, rows: Rows) -> pa.Array:
        """Values of a column in some rows; ``path`` as in :meth:`column`."""
        if not len(rows):
            return pa.array([], self._field(path)[1])
        first = int(self.starts.searchsorted(int(rows.min()), side="right")) - 1
        last = int(self.starts.searchsorted(int(rows.max()), side="right")) - 1
        within = pa.array(rows - self.starts[first])
        if first == last:
            return self.chunk(first, path).take(within)
        chunks = [self.chunk(number, path) for number in range(first, last + 1)]
        return _one_array(pa.chunked_array(chunks).take(within))

    def take(self, rows: Rows, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Some rows in the order asked for, of all columns or some top-level ones."""
        fields = list(self.schema if columns is None else map(self.schema.field, columns))
        return pa.Table.from_arrays(
            [self.take_column(field.name, rows) for field in fields], schema=pa.schema(fields)
        )

    def _field(self, path: str) -> tuple[list[str], pa.DataType]:
        if path in self.schema.names:
            return [path], self.schema.field(path).type
        names = path.split(".")
        found = pa.struct(list(self.schema))
        for name in names:
            if not pa.types.is_struct(found) or found.get_field_index(name) < 0:
                raise InvalidInputError(f"there is no column {path}; name one of the table's")
            found = found.field(name).type
        return names, found


class RowRuns:
    """Batches of rows, joined while they are small.

    A batch of one row takes some kilobytes beside its values, and every read pays for each batch,
    so 16 batches of about one size become one until they have 1,024 rows or 256 KiB. A row is
    copied three times at most; batches that come larger are never copied. Row numbers count in
    the order of the log and never change.

    Only one thread may append at a time. :meth:`view` needs no lock.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of every batch.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._batches: list[pa.RecordBatch] = []
        # Rank of each batch: 0 to 2 for less than 16, 256, 1,024 rows, 3 for one that stays.
        self._ranks: list[int] = []
        self.rows = 0
        self.nbytes = 0

    def append(self, batch: pa.RecordBatch, *, nbytes: int | None = None) -> None:
        """Take further rows.

        Parameters
        ----------
        nbytes : int, optional
            Their memory, if it is known: to ask Arrow takes longer than all the rest.
        """
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
        """The rows appended so far."""
        # One call copies the list, so that a join in another thread is seen whole or not at all.
        return RowView.of(self.schema, tuple(self._batches))

    def _join(self, start: int, further: pa.RecordBatch | None, rank: int) -> None:
        """Make one batch of those from ``start`` on and a further one."""
        parts = self._batches[start:]
        if further is not None:
            parts.append(further)
        whole = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        if len(parts) > 1:
            rank = max(rank, _rank(whole.num_rows, whole.nbytes))
        # One assignment, so that no reader sees the parts gone and the whole not there.
        self._batches[start:] = [whole]
        self._ranks[start:] = [rank]


def _rank(rows: int, nbytes: int) -> int:
    if rows >= LARGE_ROWS or nbytes >= LARGE_BYTES:
        return _LARGE
    return 0 if rows < _FAN_IN else 1 if rows < _FAN_IN**2 else 2


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
