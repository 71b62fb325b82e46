"""Rows of one MemTable with their indexes, and snapshots that answer reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from memwal.lsm.memtable.key_index import KeyIndex
from memwal.lsm.memtable.rows import RowBuffer, Rows, RowView
from memwal.lsm.memtable.text_index import TextIndex


class MemTableIndexes:
    """Rows of one MemTable with their indexes over keys and text.

    Rows are stored rows, with ``_tombstone``. Appending only stores them; a read first indexes the
    rows that are not indexed yet, unless :meth:`catch_up` did so when they were written. Vectors
    are searched without an index.

    Only one thread may append at a time. Any thread may call everything else at any time without a
    lock: each index has its own lock, for which only callers wait that would index the same rows.

    ``text`` are the text columns to search, each with the options of its index in the base table.
    Raises InvalidInputError if such a column does not exist or is not text, or its index options
    are not supported.
    """

    def __init__(
        self,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        text: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self._rows = RowBuffer(schema)
        self._keys = KeyIndex(primary_key)
        self._text = {
            column: TextIndex(column, options) for column, options in (text or {}).items()
        }
        # Checked now, since rows cannot be refused once they are durable.
        for index in self._text.values():
            index.check(self._rows.view())

    @property
    def rows(self) -> int:
        """Number of rows, superseded ones included."""
        return self._rows.rows

    @property
    def nbytes(self) -> int:
        """Memory of the rows and the indexes, in bytes."""
        text = sum(index.nbytes for index in self._text.values())
        return self._rows.nbytes + self._keys.nbytes + text

    def append(self, batch: pa.RecordBatch, *, nbytes: int | None = None) -> None:
        """Append rows, of ``nbytes`` bytes if the caller knows it; one thread at a time."""
        self._rows.append(batch, nbytes=nbytes)

    def catch_up(self) -> None:
        """Index all rows appended so far, so that reads do not have to.

        Raises InvalidInputError if a key is null.
        """
        view = self._rows.view()
        self._keys.catch_up(view)
        for index in self._text.values():
            index.catch_up(view)

    def snapshot(self) -> MemTableSnapshot:
        """Return the rows appended so far; later appends do not change the snapshot."""
        return MemTableSnapshot(self._rows.view(), self._keys, self._text)


@dataclass(frozen=True, slots=True, eq=False)
class MemTableSnapshot:
    """Rows of a MemTable at one moment, numbered in log order, for reads without a lock."""

    view: RowView
    keys: KeyIndex  # over these rows, and possibly newer ones
    text: Mapping[str, TextIndex]  # by text column

    def lookup(self, keys: Sequence[pa.Array]) -> Rows:
        """Return the newest row of each key, as :meth:`KeyIndex.lookup` does."""
        return self.keys.lookup(keys, self.view)


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


class ClaimedRows(NamedTuple):
    """A writer's claim of a region, and its MemTables there."""

    epoch: int
    memtables: Sequence[UnflushedRows]  # buffered rows included, oldest generation first
