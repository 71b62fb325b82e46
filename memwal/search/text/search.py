"""Full-text search over the base table and all unmerged rows, ranked as one table.

BM25 depends on the number of documents, their lengths, and the number that contain a term. These
statistics are counted over all sources, without rows that were replaced or deleted, and every
matching document is scored with them. The best rows are therefore exactly those of a table with
everything merged and a fresh index. Several columns can be scored as one (BM25F).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memwal.errors import InvalidInputError
from memwal.reader.hits import Hits, filter_hits
from memwal.reader.latest import NewestRows
from memwal.reader.sources.generation import ReadSources
from memwal.reader.unreadable_indexes import retry_unreadable
from memwal.search.text.column import TextColumn, open_column, text_columns
from memwal.search.text.matching import (
    TextStatistics,
    document_hits,
    gather_postings,
    in_all_groups,
    leaf_hits,
    number_rows,
    term_scores,
    top_positions,
)
from memwal.search.text.query import (
    BooleanQuery,
    BoostQuery,
    CombinedFieldsQuery,
    Leaf,
    MatchQuery,
    MultiMatchQuery,
    TextQuery,
    columns_of,
    leaves,
)
from memwal.util.arrays import Numbers, distinct

# A filter is applied to this many of the best rows first, then to this many times more each time.
_FILTERED = 64
_GROWTH = 8
_Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _ScoredRows:
    """Row numbers of a subquery's hits, ascending, and their scores."""

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
    """Find the rows whose texts match best: hits with scores, best first; ``k`` is None for all."""
    if k is not None and k < 1:
        raise InvalidInputError(f"k is {k}; ask for at least one row")
    parsed = _parse_query(sources, query, columns)
    parts = list(dict.fromkeys(leaves(parsed)))

    def find() -> Hits:
        opened = {
            column: open_column(sources, newest, column)
            for column in dict.fromkeys(column for leaf in parts for column in columns_of(leaf))
        }
        if len(parts) == 1 and parsed == parts[0]:
            best = k if filter is None else None
            hits = _search_leaf(parts[0], opened, k=best)
        else:
            hits = _combine_leaves(parsed, {leaf: _search_leaf(leaf, opened) for leaf in parts})
        if filter is None:
            return hits.best(k, smallest=False)
        return _best_passing(sources, hits, k, filter)

    return retry_unreadable(find)


def combined_hits(
    query: CombinedFieldsQuery, columns: Sequence[TextColumn], *, k: int | None = None
) -> Hits:
    """Find the rows that match a query over several columns combined (BM25F).

    A term is as frequent as in the column where it is most frequent, and there are as many
    documents as in the column that has most. Lengths and counts are added up, times the weights.
    ``columns`` are those of the query, in its order; InvalidInputError is raised if they have
    different tokenizers. Rows that score below the ``k``-th best may be left out.
    """
    tokenizer = columns[0].tokenizer
    if any(column.tokenizer.options != tokenizer.options for column in columns):
        raise InvalidInputError(
            f"the text indexes of {', '.join(query.columns)} have different tokenizers; columns "
            "are combined only if theirs is the same"
        )
    terms = list(dict.fromkeys(tokenizer.terms(query.query)))
    fields = [gather_postings(column, terms) for column in columns]
    rows, numbers = number_rows(
        [
            document_hits(column, field[term].documents, field[term].counts)
            for column, field in zip(columns, fields, strict=True)
            for term in terms
        ]
    )
    counts = {term: np.zeros(len(rows)) for term in terms}
    at: dict[str, list[Numbers]] = {term: [] for term in terms}
    remaining = iter(numbers)
    for field, weight in zip(fields, query.weights, strict=True):
        for term in terms:
            mine = next(remaining)
            at[term].append(mine)
            counts[term][mine] += weight * field[term].counts
    weighted = list(zip(query.weights, columns, strict=True))
    statistics = TextStatistics(
        max(column.documents for column in columns),
        sum(weight * column.tokens for weight, column in weighted),
        {term: max(len(field[term].documents) for field in fields) for term in terms},
    )
    lengths = np.zeros(len(rows))
    for weight, column in weighted:
        for docs in column.document_sets:
            # Rows are ordered by source.
            first, last = np.searchsorted(rows.source, [docs.source, docs.source + 1])
            lengths[first:last] += weight * docs.lengths_of(rows.rows[first:last])
    scores = np.zeros(len(rows))
    for term in terms:
        here = np.flatnonzero(counts[term])
        if len(here):
            scores[here] += term_scores(
                term, counts[term][here], lengths=lengths[here], statistics=statistics
            )
    hits = Hits(rows.source, rows.rows, scores)
    if query.operator == "and":
        places = {term: np.concatenate(parts) for term, parts in at.items()}
        hits = hits.take(in_all_groups([(term,) for term in terms], places, len(rows)))
    return hits.take(top_positions(hits.values, k))


