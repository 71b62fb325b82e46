"""Unflushed rows of a writer of this process, in the form that reads take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from memwal.lsm.memtable.indexes import MemTableSnapshot
from memwal.lsm.memtable.key_index import KeyIndex
from memwal.lsm.memtable.rows import RowView


@dataclass(frozen=True, slots=True, eq=False)
class UnflushedRows:
    """Rows of one generation that is not flushed yet.

    Attributes
    ----------
    generation : int
        What it will be flushed as.
    snapshot : MemTableSnapshot
        Its rows at one moment, with what answers for them.
    """

    generation: int
    snapshot: MemTableSnapshot

    @classmethod
    def of(
        cls,
        generation: int,
        schema: pa.Schema,
        primary_key: Sequence[str],
        batches: Sequence[pa.RecordBatch],
    ) -> UnflushedRows:
        """Rows that no MemTable has."""
        view = RowView.of(schema, batches)
        return cls(generation, MemTableSnapshot(view, KeyIndex(primary_key), {}))

    @property
    def rows(self) -> pa.Table:
        """Stored rows, oldest first, with field ids in their schema."""
        return self.snapshot.view.to_table()
