"""One text column over all sources: its tokenizer, and the bodies of its documents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from memwal.errors import InvalidInputError
from memwal.memtable.row_runs import RowView
from memwal.memtable.text_rows import TextRows
from memwal.memtable.text_tokens import Tokenizer
from memwal.reader.base_indexes import Bridge, covered_fragments, find_gap, find_index
from memwal.reader.generations import GenerationSource
from memwal.reader.hits import BASE
from memwal.reader.newest import NewestRows
from memwal.reader.recent import Recent, version_key
from memwal.reader.replaced_rows import ReplacedRows, replaced_rows
from memwal.reader.row_set import RowIds, contains
from memwal.reader.sources import ReadSources
from memwal.reader.text_bodies import (
    Body,
    IndexedBody,
    Mask,
    TokenizedBody,
    counted,
    phrase_rows,
)
from memwal.reader.text_index import TextPart, TextSegment, open_segment
from memwal.reader.text_query import PhraseQuery
from memwal.reader.warn_once import warn_once
from memwal.table_index.base_table import BaseTable

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription

logger = logging.getLogger(__name__)

_TOKENIZED_BYTES = 256 << 20
_MASK_BYTES = 64 << 20
_REMAPPED = "__lance_frag_reuse"


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """What a search of one column needs.

    Attributes
    ----------
    tokenizer : Tokenizer
    bodies : tuple of Body
        Every living row is in one of them, unless it has no token.
    """

    tokenizer: Tokenizer
    bodies: tuple[Body, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Tokenized:
    """Rows that were read and tokenized once."""

    text: TextRows
    view: RowView
    rows: RowIds


def text_columns(base: BaseTable) -> list[str]:
    """Columns with a text index."""
    return [
        description.field_names[0]
        for description in base.dataset.describe_indices()
        if is_text_index(description.index_type) and len(description.field_names) == 1
    ]


def is_text_index(kind: str) -> bool:
    """Whether pylance calls a text index so."""
    return kind == "Inverted"


def open_column(sources: ReadSources, newest: NewestRows, column: str) -> TextColumn:
    """Collect the documents of a column.

    Raises
    ------
    InvalidInputError
        The base table has no text index on the column, or one whose documents are not texts.
    """
    base = sources.base
    index = find_index(
        base.dataset.describe_indices(),
        column,
        is_text_index,
        preferred=base.details.maintained_indexes,
    )
    if index is None:
        raise InvalidInputError(
            f"column {column} has no text index; create one on the base table with "
            f"create_scalar_index({column!r}, 'INVERTED')"
        )
    segments = [
        open_segment(base.location, base.location.uri, segment.uuid) for segment in index.segments
    ]
    opener = _Opener(sources, newest, column, index, segments)
    bodies: list[Body] = []
    for position in range(len(sources.generations)):
        bodies += opener.generation(position)
    bodies += opener.base_table()
    return TextColumn(opener.tokenizer, tuple(bodies))


class _Opener:
    """Opens the bodies of one column."""

    def __init__(
        self,
        sources: ReadSources,
        newest: NewestRows,
        column: str,
        index: IndexDescription,
        segments: Sequence[TextSegment],
    ) -> None:
        self.sources = sources
        self.newest = newest
        self.column = column
        self.index = index
        self.segments = segments
        self.options = dict(segments[0].parameters)
        self.options["document_granularity"] = index.details.get("document_granularity")
        if self.options["document_granularity"] is None:
            del self.options["document_granularity"]
        self.tokenizer = Tokenizer(self.options)

    def generation(self, position: int) -> list[Body]:
        """Living rows of a generation that the base table does not have."""
        source = self.sources.generations[position]
        live = self.newest.live_addresses(position)
        if not len(live):
            return []
        unflushed = source.unflushed
        if unflushed is not None:
            view = unflushed.snapshot.view
            alive = np.zeros(view.rows, np.bool_)
            alive[live.astype(np.int64)] = True
            text = unflushed.snapshot.text.get(self.column) or TextRows(self.column, self.options)
            rows = np.arange(view.rows, dtype=np.uint64)
            return [TokenizedBody(position, text, view, rows, alive, self.tokenizer)]
        return self._indexed(source, position, live, None) or [
            self._tokenized(position, source, live)
        ]

    def base_table(self) -> list[Body]:
        """Rows of the base table that no generation replaced."""
        base = self.sources.base
        if not base.dataset.fragment_ids():
            return []
        replaced = replaced_rows(self.sources)
        if (
            base.dataset.has_stable_row_ids
            or any(segment.parts is None for segment in self.segments)
            or any(index.name == _REMAPPED for index in base.dataset.describe_indices())
        ):
            warn_once(
                logger,
                "the text index on %s of %s has a form that is not known here: all texts are "
                "tokenized, which takes long",
                self.column,
                str(base.location),
            )
            return [self._rest(tuple(sorted(base.dataset.fragment_ids())), None, replaced)]
        bodies: list[Body] = []
        held = cache(lambda query: phrase_rows(base.dataset, query, fast=True))
        for description, segment in zip(self.index.segments, self.segments, strict=True):
            fragments = frozenset(description.fragment_ids)
            for number, part in enumerate(segment.parts or ()):
                key = (*version_key(base), description.uuid, number)
                bodies.append(_base_body(base, part, key, fragments, replaced, held))
        gap = find_gap(self.sources, self.index)
        if gap is None:
            return bodies
        rest = gap.rest
        for bridge in gap.bridges:
            addresses = bridge.addresses[~contains(replaced.rows, bridge.rows)]
            answered = self._indexed(bridge.source, BASE, addresses, bridge)
            bodies += answered
            if not answered:
                rest = np.concatenate([rest, bridge.rows])
        if len(rest):
            bodies.append(self._rest(gap.fragments, np.sort(rest), replaced))
        return bodies

    def _indexed(
        self, source: GenerationSource, number: int, live: RowIds, bridge: Bridge | None
    ) -> list[Body]:
        """A generation's own index over some of its rows; nothing when it cannot be used."""
        dataset = source.dataset
        index = find_index(
            dataset.describe_indices(), self.column, is_text_index, preferred=[self.index.name]
        )
        if (
            source.identity is None
            or index is None
            or set(dataset.fragment_ids()) - covered_fragments(index)
        ):
            return []
        location = self.sources.base.location
        segments = [open_segment(location, source.identity, s.uuid) for s in index.segments]
        if any(segment.parts is None for segment in segments) or any(
            Tokenizer(segment.parameters).options != self.tokenizer.options for segment in segments
        ):
            return []
        held = cache(lambda query: phrase_rows(dataset, query))
        bodies: list[Body] = []
        for segment in segments:
            for part in segment.parts or ():
                alive = contains(live, part.rows)
                rows = part.rows
                if bridge is not None:
                    at = np.searchsorted(bridge.addresses, rows)
                    rows = bridge.rows[np.minimum(at, len(bridge.rows) - 1)]
                size = counted(part.lengths, alive)
                bodies.append(IndexedBody(number, part, rows, alive, size, held))
        return bodies

    def _tokenized(self, number: int, source: GenerationSource, live: RowIds) -> Body:
        """Rows of a generation without a text index."""
        found = self._read(source.identity, source.dataset, None)
        return TokenizedBody(
            number, found.text, found.view, found.rows, contains(live, found.rows), self.tokenizer
        )

    def _rest(
        self, fragments: tuple[int, ...], wanted: RowIds | None, replaced: ReplacedRows
    ) -> Body:
        """Rows of the base table that no index has."""
        base = self.sources.base
        key = (*version_key(base), fragments)
        found = self._read(key, base.dataset, fragments)
        alive = ~contains(replaced.rows, found.rows)
        if wanted is not None:
            alive &= contains(wanted, found.rows)
        return TokenizedBody(BASE, found.text, found.view, found.rows, alive, self.tokenizer)

    def _read(
        self, key: Any, dataset: lance.LanceDataset, fragments: tuple[int, ...] | None
    ) -> _Tokenized:
        def make() -> _Tokenized:
            rows = dataset.scanner(
                columns=[self.column],
                with_row_id=True,
                fragments=None if fragments is None else [*map(dataset.get_fragment, fragments)],
            ).to_table()
            texts = rows.select([0])
            view = RowView.of(texts.schema, texts.to_batches())
            text = TextRows(texts.schema.names[0], self.options)
            text.catch_up(view)
            return _Tokenized(text, view, rows.column("_rowid").to_numpy())

        if key is None:
            return make()
        options = repr(sorted(self.tokenizer.options.items()))
        return _tokenized.get((key, self.column, options), make)


def _base_body(
    base: BaseTable,
    part: TextPart,
    key: tuple[Any, ...],
    fragments: frozenset[int],
    replaced: ReplacedRows,
    held: Callable[[PhraseQuery], RowIds],
) -> Body:
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


def _weight(found: _Tokenized) -> int:
    return int(found.text.nbytes + found.rows.nbytes + found.view.to_table().nbytes)


_tokenized: Recent[_Tokenized] = Recent(_TOKENIZED_BYTES, _weight)
_masks: Recent[tuple[Mask, tuple[int, int]]] = Recent(_MASK_BYTES, lambda found: found[0].nbytes)