def _parse_query(
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


def _best_passing(sources: ReadSources, hits: Hits, k: int | None, predicate: str) -> Hits:
    """Return the best rows that pass a predicate, applying it to as few rows as needed."""
    if k is None:
        ordered = hits.best(None, smallest=False)
        return ordered.take(filter_hits(sources, ordered, predicate))
    tried = max(_FILTERED, 2 * k)
    while True:
        best = hits.best(tried, smallest=False)
        passing = best.take(filter_hits(sources, best, predicate))
        if len(passing) >= k or tried >= len(hits):
            return passing.take(np.arange(min(k, len(passing))))
        tried *= _GROWTH


def _search_leaf(leaf: Leaf, opened: Mapping[str, TextColumn], *, k: int | None = None) -> Hits:
    if isinstance(leaf, CombinedFieldsQuery):
        return combined_hits(leaf, [opened[column] for column in leaf.columns], k=k)
    return leaf_hits(leaf, opened[leaf.column], k=k)


def _combine_leaves(query: TextQuery, hits: Mapping[Leaf, Hits]) -> Hits:
    rows, numbers = number_rows(list(hits.values()))
    scored = {}
    for (leaf, found), mine in zip(hits.items(), numbers, strict=True):
        order = np.argsort(mine, kind="stable")
        scored[leaf] = _ScoredRows(mine[order], found.values[order])
    result = _evaluate(query, scored)
    return Hits(rows.source[result.rows], rows.rows[result.rows], result.scores)


def _evaluate(query: TextQuery, scored: Mapping[Leaf, _ScoredRows]) -> _ScoredRows:
    if isinstance(query, Leaf):
        return scored[query]
    if isinstance(query, MultiMatchQuery):
        parts = [_evaluate(part, scored) for part in query.parts]
        rows = _union([part.rows for part in parts])
        scores = np.full(len(rows), -np.inf)
        for part in parts:
            at = np.searchsorted(rows, part.rows)
            scores[at] = np.maximum(scores[at], part.scores)
        return _ScoredRows(rows, scores)
    if isinstance(query, BoostQuery):
        positive = _evaluate(query.positive, scored)
        negative = _evaluate(query.negative, scored)
        taken = query.negative_boost * _scores_at(negative, positive.rows)
        return _ScoredRows(positive.rows, positive.scores - taken)
    return _evaluate_boolean(query, scored)


def _evaluate_boolean(query: BooleanQuery, scored: Mapping[Leaf, _ScoredRows]) -> _ScoredRows:
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
    return _ScoredRows(rows, scores)


def _union(parts: Sequence[Numbers]) -> Numbers:
    return distinct(np.concatenate([np.empty(0, np.int64), *parts]))


def _scores_at(scored: _ScoredRows, rows: Numbers) -> _Scores:
    """Return the scores of some rows, 0 for rows that do not match."""
    if not len(scored.rows):
        return np.zeros(len(rows))
    at = np.minimum(np.searchsorted(scored.rows, rows), len(scored.rows) - 1)
    return np.where(scored.rows[at] == rows, scored.scores[at], 0.0)
