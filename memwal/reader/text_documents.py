"""Which documents of an index still exist, and which of them hold a phrase; both kept a while."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from memwal.reader.hits import BASE
from memwal.reader.recent import Recent
from memwal.reader.replaced_rows import ReplacedRows
from memwal.reader.row_set import RowIds, contains
from memwal.reader.text_bodies import Body, IndexedBody, Mask, counted, phrase_rows
from memwal.reader.text_index import TextPart
from memwal.reader.text_query import PhraseQuery
from memwal.table_index.base_table import BaseTable

if TYPE_CHECKING:
    import lance

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


_masks: Recent[tuple[Mask, tuple[int, int]]] = Recent(_MASK_BYTES, lambda found: found[0].nbytes)
_phrases: Recent[RowIds] = Recent(_PHRASE_BYTES, lambda rows: rows.nbytes)
