"""Document sets: the documents of a text column in one source, indexed or tokenized on the fly.

A document set knows which of its documents are live (not replaced or deleted) in the snapshot that
is searched, so counts over all sets add up to those of one merged table. The live documents, and
the documents that contain a phrase, are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.lsm.indexes.kinds import kind_of
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.text_index import TextIndex, Tokenizer
from memwal.reader.base_rows import ReplacedRows
from memwal.reader.hits import BASE
from memwal.reader.row_set import contains
from memwal.reader.sources.cache import LruCache, version_key
from memwal.reader.unreadable_indexes import is_index_damage, leave_out
from memwal.search.text.fst import next_row
from memwal.search.text.index_files import TextPartition
from memwal.search.text.postings import decode_postings
from memwal.search.text.query import PhraseQuery
from memwal.util.arrays import Mask, Numbers, RowIds, distinct, nbytes_of

_MASK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Postings:
    """Live documents that contain a term."""

    documents: Numbers  # Numbers within the document set, ascending.
    counts: Numbers  # How often each contains the term.
    lengths: Numbers  # Number of tokens of each.


@dataclass(frozen=True, slots=True, eq=False)
class IndexedDocuments:
    """Documents of a partition of a text index."""

    source: int  # Number of the source, as in hits.
    partition: TextPartition
    # Row ids of the documents in the source. They differ from those in the index of a
    # generation that answers for rows of the base table.
    rows: RowIds
    alive: Mask  # Which documents exist.
    size: tuple[int, int]  # Live documents, and their tokens.
    # Returns the row ids, as the index has them, of the rows with a phrase.
    phrases: Callable[[PhraseQuery], RowIds]

    @property
    def nbytes(self) -> int:
        """Memory beside that of the index, in bytes."""
        own = 0 if self.rows is self.partition.rows else self.rows.nbytes
        return int(own + self.alive.nbytes)

    def postings(self, terms: Sequence[str]) -> dict[str, Postings]:
        """Return the live documents that contain each of some distinct terms."""
        found = {}
        for term in terms:
            documents, counts = self.partition.postings(term)
            if self.size[0] < len(self.alive):
                alive = self.alive[documents]
                documents, counts = documents[alive], counts[alive]
            lengths = self.partition.lengths[documents].astype(np.int64)
            found[term] = Postings(documents, counts, lengths)
        return found

    def is_in_memory(self, terms: Sequence[str]) -> bool:
        """Return whether storage need not be asked for :meth:`postings`."""
        return self.partition.is_in_memory(terms)

    def lengths_of(self, rows: RowIds) -> Numbers:
        """Return the number of tokens of each row; 0 for rows that are no live document here."""
        return _lengths_of(rows, self.rows, np.where(self.alive, self.partition.lengths, 0))

    def fuzzy_terms(self, term: str, *, distance: int, prefix: int, limit: int) -> list[str]:
        """Return the first terms of live documents within an edit distance, in byte order."""
        terms: list[str] = []
        for other in self.partition.fuzzy_terms(term, distance=distance, prefix=prefix):
            if len(terms) == limit:
                break
            if self.alive[self.partition.postings(other)[0]].any():
                terms.append(other)
        return terms

    def phrase(self, query: PhraseQuery, documents: Numbers) -> Mask:
        """Mark the documents that contain a phrase; all of them contain all of its terms."""
        return np.isin(self.partition.rows[documents], self.phrases(query))


class PartitionGroup:
    """Documents of partitions whose posting lists are in memory, numbered consecutively.

    The lists of a term are decoded together, however many partitions there are.
    """

    def __init__(self, document_sets: Sequence[IndexedDocuments], *, cached: bool) -> None:
        self.partitions = tuple(docs.partition for docs in document_sets)
        # Number of the first document of each partition.
        self.starts: Numbers = np.cumsum([0, *(len(docs.rows) for docs in document_sets)])[:-1]
        # Which documents exist, and the number of tokens of each.
        self.alive = np.concatenate([np.empty(0, np.bool_), *(d.alive for d in document_sets)])
        lengths = [partition.lengths for partition in self.partitions]
        self.lengths = np.concatenate([np.empty(0, np.uint32), *lengths])
        # Of its lists in the cache; None if they are not cached.
        self.key = tuple(one.uri for one in self.partitions) if cached else None

    def __len__(self) -> int:
        return len(self.partitions)

    @property
    def nbytes(self) -> int:
        """Memory, without the partitions, in bytes."""
        return int(self.starts.nbytes + self.alive.nbytes + self.lengths.nbytes)

    def postings(self, term: str) -> Postings:
        """Return the live documents that contain a term."""
        if self.key is None:
            documents, counts = self._read(term)
        else:
            documents, counts = _group_postings.get((self.key, term), lambda: self._read(term))
        alive = self.alive[documents]
        if not alive.all():
            documents, counts = documents[alive], counts[alive]
        return Postings(documents, counts, self.lengths[documents].astype(np.int64))

    def _read(self, term: str) -> tuple[Numbers, Numbers]:
        try:
            encoded = [partition.encoded(term) for partition in self.partitions]
            lists = [one for one in encoded if one is not None]
            documents, counts = decode_postings(lists, name=f"a list of {term!r}")
        except CorruptDataError:
            # The damaged one is named, and left out from then on.
            for partition in self.partitions:
                partition.postings(term)
            raise
        has_term = np.array([one is not None for one in encoded], np.bool_)
        lengths = np.array([one.length for one in lists], np.int64)
        documents += np.repeat(self.starts[has_term], lengths)
        return documents, counts


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedDocuments:
    """Rows without a usable index, tokenized here: of MemTables, and others."""

    source: int
    text: TextIndex  # Tokens of the rows.
    view: RowView
    rows: RowIds  # Row ids in the source, shape (view.rows,).
    alive: Mask  # Which of them exist.
    tokenizer: Tokenizer

    @property
    def size(self) -> tuple[int, int]:
        """Number of live documents with tokens, and the number of their tokens."""
        lengths, _ = self.text.occurrences([], self.view)
        return count_live(lengths, self.alive & (lengths > 0))

    @property
    def nbytes(self) -> int:
        """Memory of the index and the rows, in bytes."""
        own = self.text.nbytes + self.rows.nbytes + self.alive.nbytes
        return int(own + sum(batch.nbytes for batch in self.view.batches))

    def postings(self, terms: Sequence[str]) -> dict[str, Postings]:
        lengths, counts = self.text.occurrences(terms, self.view)
        postings = {}
        for term in terms:
            documents = np.flatnonzero((counts[term] > 0) & self.alive)
            postings[term] = Postings(documents, counts[term][documents], lengths[documents])
        return postings

    def is_in_memory(self, terms: Sequence[str]) -> bool:
        return True

    def lengths_of(self, rows: RowIds) -> Numbers:
        lengths, _ = self.text.occurrences([], self.view)
        return _lengths_of(rows, self.rows, np.where(self.alive, lengths, 0))

    def fuzzy_terms(self, term: str, *, distance: int, prefix: int, limit: int) -> list[str]:
        start = term.encode()[:prefix]
        terms: list[str] = []
        for other in self.text.vocabulary(self.view, np.flatnonzero(self.alive)):
            if len(terms) == limit:
                break
            if (
                other.encode().startswith(start)
                and edit_distance(term, other, distance) <= distance
            ):
                terms.append(other)
        return terms

    def phrase(self, query: PhraseQuery, documents: Numbers) -> Mask:
        """Mark the documents that contain a phrase, by an index of these documents in memory.

        Only Lance knows at which positions its tokenizer drops words.
        """
        if not len(documents):
            return np.zeros(0, np.bool_)
        texts = self.view.take_column(self.text.column, documents)
        dataset = lance.write_dataset(pa.table({"text": texts}), "memory://")
        dataset.create_scalar_index(
            "text", "INVERTED", with_position=True, **self.tokenizer.options
        )
        holding = find_phrase_rows(dataset, PhraseQuery(query.query, "text", slop=query.slop))
        return np.isin(np.arange(len(documents)), holding)


DocumentSet: TypeAlias = IndexedDocuments | TokenizedDocuments
"""Documents of one column in one source."""


def base_documents(
    base: BaseTable,
    partition: TextPartition,
    fragments: frozenset[int],
    replaced: ReplacedRows,
    find_phrase: Callable[[PhraseQuery], RowIds],
) -> DocumentSet:
    """Open the documents of a partition of the base table's index, and mark the live ones."""

    def make() -> tuple[Mask, tuple[int, int]]:
        alive = _indexed_mask(base, partition, fragments).copy()
        alive[partition.positions_of(replaced.rows)] = False
        return alive, count_live(partition.lengths, alive)

    alive, size = _live_mask_cache.get((version_key(base), partition.uri, replaced.digest), make)
    return IndexedDocuments(BASE, partition, partition.rows, alive, size, find_phrase)


