"""The rows of one generation that are durable in the log and not flushed yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from memwal.memtable.indexes import MemTableIndexes
from memwal.memtable.unflushed import UnflushedRows
from memwal.writer.rows import RowShape


class MemTable:
    """Rows in the order of the log, and what answers for them.

    Changed by one thread at a time. Reads of what :meth:`unflushed` returns need no lock.

    Parameters
    ----------
    shape : RowShape
        Form of its rows.
    generation : int
        What it will be flushed as.
    first_row : int, default 0
        Number of rows that its region's writer took before.
    text : mapping, optional
        Text columns that can be searched, with the options of their index.

    Attributes
    ----------
    batches : int
        Batches in the log that the rows came in.
    last_position : int
        Position of the newest log entry whose rows are here; 0 while there is none.
    born_at : float
        Monotonic seconds of the first row; infinite while there is none.
    """

    def __init__(
        self,
        shape: RowShape,
        generation: int,
        *,
        first_row: int = 0,
        text: Mapping[str, Mapping[str, Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shape = shape
        self.generation = generation
        self.first_row = first_row
        self.batches = 0
        self.last_position = 0
        self.born_at = float("inf")
        self._indexes = MemTableIndexes(shape.schema, shape.primary_key, text=text)
        self._clock = clock

    @property
    def rows(self) -> int:
        """Rows, superseded ones included."""
        return self._indexes.rows

    @property
    def bytes(self) -> int:
        """Memory of the rows and their indexes."""
        return self._indexes.nbytes

    @property
    def end_row(self) -> int:
        """Number of rows that its region's writer has taken with these."""
        return self.first_row + self.rows

    def add(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        position: int,
        log_batches: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Take the rows of the log up to ``position``.

        Parameters
        ----------
        log_batches : int, optional
            In how many batches the log has them, if not in these.
        nbytes : int, optional
            Memory of a single batch, if it is known.
        """
        if not self._indexes.rows:
            self.born_at = self._clock()
        for batch in batches:
            self._indexes.append(batch, nbytes=nbytes if len(batches) == 1 else None)
        self.batches += len(batches) if log_batches is None else log_batches
        self.last_position = position

    def catch_up(self) -> None:
        """Index all rows, so that no read has to."""
        self._indexes.catch_up()

    def unflushed(self) -> UnflushedRows:
        """The rows as they are now: later ones do not change it."""
        return UnflushedRows(self.generation, self._indexes.snapshot())

    def contents(self) -> pa.Table:
        """All rows, oldest first, as they are now."""
        return self._indexes.snapshot().view.to_table()

    def since(self, row: int) -> pa.Table:
        """Rows from number ``row`` of the region's writer on, oldest first."""
        return self.contents().slice(max(row - self.first_row, 0))
