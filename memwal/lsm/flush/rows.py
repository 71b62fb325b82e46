"""Source rows of a flush, and the newest row of each key as a stream of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.format.bloom import FilterBuilder
from memwal.format.wal_layout import has_dictionaries
from memwal.region.rows import align_rows, key_column, stored_schema
from memwal.util.memory import native_memory_pool

# Size of the batches that Lance gets: large for narrow rows to save calls, small for wide rows to
# save memory.
_FIRST_ROWS = 1_024
_BATCH_ROWS = 65_536
_BATCH_BYTES = 2 << 20


class GenerationRows(Protocol):
    """Stored rows that can be read more than once, always in the same order.

    A flush reads the keys, then reads the batches once and keeps the newest row of each key: only
    the keys and one batch must be in memory at a time.
    """

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch: stored rows, with field ids."""
        ...

    def keys(self) -> pa.Array:
        """Return the key of every row, in the form of :func:`memwal.region.rows.key_column`."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, oldest first, from the first row on with each call.

        Small batches are joined, since each batch has a fixed cost in a flush.
        """
        ...


@dataclass(frozen=True, slots=True)
class TableRows:
    """Stored rows in memory, oldest first."""

    table: pa.Table
    primary_key: Sequence[str]

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table."""
        return self.table.schema

    def keys(self) -> pa.Array:
        """Return one key per row."""
        return key_column(self.table, self.primary_key)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table. Large batches are not copied."""
        # A first batch of wide rows would be a copy of the whole table.
        rows_of_batch = _BATCH_BYTES * self.table.num_rows // max(1, self.table.nbytes)
        start, step = 0, min(_FIRST_ROWS, max(1, rows_of_batch))
        while start < self.table.num_rows:
            part = self.table.slice(start, step)
            start += part.num_rows
            # The joined dictionaries may have more values than the index type can number.
            if not has_dictionaries(part.schema):
                part = part.combine_chunks(native_memory_pool())
            step = min(_BATCH_ROWS, max(1, _BATCH_BYTES * part.num_rows // max(1, part.nbytes)))
            yield from part.to_batches()


class NewestRowStream:
    """Stream of the newest row of each key, in the columns of the base table.

    Counts the rows that were read, and builds their bloom filters. ``positions`` are those of the
    rows to read, ascending. Raises InvalidInputError if a key column is missing, or a column cannot
    be cast to its type in the base table.
    """

    def __init__(
        self,
        contents: GenerationRows,
        positions: npt.NDArray[np.int64],
        base: BaseTable,
    ) -> None:
        self.schema = stored_schema(base.identified_schema, base.primary_key)
        # Rows read so far, their size in memory, and the size of their keys.
        self.rows = self.bytes = self.key_bytes = 0
        # Error that stopped the stream; a consumer that reads through Arrow only gets its text.
        self.error: BaseException | None = None
        self._contents = contents
        self._positions = positions
        self._primary_key = base.primary_key
        self._is_aligned = contents.schema.equals(self.schema, check_metadata=True)
        self.filters = FilterBuilder(len(positions))  # Of the keys that were read so far.
        if not self._is_aligned:
            align_rows(contents.schema.empty_table(), self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows. To be called once."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            start = 0
            for batch in self._contents.batches():
                end = start + batch.num_rows
                first, last = np.searchsorted(self._positions, (start, end))
                if last - first == batch.num_rows:
                    yield self._count_batch(self._align(batch))
                elif last > first:
                    row_numbers = pa.array(self._positions[first:last] - start)
                    newest = pc.take(batch, row_numbers, memory_pool=native_memory_pool())
                    yield self._count_batch(self._align(newest))
                start = end
        except BaseException as error:
            self.error = error
            raise

    def _align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Bring a batch into the columns of the base table."""
        if self._is_aligned:
            return batch
        table = align_rows(pa.Table.from_batches([batch]), self.schema)
        return table.combine_chunks(native_memory_pool()).to_batches()[0]

    def _count_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add a batch to the counts and to the bloom filters, and return it."""
        keys = [batch.column(name) for name in self._primary_key]
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        self.key_bytes += sum(column.nbytes for column in keys)
        self.filters.add(keys)
        return batch
