"""Tokens of the rows of a MemTable, for full-text search."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.rows import Rows, RowView
from memwal.lsm.memtable.tokenizer import Tokenizer, hash_terms

Number = TypeVar("Number", bound=np.number)


@dataclass(frozen=True, slots=True, eq=False)
class _HashedTokens:
    """Hashed tokens of the first ``rows`` rows; those of row i end at ``ends[i]``.

    Both arrays have room for more rows, which the next call that indexes fills.
    """

    hashes: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]
    rows: int = 0

    def tokens(self, rows: int) -> int:
        """Return the number of tokens of the first rows."""
        return int(self.ends[rows - 1]) if rows else 0


class TextIndex:
    """Text index of one column: the hashed tokens of each row, in order.

    A query compares all tokens, which takes 1 ms per term and million tokens. A column that is
    never searched costs nothing unless :meth:`catch_up` is called.

    Any thread may call any method at any time: indexing takes a lock of its own, reading none.
    Every method first indexes the rows of the view that are not indexed yet.

    Memory: 8 bytes per token and 8 per row, with room for growth up to twice that.

    The column has text, or lists of text; its path has dots between names of nested fields. The
    options are those of the base table's text index, or the ``params`` in its statistics. Raises
    InvalidInputError if they are not those of a text index that can be searched here.
    """

    def __init__(self, column: str, options: Mapping[str, object] | None = None) -> None:
        self.column = column
        self._tokenizer = Tokenizer(options)
        self._lock = threading.Lock()
        self._state = _HashedTokens(np.empty(0, np.uint64), np.empty(0, np.int64))

    @property
    def rows(self) -> int:
        """Number of indexed rows."""
        return self._state.rows

    @property
    def nbytes(self) -> int:
        """Memory of the index, in bytes."""
        state = self._state
        return state.hashes.nbytes + state.ends.nbytes

    def occurrences(self, terms: Sequence[str], view: RowView) -> tuple[Rows, dict[str, Rows]]:
        """Count the tokens of each row of a view, and the occurrences of each term in it."""
        self.catch_up(view)
        state = self._state
        ends = state.ends[: view.rows]
        hashes = state.hashes[: state.tokens(view.rows)]
        distinct = list(dict.fromkeys(terms))
        counts = {
            term: _count_term(hashes, ends, hashed)
            for term, hashed in zip(distinct, hash_terms(distinct), strict=True)
        }
        return np.diff(ends, prepend=0), counts

    def vocabulary(self, view: RowView, rows: Rows) -> list[str]:
        """Return the distinct tokens of some rows, in the order of their bytes; not cached."""
        return self._tokenizer.vocabulary(view.take_column(self.column, rows))

    def check(self, view: RowView) -> None:
        """Raise InvalidInputError if a view, even without rows, lacks the column as text."""
        kind = view.column_type(self.column)
        text = kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else kind
        if not (pt.is_string(text) or pt.is_large_string(text)):
            raise InvalidInputError(
                f"column {self.column} is {kind}; text is searched in text and lists of text"
            )

    def catch_up(self, view: RowView) -> None:
        """Index the rows of a view that are not indexed yet."""
        if self._state.rows >= view.rows:
            return
        with self._lock:
            state = self._state
            if state.rows < view.rows:
                self._state = self._extended(state, view)

    def _extended(self, state: _HashedTokens, view: RowView) -> _HashedTokens:
        self.check(view)
        hashes, ends = state.hashes, state.ends
        rows, tokens = state.rows, state.tokens(state.rows)
        for chunk in view.column(self.column, start=rows).chunks:
            added = self._tokenizer.tokens(chunk)
            hashes = _with_room(hashes, tokens, tokens + len(added.hashes))
            ends = _with_room(ends, rows, rows + len(chunk))
            hashes[tokens : tokens + len(added.hashes)] = added.hashes
            ends[rows : rows + len(chunk)] = tokens + np.cumsum(added.counts)
            rows, tokens = rows + len(chunk), tokens + len(added.hashes)
        return _HashedTokens(hashes, ends, rows)


def _count_term(
    hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64], term: np.uint64
) -> Rows:
    rows = ends.searchsorted(np.flatnonzero(hashes == term), side="right")
    return np.bincount(rows, minlength=len(ends))


def _with_room(array: npt.NDArray[Number], used: int, needed: int) -> npt.NDArray[Number]:
    """Return an array with room for ``needed`` values.

    Readers continue with the old array, which is right for the rows of their views.
    """
    if needed <= len(array):
        return array
    larger = np.empty(max(needed, min(2 * len(array), needed + (1 << 20))), array.dtype)
    larger[:used] = array[:used]
    return larger
