"""Source rows of a flush, and their newest row of each key as a stream of batches.

The source can be read more than once, always in the same order, oldest row first: rows in memory,
or rows of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.format.bloom import FILTER_BYTES, build_bloom_filter
from memwal.region.rows import align_rows, key_column, stored_schema
from memwal.util.memory import handed_on

# What Lance has in hand at a time: few steps for narrow rows, little memory for wide ones.
_FIRST_ROWS = 1_024
_BATCH_ROWS = 65_536
_BATCH_BYTES = 2 << 20


class GenerationRows(Protocol):
    """Stored rows that can be gone through more than once, always in the same order.

    A flush asks for the keys, then goes through the batches once and keeps the newest row of each
    key: no more than the keys and a batch need be in memory at a time.
    """

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch: the stored form, with field ids."""
        ...

    def keys(self) -> pa.Array:
        """The key of every row, as :func:`memwal.region.rows.key_column` gives it."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Go through all rows, oldest first; each call starts at the first row again.

        Small batches are joined: each is worth the steps of a flush, and no burden on memory.
        """
        ...


@dataclass(frozen=True, slots=True)
class TableRows:
    """Stored rows that are in memory.

    Attributes
    ----------
    table : pyarrow.Table
        Stored rows, oldest first.
    primary_key : sequence of str
        Names of the key columns in the table.
    """

    table: pa.Table
    primary_key: Sequence[str]

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table."""
        return self.table.schema

    def keys(self) -> pa.Array:
        """One value per row."""
        return key_column(self.table, self.primary_key)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the table; a large batch is not copied."""
        start, step = 0, _FIRST_ROWS
        while start < self.table.num_rows:
            part = self.table.slice(start, step)
            start += part.num_rows
            # The values of several dictionaries may be more than the type of their indices takes.
            if not has_dictionaries(part.schema):
                part = part.combine_chunks(handed_on())
            step = min(_BATCH_ROWS, max(1, _BATCH_BYTES * part.num_rows // max(1, part.nbytes)))
            yield from part.to_batches()


def has_dictionaries(fields: Iterable[pa.Field]) -> bool:
    """Whether a field, or a child of one, is encoded by a dictionary."""
    return any(
        pa.types.is_dictionary(field.type)
        or has_dictionaries(field.type.field(number) for number in range(field.type.num_fields))
        for field in fields
    )


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
        align_rows(contents.schema.empty_table(), self.schema)

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
        table = align_rows(pa.Table.from_batches([batch]), self.schema)
        return table.combine_chunks(handed_on()).to_batches()[0]

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = [batch.column(name) for name in self._primary_key]
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        self.key_bytes += sum(column.nbytes for column in keys)
        self._filter |= np.frombuffer(build_bloom_filter(keys), np.uint8)
        return batch
