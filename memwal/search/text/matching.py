"""Matching documents and scores of one leaf of a text query in one column.

The documents of all sources are numbered one body after the other, so each term is scored in one
step, however many sources there are. Work grows with the number of documents that hold a term, not
with the number of documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from memwal.lsm.memtable.bm25 import TextStatistics, term_scores
from memwal.lsm.memtable.tokenizer import Tokenizer
from memwal.reader.cache.lru import LruCache
from memwal.reader.hits import Hits
from memwal.search.text.column import TextColumn
from memwal.search.text.documents import Body, Mask, Numbers, Postings
from memwal.search.text.query import MatchQuery, PhraseQuery
from memwal.util.concurrency import run_all

_GATHERED_BYTES = 128 << 20


def gather_postings(column: TextColumn, terms: Sequence[str]) -> dict[str, Postings]:
    """Living documents of a column that hold each of some distinct terms.

    Those of body i count from ``column.starts[i]``. What is gathered is kept as long as the
    sources are the same, unless they are the rows of a MemTable.
    """
    if column.key is None:
        return _gathered(column, terms)
    found = {}
    for term in terms:
        known = _recent.peek((column.key, term))
        if known is not None:
            found[term] = known
    missing = [term for term in terms if term not in found]
    if missing:
        found |= _gathered(column, missing)
    # Those that were known are asked for again, so that they are not forgotten before others.
    return {
        term: _recent.get((column.key, term), partial(found.__getitem__, term)) for term in terms
    }


def _gathered(column: TextColumn, terms: Sequence[str]) -> dict[str, Postings]:
    bodies = column.bodies
    asleep = [number for number, body in enumerate(bodies) if not body.ready(terms)]
    read = run_all([partial(bodies[number].postings, terms) for number in asleep])
    parts = dict(zip(asleep, read, strict=True))
    found = [
        parts[number] if number in parts else body.postings(terms)
        for number, body in enumerate(bodies)
    ]
    return {term: _joined(column, [part[term] for part in found]) for term in terms}


def _joined(column: TextColumn, parts: Sequence[Postings]) -> Postings:
    none = np.empty(0, np.int64)
    starts = column.starts[:-1]
    documents = [part.documents + start for part, start in zip(parts, starts, strict=True)]
    return Postings(
        np.concatenate([none, *documents]),
        np.concatenate([none, *(part.counts for part in parts)]),
        np.concatenate([none, *(part.lengths for part in parts)]),
    )


_recent: LruCache[Postings] = LruCache(_GATHERED_BYTES, lambda postings: postings.nbytes)


# Where at least one in so many documents holds a term, arrays as long as all documents are quicker
# than sorting.
_SPARSE = 32

_ROUNDED = 1 + 1e-6

_Scores = npt.NDArray[np.float64]

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


def leaf_hits(leaf: MatchQuery | PhraseQuery, column: TextColumn, *, k: int | None = None) -> Hits:
    """Find the rows that match a part of a query.

    Parameters
    ----------
    k : int, optional
        Rows that are worse than the k-th best may be left out; by default none is.

    Returns
    -------
    Hits
        In no promised order.
    """
    groups = _groups(leaf, column)
    held = gather_postings(column, distinct_terms(groups))
    statistics = TextStatistics(
        column.documents,
        column.tokens,
        {term: len(postings.documents) for term, postings in held.items()},
    )
    weighed = [
        WeightedTerm(term, held[term], times, statistics)
        for term, times in Counter(term for group in groups for term in group).items()
        if len(held[term].documents)
    ]
    is_any = isinstance(leaf, MatchQuery) and leaf.operator == "or" and leaf.boost > 0
    few = _too_weak(weighed, k) if is_any and k is not None else []
    chosen = [one for one in weighed if one not in few]
    found, slots = _distinct([one.postings.documents for one in chosen], int(column.starts[-1]))
    scores = np.zeros(len(found))
    for one, slot in zip(chosen, slots, strict=True):
        scores[slot] += one.scores()
    for one in few:
        scores += one.scores_at(found)
    if isinstance(leaf, PhraseQuery) or leaf.operator == "and":
        at = {one.term: slot for one, slot in zip(chosen, slots, strict=True)}
        kept = in_all_groups(groups, at, len(found))
        found, scores = found[kept], scores[kept]
    if isinstance(leaf, PhraseQuery):
        kept = _with_phrase(leaf, column, found)
        found, scores = found[kept], scores[kept]
    else:
        scores *= leaf.boost
    near = good_enough(scores, k)
    return rows_of(column, found[near], scores[near])


class WeightedTerm:
    """A term of a query: the documents that hold it, and what it adds to their scores."""

    def __init__(
        self, term: str, postings: Postings, times: int, statistics: TextStatistics
    ) -> None:
        self.term = term
        self.postings = postings
        self._times = times
        self._statistics = statistics
        self._all: _Scores | None = None
        # The most that it adds to any document.
        counts, lengths = postings.counts.max(keepdims=True), postings.lengths.min(keepdims=True)
        self.limit = float(self._of(counts, lengths)[0])

    def scores(self) -> _Scores:
        """What it adds to each document that holds it."""
        if self._all is None:
            self._all = self._of(self.postings.counts, self.postings.lengths)
        return self._all

    def scores_at(self, documents: Numbers) -> _Scores:
        """What it adds to some documents."""
        own = self.postings.documents
        at = np.minimum(np.searchsorted(own, documents), len(own) - 1)
        here = np.flatnonzero(own[at] == documents)
        at = at[here]
        scores = np.zeros(len(documents))
        scores[here] = self._of(self.postings.counts[at], self.postings.lengths[at])
        return scores

    def _of(self, counts: Numbers, lengths: Numbers) -> _Scores:
        return self._times * term_scores(
            self.term, counts, lengths=lengths, statistics=self._statistics
        )


def _too_weak(terms: Sequence[WeightedTerm], k: int) -> list[WeightedTerm]:
    """Terms of which a document may have all and still is not one of the best ``k``.

    What the frequent terms of a query can add is often less than what the k-th best document has
    by a rare one alone (MaxScore; Turtle and Flood, 1995).
    """
    order = sorted(terms, key=lambda one: one.limit)
    surely = 0.0
    for one in order[1:]:
        if len(one.postings.documents) >= k:
            surely = max(surely, float(-np.partition(-one.scores(), k - 1)[k - 1]))
    few = []
    total = 0.0
    for one in order:
        total += one.limit
        # Ranks are those of float32, by which more is equal.
        if total * _ROUNDED >= surely:
            break
        few.append(one)
    return few


def _groups(leaf: MatchQuery | PhraseQuery, column: TextColumn) -> list[tuple[str, ...]]:
    """The terms that stand for each term of the query: itself, or those near it."""
    if isinstance(leaf, MatchQuery) and leaf.fuzziness:
        return _expanded(leaf, leaf.fuzziness, column.bodies)
    return column.tokenizer.query_groups(leaf.query)


def _expanded(leaf: MatchQuery, distance: int, bodies: Sequence[Body]) -> list[tuple[str, ...]]:
    """The terms that exist near each term, as many as the query allows for all together."""
    groups: list[tuple[str, ...]] = []
    left = leaf.max_expansions
    for term in _plain.terms(leaf.query):
        near: set[str] = set()
        if left:
            for body in bodies:
                near.update(
                    body.near(term, distance=distance, prefix=leaf.prefix_length, limit=left)
                )
        chosen = tuple(sorted(near, key=str.encode)[:left])
        left -= len(chosen)
        groups.append(chosen)
    return groups


def _distinct(parts: Sequence[Numbers], size: int) -> tuple[Numbers, list[Numbers]]:
    """What is in any of some ascending arrays of numbers below ``size``.

    Returns
    -------
    numpy.ndarray of int64
        The distinct numbers, ascending.
    list of numpy.ndarray of int64
        Where among them those of each array are.
    """
    total = sum(len(part) for part in parts)
    if len(parts) == 1:
        return parts[0], [np.arange(total)]
    if total * _SPARSE > size:
        present = np.zeros(size, np.bool_)
        for part in parts:
            present[part] = True
        found = np.flatnonzero(present)
        where = np.empty(size, np.int64)
        where[found] = np.arange(len(found))
        return found, [where[part] for part in parts]
    every = np.sort(np.concatenate([np.empty(0, np.int64), *parts]), kind="stable")
    found = every[np.diff(every, prepend=-1) > 0]
    return found, [np.searchsorted(found, part) for part in parts]


def in_all_groups(groups: Sequence[Sequence[str]], at: Mapping[str, Numbers], count: int) -> Mask:
    """Which documents hold a term of every group."""
    kept = np.ones(count, np.bool_)
    for group in groups:
        here = np.zeros(count, np.bool_)
        for term in group:
            if term in at:
                here[at[term]] = True
        kept &= here
    return kept


def _with_phrase(leaf: PhraseQuery, column: TextColumn, found: Numbers) -> Mask:
    """Which documents, which hold all terms of a phrase, hold the phrase."""
    kept = np.zeros(len(found), np.bool_)
    for body, start, first, last in _by_body(column, found):
        kept[first:last] = body.phrase(leaf, found[first:last] - start)
    return kept


def rows_of(column: TextColumn, found: Numbers, values: npt.NDArray[Any]) -> Hits:
    """Hits of documents of a column, ascending, in the same order."""
    parts = [
        Hits.of(body.source, body.rows[found[first:last] - start], values[first:last])
        for body, start, first, last in _by_body(column, found)
    ]
    return Hits.joined(parts)


def _by_body(column: TextColumn, found: Numbers) -> Iterator[tuple[Body, int, int, int]]:
    """Bodies that have some documents: where theirs begin, and the first and last of these."""
    starts, cuts = column.starts.tolist(), np.searchsorted(found, column.starts).tolist()
    for body, start, (first, last) in zip(column.bodies, starts[:-1], pairwise(cuts), strict=True):
        if first < last:
            yield body, start, first, last


def distinct_terms(groups: Sequence[Sequence[str]]) -> list[str]:
    """Every term of some groups once."""
    return list(dict.fromkeys(term for group in groups for term in group))


def good_enough(scores: npt.NDArray[np.float64], k: int | None) -> Numbers:
    """Positions of all scores that are no worse than the k-th best; of all without ``k``."""
    if k is None or k >= len(scores):
        return np.arange(len(scores))
    values = scores.astype(np.float32)
    return np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k])


def numbered(parts: Sequence[Hits]) -> tuple[Hits, list[Numbers]]:
    """Number the rows of several searches, the same row the same.

    Returns
    -------
    Hits
        Each row once, by number.
    list of numpy.ndarray of int64
        Numbers of the rows of each search.
    """
    every = Hits.joined(parts)
    order = np.lexsort((every.rows, every.source))
    ordered = every.take(order)
    first = np.ones(len(order), np.bool_)
    first[1:] = np.diff(ordered.source) != 0
    first[1:] |= ordered.rows[1:] != ordered.rows[:-1]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(first) - 1
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    return ordered.take(first), np.split(numbers, cuts)