def has_repeated_rows(
    base: BaseTable, parts: Sequence[tuple[TextPartition, frozenset[int]]]
) -> bool:
    """Return whether partitions of an index have several documents of a row that is live."""

    def find() -> bool:
        masks = [_indexed_mask(base, partition, fragments) for partition, fragments in parts]
        rows = [partition.rows[mask] for (partition, _), mask in zip(parts, masks, strict=True)]
        every = np.concatenate([np.empty(0, np.uint64), *rows])
        return len(distinct(every)) < len(every)

    key = (version_key(base), *(partition.uri for partition, _ in parts))
    return _repetitions.get(key, find)


def phrase_matcher(
    key: Hashable, dataset: lance.LanceDataset, *, fast: bool = False
) -> Callable[[PhraseQuery], RowIds]:
    """Return a function that finds the rows of a dataset with a phrase, cached."""

    def find(query: PhraseQuery) -> RowIds:
        try:
            return _phrase_cache.get(
                (key, query), lambda: find_phrase_rows(dataset, query, fast=fast)
            )
        except BaseException as error:
            if not is_index_damage(error):
                raise
            segments = [
                segment.uuid
                for index in dataset.describe_indices()
                if list(index.field_names) == [query.column] and kind_of(index).is_text
                for segment in index.segments
            ]
            raise leave_out(str(dataset.uri), segments, error) from error

    return find


