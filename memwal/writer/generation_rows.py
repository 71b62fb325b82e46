"""What a generation is made from: stored rows, in memory or in the log, oldest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from memwal.free_memory import handed_on
from memwal.region.newest import key_column

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
        """The key of every row, as :func:`memwal.region.newest.key_column` gives it."""
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
