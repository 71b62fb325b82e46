"""The newest row of each key as a stream of batches in the form in which they are flushed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.format.bloom import FILTER_BYTES, build_bloom_filter
from memwal.free_memory import handed_on
from memwal.region.field_ids import aligned
from memwal.region.row_schema import stored_schema
from memwal.table_index.base_table import BaseTable
from memwal.writer.generation_rows import GenerationRows


class NewestBatches:
    """Goes through the rows once, and counts what it hands on.

    Parameters
    ----------
    contents : GenerationRows
        Stored rows, oldest first.
    kept : numpy.ndarray of int64
        Positions of the rows to hand on, ascending.
    base : BaseTable
        Gives the columns.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of every batch.
    rows, bytes, key_bytes : int
        Rows handed on, their size in memory, and that of their keys.
    error : BaseException or None
        What stopped the stream. Whoever reads it through Arrow sees the text alone.

    Raises
    ------
    InvalidInputError
        A key column is missing, or a column's type cannot become that of the base table.
    """

    def __init__(
        self, contents: GenerationRows, kept: np.ndarray[Any, np.dtype[np.int64]], base: BaseTable
    ) -> None:
        self.schema = stored_schema(base.identified_schema, base.primary_key)
        self.rows = self.bytes = self.key_bytes = 0
        self.error: BaseException | None = None
        self._contents = contents
        self._kept = kept
        self._primary_key = base.primary_key
        self._is_aligned = contents.schema.equals(self.schema, check_metadata=True)
        self._filter = np.zeros(FILTER_BYTES, np.uint8)
        aligned(contents.schema.empty_table(), self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """The rows, to be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def bloom_filter(self) -> bytes:
        """The bloom filter of the keys that were handed on."""
        return self._filter.tobytes()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            start = 0
            for batch in self._contents.batches():
                end = start + batch.num_rows
                first, last = np.searchsorted(self._kept, (start, end))
                if last - first == batch.num_rows:
                    yield self._counted(self._in_shape(batch))
                elif last > first:
                    kept = pa.array(self._kept[first:last] - start)
                    newest = pc.take(batch, kept, memory_pool=handed_on())
                    yield self._counted(self._in_shape(newest))
                start = end
        except BaseException as error:
            self.error = error
            raise

    def _in_shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._is_aligned:
            return batch
        table = aligned(pa.Table.from_batches([batch]), self.schema)
        return table.combine_chunks(handed_on()).to_batches()[0]

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = [batch.column(name) for name in self._primary_key]
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        self.key_bytes += sum(column.nbytes for column in keys)
        self._filter |= np.frombuffer(build_bloom_filter(keys), np.uint8)
        return batch
