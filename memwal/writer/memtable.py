"""The rows of one generation that are durable in the log and not flushed yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from memwal.region.newest import key_column, newest_rows


class MemTable:
    """Batches in the order of the log. Not safe to change from two threads at once.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of every batch.
    generation : int
        What it will be flushed as.
    first_row : int, default 0
        Number of rows that its region's writer took before.

    Attributes
    ----------
    rows, bytes, batches : int
        Rows, memory and number of the batches, superseded rows included.
    last_position : int
        Position of the newest log entry whose rows are here; 0 while there is none.
    born_at : float
        Monotonic seconds of the first row; infinite while there is none.
    """

    def __init__(
        self,
        schema: pa.Schema,
        generation: int,
        *,
        first_row: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schema = schema
        self.generation = generation
        self.first_row = first_row
        self._batches: list[pa.RecordBatch] = []
        self._clock = clock
        self.rows = 0
        self.bytes = 0
        self.batches = 0
        self.last_position = 0
        self.born_at = float("inf")

    @property
    def end_row(self) -> int:
        """Number of rows that its region's writer has taken with these."""
        return self.first_row + self.rows

    def add(
        self, batches: Sequence[pa.RecordBatch], *, position: int, nbytes: int | None = None
    ) -> None:
        """Take the rows of the log entry at ``position``.

        Parameters
        ----------
        nbytes : int, optional
            Memory that the batches keep alive, if that is more than their own.
        """
        if not self.rows:
            self.born_at = self._clock()
        for batch in batches:
            self._batches.append(batch)
            self.rows += batch.num_rows
            self.batches += 1
        own = sum(batch.nbytes for batch in batches) if nbytes is None else nbytes
        self.bytes += own
        self.last_position = position

    def contents(self) -> pa.Table:
        """All rows, oldest first: a copy of references that later writes do not change."""
        return pa.Table.from_batches(list(self._batches), schema=self.schema)

    def since(self, row: int) -> list[pa.RecordBatch]:
        """Rows from number ``row`` of the region's writer on, oldest first."""
        found: list[pa.RecordBatch] = []
        end = self.end_row
        for batch in reversed(self._batches):
            if end <= row:
                break
            start = end - batch.num_rows
            found.append(batch if start >= row else batch.slice(row - start))
            end = start
        return found[::-1]


def newest_per_key(rows: pa.Table, primary_key: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of ``rows``."""
    kept = newest_rows(key_column(rows, primary_key))
    return rows if len(kept) == rows.num_rows else rows.take(pa.array(kept))
