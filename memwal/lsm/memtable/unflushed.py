"""Unflushed rows of a writer in this process, as reads take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from memwal.lsm.memtable.indexes import MemTableSnapshot
from memwal.lsm.memtable.key_index import KeyIndex
from memwal.lsm.memtable.rows import RowView


@dataclass(frozen=True, slots=True, eq=False)
class UnflushedRows:
    """Rows of one generation that is not flushed yet."""

    generation: int  # number of the generation that they will be flushed as
    snapshot: MemTableSnapshot

    @classmethod
    def of(
        cls,
        generation: int,
        schema: pa.Schema,
        primary_key: Sequence[str],
        batches: Sequence[pa.RecordBatch],
    ) -> UnflushedRows:
        """Create them from batches that are in no MemTable."""
        view = RowView.of(schema, batches)
        return cls(generation, MemTableSnapshot(view, KeyIndex(primary_key), {}))

    @property
    def rows(self) -> pa.Table:
        """Return the stored rows, oldest first, with field ids in their schema."""
        return self.snapshot.view.to_table()
