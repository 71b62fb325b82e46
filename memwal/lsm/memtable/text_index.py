"""Full-text search over the rows of a MemTable, ranked by BM25 as Lance ranks."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.bm25 import TextStatistics, term_scores
from memwal.lsm.memtable.rows import Mask, Rows, RowView
from memwal.lsm.memtable.tokenizer import Tokenizer, hash_terms

_OPERATORS = ("or", "and")


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Best rows first; equal scores in the order of the log.

    Parameters
    ----------
    rows : numpy.ndarray of int64, shape (found,)
        Row numbers.
    scores : numpy.ndarray of float32, shape (found,)
        What Lance calls ``_score``.
    """

    rows: Rows
    scores: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Hashed tokens of the first ``rows`` rows; those of row i end at ``ends[i]``.

    Both arrays have room for more, which whoever indexes next fills.
    """

    hashes: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]
    rows: int = 0

    def tokens(self, rows: int) -> int:
        """Number of tokens of the first rows."""
        return int(self.ends[rows - 1]) if rows else 0


class TextRows:
    """Searches one text column.

    All that is kept is the tokens of each row in order: a query passes over all of them, which
    takes 1 ms per term and million tokens. A column that is never searched costs nothing unless
    :meth:`catch_up` is called.

    Any thread may call any method at any time: indexing takes a lock of its own, reading none.
    Every method first indexes what the view has and the index has not.

    Memory: 8 bytes per token and 8 per row, with room for growth up to twice that.

    Parameters
    ----------
    column : str
        Text, or lists of text; nested fields with dots between them.
    options : mapping, optional
        Those of the base table's text index, or the ``params`` in its statistics.

    Raises
    ------
    InvalidInputError
        When the options are not those of a text index that can be searched here.
    """

    def __init__(self, column: str, options: Mapping[str, Any] | None = None) -> None:
        self.column = column
        self._tokenizer = Tokenizer(options)
        self._lock = threading.Lock()
        self._state = _State(np.empty(0, np.uint64), np.empty(0, np.int64))

    @property
    def rows(self) -> int:
        """Number of rows that are indexed."""
        return self._state.rows

    @property
    def nbytes(self) -> int:
        """Memory of the index."""
        state = self._state
        return state.hashes.nbytes + state.ends.nbytes

    def terms(self, query: str) -> list[str]:
        """What the tokenizer of the index makes of a query."""
        return self._tokenizer.query_terms(query)

    def groups(self, query: str) -> list[tuple[str, ...]]:
        """The terms of a query by position: n-grams stand at one, and so do parts of a word."""
        return self._tokenizer.query_groups(query)

    def occurrences(self, terms: Sequence[str], view: RowView) -> tuple[Rows, dict[str, Rows]]:
        """Per row of a view its number of tokens, and of each term."""
        found = self._found(terms, view)
        return found.lengths, found.counts

    def vocabulary(self, view: RowView, rows: Rows) -> list[str]:
        """Distinct tokens of some rows, in the order of their bytes; nothing of it is kept."""
        return self._tokenizer.vocabulary(view.take_column(self.column, rows))

    def check(self, view: RowView) -> None:
        """Refuse a view in which the column is not text, whether or not it has rows.

        Raises
        ------
        InvalidInputError
            When the column is absent or holds no text.
        """
        kind = view.column_type(self.column)
        text = kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else kind
        if not (pt.is_string(text) or pt.is_large_string(text)):
            raise InvalidInputError(
                f"column {self.column} is {kind}; text is searched in text and lists of text"
            )

    def catch_up(self, view: RowView) -> None:
        """Index the rows of a view that are not indexed yet.

        Raises
        ------
        InvalidInputError
            When the column is absent or holds no text.
        """
        if self._state.rows >= view.rows:
            return
        with self._lock:
            state = self._state
            if state.rows < view.rows:
                self._state = self._extended(state, view)

    def statistics(
        self, terms: Sequence[str], view: RowView, *, alive: Mask | None = None
    ) -> TextStatistics:
        """Count documents and tokens for BM25, to be added to those of other sources.

        Parameters
        ----------
        terms : sequence of str
            From :meth:`terms`.
        view : RowView
            The rows to count.
        alive : numpy.ndarray of bool, shape (rows,), optional
            Rows that exist: not superseded, not deleted. All by default.
        """
        return _statistics(self._found(terms, view), alive)

    def search(
        self,
        terms: Sequence[str | tuple[str, ...]],
        view: RowView,
        *,
        k: int,
        alive: Mask | None = None,
        allowed: Mask | None = None,
        statistics: TextStatistics | None = None,
        operator: str = "or",
    ) -> Matches:
        """Find the best rows.

        Parameters
        ----------
        terms : sequence of str or of tuple of str
            From :meth:`terms` or :meth:`groups`; a term that comes twice counts twice.
        view : RowView
            The rows to search.
        k : int
            How many rows at most.
        alive : numpy.ndarray of bool, shape (rows,), optional
            Rows that exist. All by default.
        allowed : numpy.ndarray of bool, shape (rows,), optional
            Rows that a filter leaves; unlike ``alive`` it does not touch the statistics.
        statistics : TextStatistics, optional
            Of all sources that are searched together. By default those of the rows alive here,
            which gives the scores of a fresh Lance index over them.
        operator : {"or", "and"}, default "or"
            Whether one term is enough, or each must be there; of a group, one of its terms. As
            an index does only with what :meth:`groups` gives.

        Raises
        ------
        InvalidInputError
            When ``k`` or the operator is not right, or a term has no statistics.
        """
        if k < 1:
            raise InvalidInputError(f"k is {k}; ask for at least one row")
        if operator not in _OPERATORS:
            raise InvalidInputError(f"the operator {operator} is none of {', '.join(_OPERATORS)}")
        groups = [(term,) if isinstance(term, str) else term for term in terms]
        flat = [term for group in groups for term in group]
        found = self._found(flat, view)
        statistics = _statistics(found, alive) if statistics is None else statistics
        unknown = [term for term in found.counts if term not in statistics.frequencies]
        if unknown:
            raise InvalidInputError(f"the statistics lack the terms {', '.join(unknown)}")
        scores = _scores(found, flat, statistics)
        eligible = scores > 0
        if operator == "and":
            for group in groups:
                eligible &= np.any([found.counts[term] > 0 for term in group], axis=0)
        for mask in (alive, allowed):
            if mask is not None:
                eligible &= mask
        return _largest(scores, eligible, k)

    def _found(self, terms: Sequence[str], view: RowView) -> _Found:
        self.catch_up(view)
        state = self._state
        ends = state.ends[: view.rows]
        hashes = state.hashes[: state.tokens(view.rows)]
        distinct = list(dict.fromkeys(terms))
        counts = {
            term: _counts(hashes, ends, hashed)
            for term, hashed in zip(distinct, hash_terms(distinct), strict=True)
        }
        return _Found(np.diff(ends, prepend=0), counts)

    def _extended(self, state: _State, view: RowView) -> _State:
        self.check(view)
        hashes, ends = state.hashes, state.ends
        rows, tokens = state.rows, state.tokens(state.rows)
        for chunk in view.column(self.column, start=rows).chunks:
            fresh = self._tokenizer.tokens(chunk)
            hashes = _room(hashes, tokens, tokens + len(fresh.hashes))
            ends = _room(ends, rows, rows + len(chunk))
            hashes[tokens : tokens + len(fresh.hashes)] = fresh.hashes
            ends[rows : rows + len(chunk)] = tokens + np.cumsum(fresh.counts)
            rows, tokens = rows + len(chunk), tokens + len(fresh.hashes)
        return _State(hashes, ends, rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Per row its number of tokens, and of each term."""

    lengths: Rows
    counts: dict[str, Rows]


