"""Documents of a text column by source, indexed or tokenized for the search.

A body holds the documents of one source. It knows which of its documents exist at this moment, so
counts over several bodies add up to those of one merged table. Which documents still exist, and
which of them hold a phrase, is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.text_index import TextIndex
from memwal.lsm.memtable.tokenizer import Tokenizer
from memwal.reader.base_rows import ReplacedRows
from memwal.reader.cache.lru import LruCache
from memwal.reader.hits import BASE
from memwal.reader.row_set import RowIds, contains
from memwal.search.text.index_files import TextPart
from memwal.search.text.query import PhraseQuery

if TYPE_CHECKING:
    import lance


def edits(one: str, other: str, limit: int) -> int:
    """Characters to insert, delete or replace; more than ``limit`` is only known to be more."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    row = list(range(len(other) + 1))
    for count, mine in enumerate(one, 1):
        further = [count]
        for position, theirs in enumerate(other):
            further.append(
                min(row[position] + (mine != theirs), row[position + 1] + 1, further[-1] + 1)
            )
        row = further
        if min(row) > limit:
            return limit + 1
    return row[-1]


Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Postings:
    """Documents that hold a term.

    Attributes
    ----------
    documents : numpy.ndarray of int64
        Numbers within the body, ascending.
    counts : numpy.ndarray of int64
        How often each holds the term.
    lengths : numpy.ndarray of int64
        How many tokens each has.
    """

    documents: Numbers
    counts: Numbers
    lengths: Numbers

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return int(self.documents.nbytes + self.counts.nbytes + self.lengths.nbytes)


