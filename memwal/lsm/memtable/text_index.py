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
    """Rows with their scores, best first; equal scores in log order."""

    rows: Rows  # shape (matches,): row numbers
    scores: npt.NDArray[np.float32]  # shape (matches,): what Lance calls ``_score``


@dataclass(frozen=True, slots=True, eq=False)
class _State:
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

    def __init__(self, column: str, options: Mapping[str, Any] | None = None) -> None:
        self.column = column
        self._tokenizer = Tokenizer(options)
        self._lock = threading.Lock()
        self._state = _State(np.empty(0, np.uint64), np.empty(0, np.int64))

    @property
    def rows(self) -> int:
        """Number of indexed rows."""
        return self._state.rows

    @property
    def nbytes(self) -> int:
        """Memory of the index, in bytes."""
        state = self._state
        return state.hashes.nbytes + state.ends.nbytes

    def terms(self, query: str) -> list[str]:
        """Tokenize a query as the index does."""
        return self._tokenizer.query_terms(query)

    def groups(self, query: str) -> list[tuple[str, ...]]:
        """Group the terms of a query by position: n-grams share one, and so do parts of a word."""
        return self._tokenizer.query_groups(query)

    def occurrences(self, terms: Sequence[str], view: RowView) -> tuple[Rows, dict[str, Rows]]:
        """Count the tokens of each row of a view, and the occurrences of each term in it."""
        counted = self._count(terms, view)
        return counted.lengths, counted.counts

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

    def statistics(
        self, terms: Sequence[str], view: RowView, *, alive: Mask | None = None
    ) -> TextStatistics:
        """Count documents and tokens for BM25; the caller adds those of other sources.

        ``alive``, shape (rows,), are the rows that are neither superseded nor deleted; all by
        default.
        """
        return _statistics(self._count(terms, view), alive)

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
        """Find the best ``k`` rows.

        The terms are from :meth:`terms` or :meth:`groups`; a term that is repeated counts twice.
        With the operator ``or`` a row must contain any term, with ``and`` one term of every group;
        ``and`` gives the answers of a Lance index only with the result of :meth:`groups`.

        ``alive``, shape (rows,), are the rows that are neither superseded nor deleted. ``allowed``,
        shape (rows,), are the rows that pass a filter; unlike ``alive`` it does not change the
        statistics. ``statistics`` are those of all sources that are searched together; by default
        those of the rows alive in the view, which gives the scores of a new Lance index over them.

        Raises InvalidInputError if ``k`` or the operator is invalid, or ``statistics`` lack a term.
        """
        if k < 1:
            raise InvalidInputError(f"k is {k}; ask for at least one row")
        if operator not in _OPERATORS:
            raise InvalidInputError(f"the operator {operator} is none of {', '.join(_OPERATORS)}")
        groups = [(term,) if isinstance(term, str) else term for term in terms]
        flat = [term for group in groups for term in group]
        counted = self._count(flat, view)
        statistics = _statistics(counted, alive) if statistics is None else statistics
        unknown = [term for term in counted.counts if term not in statistics.frequencies]
        if unknown:
            raise InvalidInputError(f"the statistics lack the terms {', '.join(unknown)}")
        scores = _scores(counted, flat, statistics)
        eligible = scores > 0
        if operator == "and":
            for group in groups:
                eligible &= np.any([counted.counts[term] > 0 for term in group], axis=0)
        for mask in (alive, allowed):
            if mask is not None:
                eligible &= mask
        return _best_rows(scores, eligible, k)

    def _count(self, terms: Sequence[str], view: RowView) -> _TermCounts:
        self.catch_up(view)
        state = self._state
        ends = state.ends[: view.rows]
        hashes = state.hashes[: state.tokens(view.rows)]
        distinct = list(dict.fromkeys(terms))
        counts = {
            term: _count_term(hashes, ends, hashed)
            for term, hashed in zip(distinct, hash_terms(distinct), strict=True)
        }
        return _TermCounts(np.diff(ends, prepend=0), counts)

    def _extended(self, state: _State, view: RowView) -> _State:
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
        return _State(hashes, ends, rows)


@dataclass(frozen=True, slots=True, eq=False)
class _TermCounts:
    """Number of tokens of each row, and by term its number of occurrences in each row."""

    lengths: Rows
    counts: dict[str, Rows]


def _statistics(counted: _TermCounts, alive: Mask | None) -> TextStatistics:
    documents = counted.lengths > 0
    if alive is not None:
        documents &= alive
    return TextStatistics(
        int(np.count_nonzero(documents)),
        int(counted.lengths[documents].sum()),
        {
            term: int(np.count_nonzero((counts > 0) & documents))
            for term, counts in counted.counts.items()
        },
    )


def _scores(
    counted: _TermCounts, terms: Sequence[str], statistics: TextStatistics
) -> npt.NDArray[np.float64]:
    scores = np.zeros(len(counted.lengths))
    if not statistics.documents or not statistics.tokens:
        return scores
    for term in terms:
        rows = np.flatnonzero(counted.counts[term])
        scores[rows] += term_scores(
            term, counted.counts[term][rows], lengths=counted.lengths[rows], statistics=statistics
        )
    return scores


def _best_rows(scores: npt.NDArray[np.float64], eligible: Mask, k: int) -> Matches:
    rows = np.flatnonzero(eligible)
    best = scores[rows].astype(np.float32)
    if len(rows) > k:
        limit = np.partition(best, len(rows) - k)[len(rows) - k]
        candidates = best >= limit
        rows, best = rows[candidates], best[candidates]
    order = np.argsort(-best, kind="stable")[:k]
    return Matches(rows[order], best[order])


def _count_term(
    hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64], term: np.uint64
) -> Rows:
    """Count the occurrences of one term in each row."""
    rows = ends.searchsorted(np.flatnonzero(hashes == term), side="right")
    return np.bincount(rows, minlength=len(ends))


def _with_room(array: npt.NDArray[Any], used: int, needed: int) -> npt.NDArray[Any]:
    """Return an array with room for ``needed`` values.

    Readers continue with the old array, which is right for the rows of their views.
    """
    if needed <= len(array):
        return array
    larger = np.empty(max(needed, min(2 * len(array), needed + (1 << 20))), array.dtype)
    larger[:used] = array[:used]
    return larger
