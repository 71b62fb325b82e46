"""Text search over the base table and everything that is not in it yet, ranked as one table.

BM25 depends on how many documents there are, how long they are and how many hold a term. These are
counted over all sources, without rows that were replaced or deleted, and every matching document
is scored with them. Nothing is ranked by the statistics of one source, so that the best rows are
exactly those of a table that has everything merged and a fresh index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memwal.errors import InvalidInputError
from memwal.reader.hits import Hits, matching
from memwal.reader.newest import NewestRows
from memwal.reader.sources import ReadSources
from memwal.reader.text_bodies import Numbers
from memwal.reader.text_choice import text_columns
from memwal.reader.text_column import TextColumn, open_column
from memwal.reader.text_fields import combined_hits
from memwal.reader.text_leaves import leaf_hits, numbered
from memwal.reader.text_query import (
    BooleanQuery,
    BoostQuery,
    CombinedFieldsQuery,
    Leaf,
    MatchQuery,
    MultiMatchQuery,
    TextQuery,
    leaves,
)

# So many of the best rows are given to a filter at first, and so many times more each time.
_FILTERED = 64
_GROWTH = 8

_Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Scored:
    """Hits of a part of a query by number, ascending, and their scores."""

    rows: Numbers
    scores: _Scores


def best_texts(
    sources: ReadSources,
    newest: NewestRows,
    query: str | TextQuery,
    *,
    columns: str | Sequence[str] | None = None,
    k: int | None = 10,
    filter: str | None = None,
) -> Hits:
    """Find the rows whose texts match best.

    Parameters
    ----------
    sources, newest
        See :func:`memwal.reader.scan.collect_newest`.
    query : str or query
        Text, for a query of any of its terms; or one of the classes of
        :mod:`memwal.reader.text_query`.
    columns : str or sequence of str, optional
        Where to search for text; all columns with a text index by default. The best one counts.
        A query object names its own.
    k : int or None, default 10
        How many rows at most; None returns all that match.
    filter : str, optional
        SQL predicate over any columns. It does not touch the scores.

    Returns
    -------
    Hits
        Best first, with their scores.

    Raises
    ------
    InvalidInputError
        A column has no text index, or an argument is not right.
    """
    if k is not None and k < 1:
        raise InvalidInputError(f"k is {k}; ask for at least one row")
    asked = _asked(sources, query, columns)
    parts = list(dict.fromkeys(leaves(asked)))
    opened = {
        column: open_column(sources, newest, column)
        for column in dict.fromkeys(column for leaf in parts for column in leaf.columns)
    }
    if len(parts) == 1 and asked == parts[0]:
        best = k if filter is None else None
        found = _leaf(parts[0], opened, k=best)
    else:
        found = _combined(asked, {leaf: _leaf(leaf, opened) for leaf in parts})
    if filter is None:
        return found.best(k, smallest=False)
    return _filtered(sources, found, k, filter)


def _asked(
    sources: ReadSources, query: str | TextQuery, columns: str | Sequence[str] | None
) -> TextQuery:
    if not isinstance(query, str):
        if columns is not None:
            raise InvalidInputError("a query object names its columns; leave columns out")
        return query
    names = [columns] if isinstance(columns, str) else columns
    if names is None:
        names = text_columns(sources.base)
    if not names:
        raise InvalidInputError("the table has no text index; create one on the base table")
    return MatchQuery(query, names[0]) if len(names) == 1 else MultiMatchQuery(query, tuple(names))


def _filtered(sources: ReadSources, found: Hits, k: int | None, predicate: str) -> Hits:
    """The best rows that a predicate lets through, reading as few of them as will do."""
    if k is None:
        ordered = found.best(None, smallest=False)
        return ordered.take(matching(sources, ordered, predicate))
    tried = max(_FILTERED, 2 * k)
    while True:
        best = found.best(tried, smallest=False)
        kept = best.take(matching(sources, best, predicate))
        if len(kept) >= k or tried >= len(found):
            return kept.take(np.arange(min(k, len(kept))))
        tried *= _GROWTH


def _leaf(leaf: Leaf, opened: Mapping[str, TextColumn], *, k: int | None = None) -> Hits:
    if isinstance(leaf, CombinedFieldsQuery):
        return combined_hits(leaf, [opened[column] for column in leaf.columns], k=k)
    return leaf_hits(leaf, opened[leaf.column], k=k)


def _combined(query: TextQuery, hits: Mapping[Leaf, Hits]) -> Hits:
    """Hits of a query, from those of its leaves."""
    rows, numbers = numbered(list(hits.values()))
    scored = {}
    for (leaf, found), mine in zip(hits.items(), numbers, strict=True):
        order = np.argsort(mine, kind="stable")
        scored[leaf] = _Scored(mine[order], found.values[order])
    result = _evaluate(query, scored)
    return Hits(rows.source[result.rows], rows.rows[result.rows], result.scores)


def _evaluate(query: TextQuery, scored: Mapping[Leaf, _Scored]) -> _Scored:
    if isinstance(query, Leaf):
        return scored[query]
    if isinstance(query, MultiMatchQuery):
        parts = [_evaluate(part, scored) for part in query.parts]
        rows = _union([part.rows for part in parts])
        scores = np.full(len(rows), -np.inf)
        for part in parts:
            at = np.searchsorted(rows, part.rows)
            scores[at] = np.maximum(scores[at], part.scores)
        return _Scored(rows, scores)
    if isinstance(query, BoostQuery):
        positive = _evaluate(query.positive, scored)
        negative = _evaluate(query.negative, scored)
        taken = query.negative_boost * _scores_at(negative, positive.rows)
        return _Scored(positive.rows, positive.scores - taken)
    return _evaluate_boolean(query, scored)


def _evaluate_boolean(query: BooleanQuery, scored: Mapping[Leaf, _Scored]) -> _Scored:
    must = [_evaluate(part, scored) for part in query.of("must")]
    should = [_evaluate(part, scored) for part in query.of("should")]
    if must:
        rows = must[0].rows
        for part in must[1:]:
            rows = np.intersect1d(rows, part.rows, assume_unique=True)
    else:
        rows = _union([part.rows for part in should])
    for excluded in query.of("must_not"):
        rows = np.setdiff1d(rows, _evaluate(excluded, scored).rows, assume_unique=True)
    scores = np.zeros(len(rows))
    for part in (*must, *should):
        scores += _scores_at(part, rows)
    return _Scored(rows, scores)


def _union(parts: Sequence[Numbers]) -> Numbers:
    return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))


def _scores_at(scored: _Scored, rows: Numbers) -> _Scores:
    """Scores of some hits, 0 of those that do not match."""
    if not len(scored.rows):
        return np.zeros(len(rows))
    at = np.minimum(np.searchsorted(scored.rows, rows), len(scored.rows) - 1)
    return np.where(scored.rows[at] == rows, scored.scores[at], 0.0)
