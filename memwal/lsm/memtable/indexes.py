"""Indexes of one MemTable, and snapshots that answer reads: keys, nearest vectors, text."""

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
from memwal.lsm.memtable.rows import Mask, RowRuns, Rows, RowView
from memwal.lsm.memtable.text_index import Matches, TextRows
from memwal.lsm.memtable.vector_index import Neighbours, nearest_rows


class MemTableIndexes:
    """The rows of one MemTable with the indexes over them.

    Rows are stored rows, with ``_tombstone``. Appending only takes them over; a read indexes what
    is missing first, unless :meth:`catch_up` did so when the rows were written. Vectors are
    searched where they lie and need no index.

    One thread may append at a time. Everything else may be called by any thread at any time
    without a lock: each index has its own, which only those wait for that would do the same work.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of every batch.
    primary_key : sequence of str
        Key columns.
    text : mapping, optional
        Per text column that can be searched, the options of its index in the base table.

    Raises
    ------
    InvalidInputError
        When such a column is absent or holds no text, or its options cannot be searched with.
    """

    def __init__(
        self,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        text: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._runs = RowRuns(schema)
        self._keys = KeyIndex(primary_key)
        self._text = {column: TextRows(column, options) for column, options in (text or {}).items()}
        # Now, since rows that are durable already could not be refused any more.
        for index in self._text.values():
            index.check(self._runs.view())

    @property
    def rows(self) -> int:
        """Number of rows, superseded ones included."""
        return self._runs.rows

    @property
    def nbytes(self) -> int:
        """Memory of the rows and the indexes."""
        text = sum(index.nbytes for index in self._text.values())
        return self._runs.nbytes + self._keys.nbytes + text

    def append(self, batch: pa.RecordBatch, *, nbytes: int | None = None) -> None:
        """Take further rows, of so many bytes if that is known; one thread at a time."""
        self._runs.append(batch, nbytes=nbytes)

    def catch_up(self) -> None:
        """Index all rows appended so far, so that no read has to.

        Raises
        ------
        InvalidInputError
            When a key is null.
        """
        view = self._runs.view()
        self._keys.catch_up(view)
        for index in self._text.values():
            index.catch_up(view)

    def snapshot(self) -> MemTableSnapshot:
        """The rows appended so far, which later appends do not change."""
        return MemTableSnapshot(self._runs.view(), self._keys, self._text)


@dataclass(frozen=True, slots=True, eq=False)
class MemTableSnapshot:
    """Reads of the rows that a MemTable had at one moment; any thread, no lock.

    Row numbers count in the order of the log. Superseded and deleted rows are in no result but
    that of :meth:`lookup`.

    Parameters
    ----------
    view : RowView
        The rows.
    keys : KeyIndex
        Index over them, and maybe over newer ones.
    text : mapping of str to TextRows
        Per text column.
    """

    view: RowView
    keys: KeyIndex
    text: Mapping[str, TextRows]

    def lookup(self, keys: Sequence[pa.Array]) -> Rows:
        """Newest row of each key, tombstones included, -1 where there is none.

        Parameters
        ----------
        keys : sequence of pyarrow.Array
            One array per key column, in the types of the table.

        Raises
        ------
        InvalidInputError
            When a key is null or of another type than the column, or a column is missing.
        """
        return self.keys.lookup(keys, self.view)

    def newest(self) -> Mask:
        """Whether each row is the newest of its key, tombstones included."""
        return self.keys.newest(self.view)

    def alive(self) -> Mask:
        """Whether each row is the newest of its key, and not deleted."""
        deleted = self.view.column(TOMBSTONE).to_numpy()
        alive: Mask = self.newest() & ~deleted
        return alive

    def take(self, rows: Rows, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Some rows in the order asked for, of all columns or some top-level ones."""
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
        """Rows with the nearest vectors; parameters and errors as in ``nearest_rows``.

        ``allowed`` is what a filter leaves, shape (rows,).
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
        """What the tokenizer of a text column makes of a query."""
        return self._text_rows(column).terms(query)

    def text_statistics(self, column: str, terms: Sequence[str]) -> TextStatistics:
        """Counts over the rows alive, to be added to those of other sources."""
        return self._text_rows(column).statistics(terms, self.view, alive=self.alive())

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
        """Best rows for the terms; parameters and errors as in ``TextRows.search``.

        ``operator="and"`` wants the groups of ``TextRows.groups``.
        """
        return self._text_rows(column).search(
            terms,
            self.view,
            k=k,
            alive=self.alive(),
            allowed=allowed,
            statistics=statistics,
            operator=operator,
        )

    def _text_rows(self, column: str) -> TextRows:
        if column not in self.text:
            raise InvalidInputError(
                f"column {column} has no maintained text index; search one of "
                f"{', '.join(self.text) or 'none'}, or add an index to the maintained ones"
            )
        return self.text[column]