def find_phrase_rows(
    dataset: lance.LanceDataset, query: PhraseQuery, *, fast: bool = False
) -> RowIds:
    """Return the ids of rows with a phrase; with ``fast``, of rows that the index covers."""
    try:
        matches = dataset.scanner(
            columns=[],
            full_text_query=lance.query.PhraseQuery(query.query, query.column, slop=query.slop),
            with_row_id=True,
            fast_search=fast,
            disable_scoring_autoprojection=True,
        ).to_table()
    except ValueError as error:
        if "position is not found" not in str(error):
            raise
        raise InvalidInputError(
            f"the text index of column {query.column} has no positions, which phrases need; build "
            "it again with_position=True"
        ) from error
    rows: RowIds = matches.column("_rowid").to_numpy()
    return rows


def count_live(lengths: npt.NDArray[np.integer], alive: Mask) -> tuple[int, int]:
    """Count live documents and their tokens."""
    return int(np.count_nonzero(alive)), int(lengths[alive].sum(dtype=np.int64))


def edit_distance(one: str, other: str, limit: int) -> int:
    """Count the characters to insert, delete or replace; above ``limit`` it is only a bound."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    row = list(range(len(other) + 1))
    for character in one:
        row = next_row(row, other, character)
        if min(row) > limit:
            return limit + 1
    return row[-1]


def _lengths_of(requested: RowIds, rows: RowIds, lengths: Numbers) -> Numbers:
    result = np.zeros(len(requested), np.int64)
    # Documents of a generation that are not live may have the row id of any row of the base table.
    some = np.flatnonzero(lengths)
    if len(some):
        some = some[np.argsort(rows[some], kind="stable")]
        at = np.minimum(np.searchsorted(rows[some], requested), len(some) - 1)
        match = rows[some[at]] == requested
        result[match] = lengths[some[at[match]]]
    return result


def _indexed_mask(base: BaseTable, partition: TextPartition, fragments: frozenset[int]) -> Mask:
    """Mark the documents whose rows the base table still has, in fragments that are covered."""
    rows = partition.rows
    covered = [part for part in base.dataset.get_fragments() if part.fragment_id in fragments]

    def ids_in(parts: list[lance.LanceFragment]) -> RowIds:
        remaining = base.dataset.scanner(columns=[], with_row_id=True, fragments=parts)
        return np.sort(remaining.to_table().column("_rowid").to_numpy())

    def find() -> Mask:
        if base.dataset.has_stable_row_ids and covered:
            # An id does not tell the fragment: a row that was replaced has the same in another.
            return contains(ids_in(covered), rows)
        alive = np.zeros(len(rows), np.bool_)
        inside = (rows >> np.uint64(32)).astype(np.uint32)
        for fragment in covered:
            here = inside == fragment.fragment_id
            if fragment.num_deletions and here.any():
                here[here] = contains(ids_in([fragment]), rows[here])
            alive |= here
        return alive

    return _indexed_masks.get((version_key(base), partition.uri), find)


_live_mask_cache: LruCache[tuple[Mask, tuple[int, int]]] = LruCache(_MASK_BYTES, nbytes_of)
_indexed_masks: LruCache[Mask] = LruCache(_MASK_BYTES, lambda mask: mask.nbytes)
_repetitions: LruCache[bool] = LruCache(64)
_group_postings: LruCache[tuple[Numbers, Numbers]] = LruCache(256 << 20, nbytes_of)
_phrase_cache: LruCache[RowIds] = LruCache(32 << 20, lambda rows: rows.nbytes)
