"""The rows of one generation that are durable in the log and not flushed yet."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from memwal.region.newest import key_column, newest_rows


class MemTable:
    """Batches in the order of the log. Not safe to change from two threads at once.

    Attributes
    ----------
    generation : int
        What it will be flushed as.
    rows, bytes, batches : int
        Rows, memory and number of the batches, superseded rows included.
    last_position : int
        Position of the newest log entry whose rows are here; 0 while there is none.
    """

    def __init__(self, schema: pa.Schema, generation: int) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self.generation = generation
        self.rows = 0
        self.bytes = 0
        self.batches = 0
        self.last_position = 0

    def add(self, batches: Sequence[pa.RecordBatch], *, position: int) -> None:
        """Take the rows of the log entry at ``position``."""
        for batch in batches:
            self._batches.append(batch)
            self.rows += batch.num_rows
            self.bytes += batch.nbytes
            self.batches += 1
        self.last_position = position

    def contents(self) -> pa.Table:
        """All rows, oldest first: a copy of references that later writes do not change."""
        return pa.Table.from_batches(list(self._batches), schema=self._schema)


def newest_per_key(rows: pa.Table, primary_key: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of ``rows``."""
    kept = newest_rows(key_column(rows, primary_key))
    return rows if len(kept) == rows.num_rows else rows.take(pa.array(kept))