def _statistics(found: _Found, alive: Mask | None) -> TextStatistics:
    documents = found.lengths > 0
    if alive is not None:
        documents &= alive
    return TextStatistics(
        int(np.count_nonzero(documents)),
        int(found.lengths[documents].sum()),
        {
            term: int(np.count_nonzero((counts > 0) & documents))
            for term, counts in found.counts.items()
        },
    )


def _scores(
    found: _Found, terms: Sequence[str], statistics: TextStatistics
) -> npt.NDArray[np.float64]:
    scores = np.zeros(len(found.lengths))
    if not statistics.documents or not statistics.tokens:
        return scores
    for term in terms:
        rows = np.flatnonzero(found.counts[term])
        scores[rows] += term_scores(
            term, found.counts[term][rows], lengths=found.lengths[rows], statistics=statistics
        )
    return scores


def _largest(scores: npt.NDArray[np.float64], eligible: Mask, k: int) -> Matches:
    rows = np.flatnonzero(eligible)
    found = scores[rows].astype(np.float32)
    if len(rows) > k:
        limit = np.partition(found, len(rows) - k)[len(rows) - k]
        near = found >= limit
        rows, found = rows[near], found[near]
    order = np.argsort(-found, kind="stable")[:k]
    return Matches(rows[order], found[order])


def _counts(hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64], term: np.uint64) -> Rows:
    """Count one term in every row."""
    rows = ends.searchsorted(np.flatnonzero(hashes == term), side="right")
    return np.bincount(rows, minlength=len(ends))


def _room(array: npt.NDArray[Any], used: int, needed: int) -> npt.NDArray[Any]:
    """Make room; readers go on with the old array, which is right for the rows they know."""
    if needed <= len(array):
        return array
    grown = np.empty(max(needed, min(2 * len(array), needed + (1 << 20))), array.dtype)
    grown[:used] = array[:used]
    return grown