class Body(Protocol):
    """Documents of one column in one source."""

    @property
    def source(self) -> int:
        """Number of the source, as hits have it."""

    @property
    def rows(self) -> RowIds:
        """Row id of each document, living or not."""

    @property
    def size(self) -> tuple[int, int]:
        """Living documents that hold tokens, and how many tokens those have."""

    @property
    def nbytes(self) -> int:
        """Memory of what is kept with the body alone, in bytes."""

    def postings(self, terms: Sequence[str]) -> dict[str, Postings]:
        """Living documents that hold each of some distinct terms."""

    def ready(self, terms: Sequence[str]) -> bool:
        """Whether storage need not be asked for :meth:`postings`."""

    def lengths_of(self, rows: RowIds) -> Numbers:
        """How many tokens some rows have; none where no living document here is the row."""

    def near(self, term: str, *, distance: int, prefix: int, limit: int) -> list[str]:
        """The first terms, in the order of their bytes, within some edits of one."""

    def phrase(self, query: PhraseQuery, documents: Numbers) -> Mask:
        """Which of some documents, which hold all terms of a phrase, hold the phrase."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexedBody:
    """Documents of a partition of a text index.

    Attributes
    ----------
    source : int
    part : TextPart
    rows : numpy.ndarray of uint64
        Row ids of the documents in the source; others than those in the index when that is a
        generation's that answers for the base table.
    alive : numpy.ndarray of bool
        Which documents exist.
    size : tuple of int
        Living documents, and their tokens.
    phrases : callable
        Row ids, as the index has them, of the rows that hold a phrase.
    """

    source: int
    part: TextPart
    rows: RowIds
    alive: Mask
    size: tuple[int, int]
    phrases: Callable[[PhraseQuery], RowIds]

    @property
    def nbytes(self) -> int:
        """Memory beside that of the index, in bytes."""
        own = 0 if self.rows is self.part.rows else self.rows.nbytes
        return int(own + self.alive.nbytes)

    def postings(self, terms: Sequence[str]) -> dict[str, Postings]:
        """Living documents that hold each of some distinct terms."""
        return {term: self._postings(term) for term in terms}

    def ready(self, terms: Sequence[str]) -> bool:
        """Whether storage need not be asked for postings."""
        return self.part.ready(terms)

    def _postings(self, term: str) -> Postings:
        documents, counts = self.part.postings(term)
        if self.size[0] < len(self.alive):
            alive = self.alive[documents]
            documents, counts = documents[alive], counts[alive]
        return Postings(documents, counts, self.part.lengths[documents].astype(np.int64))

    def lengths_of(self, rows: RowIds) -> Numbers:
        """How many tokens some rows have; none where no living document here is the row."""
        return _lengths_of(rows, self.rows, np.where(self.alive, self.part.lengths, 0))

    def near(self, term: str, *, distance: int, prefix: int, limit: int) -> list[str]:
        """The first terms of living documents within some edits of one."""
        found: list[str] = []
        for other in self.part.near(term, distance=distance, prefix=prefix):
            if len(found) == limit:
                break
            if self.alive[self.part.postings(other)[0]].any():
                found.append(other)
        return found

    def phrase(self, query: PhraseQuery, documents: Numbers) -> Mask:
        """Which of some documents hold a phrase."""
        return np.isin(self.part.rows[documents], self.phrases(query))


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedBody:
    """Rows whose texts are tokenized here: those of MemTables, and others that no index has.

    Attributes
    ----------
    source : int
    text : TextIndex
        Tokens of the rows.
    view : RowView
        The rows.
    rows : numpy.ndarray of uint64, shape (view.rows,)
        Their row ids in the source.
    alive : numpy.ndarray of bool, shape (view.rows,)
        Which exist.
    tokenizer : Tokenizer
    """

    source: int
    text: TextIndex
    view: RowView
    rows: RowIds
    alive: Mask
    tokenizer: Tokenizer

    @property
    def size(self) -> tuple[int, int]:
        """Living documents that hold tokens, and how many tokens those have."""
        counted = self.text.statistics([], self.view, alive=self.alive)
        return counted.documents, int(counted.tokens)

    @property
    def nbytes(self) -> int:
        """Memory of the index and the rows, in bytes."""
        kept = self.text.nbytes + self.rows.nbytes + self.alive.nbytes
        return int(kept + sum(batch.nbytes for batch in self.view.batches))

    def postings(self, terms: Sequence[str]) -> dict[str, Postings]:
        """Living documents that hold each of some distinct terms."""
        lengths, counts = self.text.occurrences(terms, self.view)
        found = {}
        for term in terms:
            documents = np.flatnonzero((counts[term] > 0) & self.alive)
            found[term] = Postings(documents, counts[term][documents], lengths[documents])
        return found

    def ready(self, terms: Sequence[str]) -> bool:
        """Everything is in memory."""
        return True

    def lengths_of(self, rows: RowIds) -> Numbers:
        """How many tokens some rows have; none where no living document here is the row."""
        lengths, _ = self.text.occurrences([], self.view)
        return _lengths_of(rows, self.rows, np.where(self.alive, lengths, 0))

    def near(self, term: str, *, distance: int, prefix: int, limit: int) -> list[str]:
        """The first terms of living documents within some edits of one."""
        start = term.encode()[:prefix]
        found: list[str] = []
        for other in self.text.vocabulary(self.view, np.flatnonzero(self.alive)):
            if len(found) == limit:
                break
            if other.encode().startswith(start) and edits(term, other, distance) <= distance:
                found.append(other)
        return found

    def phrase(self, query: PhraseQuery, documents: Numbers) -> Mask:
        """Which of some documents hold a phrase.

        Only Lance's index knows at which positions its tokenizer leaves words out, so that one is
        made of these documents.
        """
        if not len(documents):
            return np.zeros(0, np.bool_)
        texts = self.view.take_column(self.text.column, documents)
        dataset = lance.write_dataset(pa.table({"text": texts}), "memory://")
        dataset.create_scalar_index(
            "text", "INVERTED", with_position=True, **self.tokenizer.options
        )
        held = phrase_rows(dataset, PhraseQuery(query.query, "text", slop=query.slop))
        return np.isin(np.arange(len(documents)), held)


def phrase_rows(dataset: lance.LanceDataset, query: PhraseQuery, *, fast: bool = False) -> RowIds:
    """Row ids of the rows of a data set that hold a phrase.

    Parameters
    ----------
    fast : bool, default False
        Whether to leave out rows that the index does not cover.

    Raises
    ------
    InvalidInputError
        The index has no positions.
    """
    try:
        found = dataset.scanner(
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
    rows: RowIds = found.column("_rowid").to_numpy()
    return rows


def _lengths_of(wanted: RowIds, rows: RowIds, lengths: Numbers) -> Numbers:
    found = np.zeros(len(wanted), np.int64)
    # Dead documents of a generation may stand for any row of the base table.
    some = np.flatnonzero(lengths)
    if len(some):
        some = some[np.argsort(rows[some], kind="stable")]
        at = np.minimum(np.searchsorted(rows[some], wanted), len(some) - 1)
        match = rows[some[at]] == wanted
        found[match] = lengths[some[at[match]]]
    return found


def total_size(bodies: Sequence[Body]) -> tuple[int, int]:
    """Documents and tokens of several bodies."""
    sizes: list[tuple[int, int]] = [body.size for body in bodies]
    return sum(documents for documents, _ in sizes), sum(tokens for _, tokens in sizes)


def counted(lengths: npt.NDArray[Any], alive: Mask) -> tuple[int, int]:
    """Living documents and their tokens."""
    return int(np.count_nonzero(alive)), int(lengths[alive].sum(dtype=np.int64))


_MASK_BYTES = 64 << 20
_PHRASE_BYTES = 32 << 20


def base_body(
    base: BaseTable,
    part: TextPart,
    key: tuple[Any, ...],
    fragments: frozenset[int],
    replaced: ReplacedRows,
    held: Callable[[PhraseQuery], RowIds],
) -> Body:
    """Documents of a part of the base table's index, without those that are not there any more.

    Parameters
    ----------
    key : tuple
        Names the version of the table and the part.
    fragments : frozenset of int
        Those that the index covers.
    replaced : ReplacedRows
    held : callable
        Finds the rows that hold a phrase.
    """

    def make() -> tuple[Mask, tuple[int, int]]:
        alive = _alive(base, part.rows, fragments)
        alive[part.find(replaced.rows)] = False
        return alive, counted(part.lengths, alive)

    alive, size = _masks.get((*key, replaced.digest), make)
    return IndexedBody(BASE, part, part.rows, alive, size, held)


def _alive(base: BaseTable, rows: RowIds, fragments: frozenset[int]) -> Mask:
    """Which rows of an index the base table still has, in fragments that the index covers."""
    inside = (rows >> np.uint64(32)).astype(np.uint32)
    alive = np.zeros(len(rows), np.bool_)
    for fragment in base.dataset.get_fragments():
        if fragment.fragment_id not in fragments:
            continue
        here = inside == fragment.fragment_id
        if fragment.num_deletions and here.any():
            left = base.dataset.scanner(columns=[], with_row_id=True, fragments=[fragment])
            ids = np.sort(left.to_table().column("_rowid").to_numpy())
            here[here] = contains(ids, rows[here])
        alive |= here
    return alive


def phrases_of(
    key: Hashable, dataset: lance.LanceDataset, *, fast: bool = False
) -> Callable[[PhraseQuery], RowIds]:
    """Finds the rows of a data set that hold a phrase, and knows for a while which those are."""

    def held(query: PhraseQuery) -> RowIds:
        return _phrases.get((key, query), lambda: phrase_rows(dataset, query, fast=fast))

    return held


_masks: LruCache[tuple[Mask, tuple[int, int]]] = LruCache(
    _MASK_BYTES, lambda found: found[0].nbytes
)
_phrases: LruCache[RowIds] = LruCache(_PHRASE_BYTES, lambda rows: rows.nbytes)
