"""Rows of one MemTable with their indexes, and snapshots that answer reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.format.paths import TOMBSTONE
from memwal.lsm.memtable.bm25 import TextStatistics
from memwal.lsm.memtable.key_index import KeyIndex
from memwal.lsm.memtable.rows import Mask, RowBuffer, Rows, RowView
from memwal.lsm.memtable.text_index import Matches, TextIndex
from memwal.lsm.memtable.vector_index import Neighbours, nearest_rows


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
        text: Mapping[str, Mapping[str, Any]] | None = None,
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

    def newest(self) -> Mask:
        """Return for each row whether it is the newest of its key, tombstones included."""
        return self.keys.newest(self.view)

    def alive(self) -> Mask:
        """Return for each row whether it is the newest of its key and not deleted."""
        deleted = self.view.column(TOMBSTONE).to_numpy()
        alive: Mask = self.newest() & ~deleted
        return alive

    def take(self, rows: Rows, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows in the given order, of all columns or some top-level ones."""
        return self.view.take(rows, columns=columns)

    def nearest(
        self,
        column: str,
        query: npt.ArrayLike | pa.Array,
        *,
        k: int,
        metric: str = "l2",
        allowed: Mask | None = None,
    ) -> Neighbours:
        """Find the rows with the nearest vectors; parameters and errors as in ``nearest_rows``.

        ``allowed``, shape (rows,), are the rows that pass a filter.
        """
        alive = self.alive()
        return nearest_rows(
            self.view,
            column,
            query,
            k=k,
            metric=metric,
            allowed=alive if allowed is None else alive & allowed,
        )

    def text_terms(self, column: str, query: str) -> list[str]:
        """Tokenize a query as the index of a text column does."""
        return self._text_index(column).terms(query)

    def search_text(
        self,
        column: str,
        terms: Sequence[str | tuple[str, ...]],
        *,
        k: int,
        allowed: Mask | None = None,
        statistics: TextStatistics | None = None,
        operator: str = "or",
    ) -> Matches:
        """Find the best rows for some terms; parameters and errors as in ``TextIndex.search``."""
        return self._text_index(column).search(
            terms,
            self.view,
            k=k,
            alive=self.alive(),
            allowed=allowed,
            statistics=statistics,
            operator=operator,
        )

    def _text_index(self, column: str) -> TextIndex:
        if column not in self.text:
            raise InvalidInputError(
                f"column {column} has no maintained text index; search one of "
                f"{', '.join(self.text) or 'none'}, or add its index to the maintained ones"
            )
        return self.text[column]
