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
from memwal.memtable.text_scores import TextStatistics, term_scores
from memwal.memtable.text_tokens import Tokenizer
from memwal.reader.hits import Hits, matching
from memwal.reader.newest import NewestRows
from memwal.reader.parallel import run_all
from memwal.reader.row_set import RowIds
from memwal.reader.sources import ReadSources
from memwal.reader.text_bodies import Body, Postings, total_size
from memwal.reader.text_column import TextColumn, open_column, text_columns
from memwal.reader.text_query import (
    BooleanQuery,
    BoostQuery,
    Leaf,
    MatchQuery,
    MultiMatchQuery,
    PhraseQuery,
    TextQuery,
    leaves,
)

# So many of the best rows are given to a filter at first, and so many times more each time.
_FILTERED = 64
_GROWTH = 8

# Lance takes the words of a fuzzy query as they are, and compares them with what is indexed.
_plain = Tokenizer(
    {
        "base_tokenizer": "simple",
        "lower_case": False,
        "stem": False,
        "remove_stop_words": False,
        "ascii_folding": False,
        "max_token_length": None,
    }
)

_Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Scored:
    """Rows of one source, ascending, and their scores."""

    rows: RowIds
    scores: _Scores


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A leaf of a query with everything that its scores depend on.

    ``groups`` are the terms that stand for each term of the query: itself, or those near it.
    """

    groups: tuple[tuple[str, ...], ...]
    statistics: TextStatistics
    found: tuple[tuple[Body, dict[str, Postings]], ...]


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
        for column in dict.fromkeys(leaf.column for leaf in parts)
    }
    prepared = {leaf: _prepare(leaf, opened[leaf.column]) for leaf in parts}
    numbers = sorted({body.source for column in opened.values() for body in column.bodies})
    hits = []
    for number in numbers:
        scored = _evaluate(asked, number, prepared)
        hits.append(Hits.of(number, scored.rows, scored.scores))
    found = Hits.joined(hits)
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


def _prepare(leaf: Leaf, column: TextColumn) -> _Prepared:
    groups: list[tuple[str, ...]]
    if isinstance(leaf, MatchQuery) and leaf.fuzziness:
        groups = _expanded(leaf, _plain.terms(leaf.query), column.bodies)
    else:
        groups = column.tokenizer.query_groups(leaf.query)
    wanted = list(dict.fromkeys(term for group in groups for term in group))
    postings = run_all(
        [lambda body=body: body.postings(wanted) for body in column.bodies]  # type: ignore[misc]
    )
    documents, tokens = total_size(column.bodies)
    frequencies = {term: sum(len(found[term].documents) for found in postings) for term in wanted}
    return _Prepared(
        tuple(groups),
        TextStatistics(documents, tokens, frequencies),
        tuple(zip(column.bodies, postings, strict=True)),
    )


def _expanded(
    leaf: MatchQuery, terms: Sequence[str], bodies: Sequence[Body]
) -> list[tuple[str, ...]]:
    """The terms that exist near each term, as many as the query allows for all together."""
    groups: list[tuple[str, ...]] = []
    left = leaf.max_expansions
    for term in terms:
        near: set[str] = set()
        if left:
            for body in bodies:
                near.update(
                    body.near(term, distance=leaf.fuzziness, prefix=leaf.prefix_length, limit=left)
                )
        chosen = tuple(sorted(near, key=str.encode)[:left])
        left -= len(chosen)
        groups.append(chosen)
    return groups


def _evaluate(query: TextQuery, source: int, prepared: Mapping[Leaf, _Prepared]) -> _Scored:
    if isinstance(query, MatchQuery | PhraseQuery):
        return _evaluate_leaf(query, source, prepared[query])
    if isinstance(query, MultiMatchQuery):
        parts = [_evaluate(part, source, prepared) for part in query.parts]
        rows = _union([part.rows for part in parts])
        scores = np.full(len(rows), -np.inf)
        for part in parts:
            at = np.searchsorted(rows, part.rows)
            scores[at] = np.maximum(scores[at], part.scores)
        return _Scored(rows, scores)
    if isinstance(query, BoostQuery):
        positive = _evaluate(query.positive, source, prepared)
        negative = _evaluate(query.negative, source, prepared)
        taken = query.negative_boost * _scores_at(negative, positive.rows)
        return _Scored(positive.rows, positive.scores - taken)
    return _evaluate_boolean(query, source, prepared)


def _evaluate_boolean(
    query: BooleanQuery, source: int, prepared: Mapping[Leaf, _Prepared]
) -> _Scored:
    must = [_evaluate(part, source, prepared) for part in query.of("must")]
    should = [_evaluate(part, source, prepared) for part in query.of("should")]
    if must:
        rows = must[0].rows
        for part in must[1:]:
            rows = np.intersect1d(rows, part.rows, assume_unique=True)
    else:
        rows = _union([part.rows for part in should])
    for excluded in query.of("must_not"):
        gone = _evaluate(excluded, source, prepared).rows
        rows = np.setdiff1d(rows, gone, assume_unique=True)
    scores = np.zeros(len(rows))
    for part in (*must, *should):
        scores += _scores_at(part, rows)
    return _Scored(rows, scores)


def _evaluate_leaf(leaf: Leaf, source: int, prepared: _Prepared) -> _Scored:
    parts = []
    for body, postings in prepared.found:
        if body.source == source:
            documents, scores = _score(leaf, body, postings, prepared)
            parts.append((body.rows[documents], scores))
    rows = np.concatenate([np.empty(0, np.uint64), *(rows for rows, _ in parts)])
    scores = np.concatenate([np.empty(0), *(scores for _, scores in parts)])
    if len(rows) and (np.diff(rows.astype(np.int64)) < 0).any():
        order = np.argsort(rows)
        rows, scores = rows[order], scores[order]
    return _Scored(rows, scores)


def _score(
    leaf: Leaf, body: Body, postings: Mapping[str, Postings], prepared: _Prepared
) -> tuple[npt.NDArray[np.int64], _Scores]:
    """Documents of one body that match, ascending, and their scores."""
    nothing = np.empty(0, np.int64), np.empty(0)
    if not prepared.groups:
        return nothing
    scores = np.zeros(len(body.rows))
    present = np.zeros(len(body.rows), np.bool_)
    for group in prepared.groups:
        for term in group:
            held = postings[term]
            if not len(held.documents):
                continue
            present[held.documents] = True
            scores[held.documents] += term_scores(
                term, held.counts, lengths=held.lengths, statistics=prepared.statistics
            )
    if isinstance(leaf, PhraseQuery) or leaf.operator == "and":
        for group in prepared.groups:
            here = np.zeros(len(body.rows), np.bool_)
            for term in group:
                here[postings[term].documents] = True
            present &= here
    documents = np.flatnonzero(present)
    if isinstance(leaf, PhraseQuery):
        documents = documents[body.phrase(leaf, documents)] if len(documents) else documents
        return documents, scores[documents]
    return documents, leaf.boost * scores[documents]


def _union(parts: Sequence[RowIds]) -> RowIds:
    return np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))


def _scores_at(scored: _Scored, rows: RowIds) -> _Scores:
    """Scores of some rows, 0 of those that do not match."""
    if not len(scored.rows):
        return np.zeros(len(rows))
    at = np.minimum(np.searchsorted(scored.rows, rows), len(scored.rows) - 1)
    return np.where(scored.rows[at] == rows, scored.scores[at], 0.0)
