"""Matching documents and scores of one leaf of a text query in one column.

The documents of all sources are numbered consecutively, so each term is scored in one step, however
many sources there are. Work grows with the number of documents that contain a term, not with the
number of all documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from math import log1p

import numpy as np
import numpy.typing as npt

from memwal.lsm.memtable.text_index import Tokenizer
from memwal.reader.hits import Hits
from memwal.reader.sources.cache import LruCache
from memwal.search.text.column import TextColumn
from memwal.search.text.documents import DocumentSet, Postings
from memwal.search.text.query import MatchQuery, PhraseQuery
from memwal.util.arrays import Mask, Numbers, nbytes_of
from memwal.util.concurrency import run_all

# If at least one in this many documents contains a term, arrays over all documents are faster than
# sorting.
_SPARSE = 32
_ROUNDING = 1 + 1e-6
# Of BM25, as in Lance.
_K1 = 1.2
_B = 0.75
_Scores = npt.NDArray[np.float64]
# Lance compares the words of a fuzzy query with indexed tokens without normalizing them.
_FUZZY_TOKENIZER = Tokenizer(
    {
        "base_tokenizer": "simple",
        "lower_case": False,
        "stem": False,
        "remove_stop_words": False,
        "ascii_folding": False,
        "max_token_length": None,
    }
)


@dataclass(frozen=True, slots=True)
class TextStatistics:
    """Statistics of a set of documents for BM25."""

    documents: int  # with at least one token
    tokens: float  # of all documents; not whole if tokens have weights
    frequencies: Mapping[str, int]  # number of documents that contain the term, by term


def term_scores(
    term: str,
    counts: Numbers | _Scores,
    *,
    lengths: Numbers | _Scores,
    statistics: TextStatistics,
) -> _Scores:
    """Compute the part of a term in the BM25 scores of documents, as Lance does.

    ``counts`` and ``lengths`` are the occurrences of the term in each document, and its number of
    tokens. The statistics are of all documents that are ranked together, at least one.
    """
    frequency = statistics.frequencies[term]
    weight = log1p((statistics.documents - frequency + 0.5) / (frequency + 0.5))
    average = statistics.tokens / statistics.documents
    damping = _K1 * (1 - _B + _B * lengths / average)
    scores: _Scores = weight * counts * (_K1 + 1) / (counts + damping)
    return scores


def gather_postings(column: TextColumn, terms: Sequence[str]) -> dict[str, Postings]:
    """Read the live documents with each of some distinct terms, numbered over all sets; cached."""
    if column.key is None:
        return _read_postings(column, terms)
    cached = {term: _postings_cache.use((column.key, term)) for term in terms}
    postings = {term: one for term, one in cached.items() if one is not None}
    missing = [term for term in terms if term not in postings]
    for term, one in _read_postings(column, missing).items() if missing else ():
        _postings_cache.put((column.key, term), one)
        postings[term] = one
    return postings


def leaf_hits(leaf: MatchQuery | PhraseQuery, column: TextColumn, *, k: int | None = None) -> Hits:
    """Find the rows that match a leaf, unordered; those below the ``k``-th best may be left out."""
    # The terms that match each term of the query: itself, or its fuzzy expansion.
    groups = (
        _expand_fuzzy(leaf, leaf.fuzziness, column.document_sets)
        if isinstance(leaf, MatchQuery) and leaf.fuzziness
        else column.tokenizer.query_groups(leaf.query)
    )
    postings = gather_postings(column, list(dict.fromkeys(chain.from_iterable(groups))))
    statistics = TextStatistics(
        column.documents,
        column.tokens,
        {term: len(postings.documents) for term, postings in postings.items()},
    )
    weighed = [
        WeightedTerm(term, postings[term], times, statistics)
        for term, times in Counter(chain.from_iterable(groups)).items()
        if len(postings[term].documents)
    ]
    is_any = isinstance(leaf, MatchQuery) and leaf.operator == "or" and leaf.boost > 0
    few = _non_essential_terms(weighed, k) if is_any and k is not None else []
    chosen = [weighted for weighted in weighed if weighted not in few]
    documents, slots = _merge_sorted(
        [weighted.postings.documents for weighted in chosen], int(column.starts[-1])
    )
    scores = np.zeros(len(documents))
    for weighted, slot in zip(chosen, slots, strict=True):
        scores[slot] += weighted.scores()
    for weighted in few:
        scores += weighted.scores_at(documents)
    if isinstance(leaf, PhraseQuery) or leaf.operator == "and":
        at = {weighted.term: slot for weighted, slot in zip(chosen, slots, strict=True)}
        matching = in_all_groups(groups, at, len(documents))
        documents, scores = documents[matching], scores[matching]
    if isinstance(leaf, PhraseQuery):
        parts = [
            docs.phrase(leaf, documents[first:last] - start)
            for docs, start, first, last in _split_by_set(column, documents)
        ]
        matching = np.concatenate([np.zeros(0, np.bool_), *parts])
        documents, scores = documents[matching], scores[matching]
    else:
        scores *= leaf.boost
    near = top_positions(scores, k)
    return document_hits(column, documents[near], scores[near])


class WeightedTerm:
    """Term of a query with its postings and its contribution to their scores."""

    def __init__(
        self, term: str, postings: Postings, times: int, statistics: TextStatistics
    ) -> None:
        self.term = term
        self.postings = postings
        self._times = times
        self._statistics = statistics
        self._all: _Scores | None = None
        # Upper bound of the contribution to one document.
        counts, lengths = postings.counts.max(keepdims=True), postings.lengths.min(keepdims=True)
        self.limit = float(self._contributions(counts, lengths)[0])

    def scores(self) -> _Scores:
        """Return the contribution to each document that contains the term."""
        if self._all is None:
            self._all = self._contributions(self.postings.counts, self.postings.lengths)
        return self._all

    def scores_at(self, documents: Numbers) -> _Scores:
        """Return the contribution to each of ``documents``."""
        own = self.postings.documents
        at = np.minimum(np.searchsorted(own, documents), len(own) - 1)
        here = np.flatnonzero(own[at] == documents)
        at = at[here]
        scores = np.zeros(len(documents))
        scores[here] = self._contributions(self.postings.counts[at], self.postings.lengths[at])
        return scores

    def _contributions(self, counts: Numbers, lengths: Numbers) -> _Scores:
        return self._times * term_scores(
            self.term, counts, lengths=lengths, statistics=self._statistics
        )


def in_all_groups(groups: Sequence[Sequence[str]], at: Mapping[str, Numbers], count: int) -> Mask:
    """Mark the documents that contain a term of every group."""
    in_all = np.ones(count, np.bool_)
    for group in groups:
        here = np.zeros(count, np.bool_)
        for term in group:
            if term in at:
                here[at[term]] = True
        in_all &= here
    return in_all


def document_hits(column: TextColumn, documents: Numbers, values: npt.NDArray[np.number]) -> Hits:
    """Convert documents of a column, ascending, to hits in the same order."""
    parts = [
        Hits.of(docs.source, docs.rows[documents[first:last] - start], values[first:last])
        for docs, start, first, last in _split_by_set(column, documents)
    ]
    return Hits.joined(parts)


def top_positions(scores: npt.NDArray[np.float64], k: int | None) -> Numbers:
    """Return the positions of all scores not below the k-th best; all without ``k``."""
    if k is None or k >= len(scores):
        return np.arange(len(scores))
    values = scores.astype(np.float32)
    return np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k])


def number_rows(parts: Sequence[Hits]) -> tuple[Hits, list[Numbers]]:
    """Number the distinct rows of several searches; also return the numbers for each search."""
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


def _read_postings(column: TextColumn, terms: Sequence[str]) -> dict[str, Postings]:
    document_sets = column.document_sets[len(column.group) :]
    # Threads only where storage has to be asked.
    reads = [partial(docs.postings, terms) for docs in document_sets]
    asked = [not docs.is_in_memory(terms) for docs in document_sets]
    from_storage = iter(run_all([read for read, waits in zip(reads, asked, strict=True) if waits]))
    by_set = [
        next(from_storage) if waits else read() for read, waits in zip(reads, asked, strict=True)
    ]
    starts = [0, *column.starts[len(column.group) : -1].tolist()]
    joined = {}
    for term in terms:
        parts = [column.group.postings(term), *(part[term] for part in by_set)]
        documents = [part.documents + start for part, start in zip(parts, starts, strict=True)]
        joined[term] = Postings(
            np.concatenate(documents),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )
    return joined


def _non_essential_terms(terms: Sequence[WeightedTerm], k: int) -> list[WeightedTerm]:
    """Return the non-essential terms: a document with these terms only is not among the best ``k``.

    The frequent terms of a query together often add less than the k-th best document scores by a
    rare term alone (MaxScore; Turtle and Flood, 1995).
    """
    order = sorted(terms, key=lambda term: term.limit)
    surely = 0.0
    for term in order[1:]:
        if len(term.postings.documents) >= k:
            surely = max(surely, float(-np.partition(-term.scores(), k - 1)[k - 1]))
    few = []
    total = 0.0
    for term in order:
        total += term.limit
        # Ranks are those of float32, by which more is equal.
        if total * _ROUNDING >= surely:
            break
        few.append(term)
    return few


def _expand_fuzzy(
    leaf: MatchQuery, distance: int, document_sets: Sequence[DocumentSet]
) -> list[tuple[str, ...]]:
    """Expand each term to indexed terms, up to ``max_expansions`` over all terms."""
    groups: list[tuple[str, ...]] = []
    budget = leaf.max_expansions
    for term in _FUZZY_TOKENIZER.terms(leaf.query):
        near: set[str] = set()
        if budget:
            for docs in document_sets:
                near.update(
                    docs.fuzzy_terms(
                        term, distance=distance, prefix=leaf.prefix_length, limit=budget
                    )
                )
        chosen = tuple(sorted(near, key=str.encode)[:budget])
        budget -= len(chosen)
        groups.append(chosen)
    return groups


def _merge_sorted(parts: Sequence[Numbers], size: int) -> tuple[Numbers, list[Numbers]]:
    """Merge ascending arrays of numbers below ``size``; also return the places of each one's."""
    total = sum(len(part) for part in parts)
    if len(parts) == 1:
        return parts[0], [np.arange(total)]
    if total * _SPARSE > size:
        present = np.zeros(size, np.bool_)
        for part in parts:
            present[part] = True
        merged = np.flatnonzero(present)
        where = np.empty(size, np.int64)
        where[merged] = np.arange(len(merged))
        return merged, [where[part] for part in parts]
    every = np.sort(np.concatenate([np.empty(0, np.int64), *parts]), kind="stable")
    merged = every[np.diff(every, prepend=-1) > 0]
    return merged, [np.searchsorted(merged, part) for part in parts]


def _split_by_set(
    column: TextColumn, documents: Numbers
) -> Iterator[tuple[DocumentSet, int, int, int]]:
    """Split documents by document set: the set, its first number, and the range in ``found``."""
    starts, cuts = column.starts.tolist(), np.searchsorted(documents, column.starts).tolist()
    for docs, start, (first, last) in zip(
        column.document_sets, starts[:-1], pairwise(cuts), strict=True
    ):
        if first < last:
            yield docs, start, first, last


_postings_cache: LruCache[Postings] = LruCache(128 << 20, nbytes_of)
