"""Text column over all sources: its index, its tokenizer and its document sets."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import lance
import numpy as np

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.paths import FRAG_REUSE_INDEX_NAME
from memwal.lsm.indexes.catchup import covered_fragments, segment_location
from memwal.lsm.indexes.kinds import kind_of
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.text_index import TextIndex, Tokenizer
from memwal.reader.base_indexes import Bridge, find_gap
from memwal.reader.base_rows import ReplacedRows, replaced_rows
from memwal.reader.hits import BASE
from memwal.reader.latest import NewestRows
from memwal.reader.row_set import contains
from memwal.reader.sources.cache import LruCache, version_key
from memwal.reader.sources.generation import GenerationSource, ReadSources
from memwal.reader.unreadable_indexes import is_readable, num_left_out
from memwal.search.text.documents import (
    DocumentSet,
    IndexedDocuments,
    PartitionGroup,
    TokenizedDocuments,
    base_documents,
    count_live,
    has_repeated_rows,
    phrase_matcher,
)
from memwal.search.text.index_files import LanceTextIndex, TextPartition
from memwal.util.arrays import RowIds
from memwal.util.concurrency import run_all
from memwal.util.log import warn_once

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription


logger = logging.getLogger(__name__)
# Memory of a document set without its arrays. It matters with many small generations: every flush
# makes a new column.
_SET_BYTES = 700
_ROW_GRANULARITY = "row"


class TextColumn:
    """Tokenizer and document sets of a column, for a search.

    ``key`` identifies exactly these documents for ever; None if one set is a MemTable's.
    """

    def __init__(
        self, tokenizer: Tokenizer, document_sets: Sequence[DocumentSet], key: Hashable | None
    ) -> None:
        self.tokenizer = tokenizer
        self.key = key
        grouped: list[IndexedDocuments] = []
        others: list[DocumentSet] = []
        for docs in document_sets:
            if isinstance(docs, IndexedDocuments) and docs.partition.has_lists_in_memory:
                grouped.append(docs)
            else:
                others.append(docs)
        # Every live row with a token is in one of them; those of the group come first.
        self.document_sets: list[DocumentSet] = [*grouped, *others]
        # Live documents of all sets, and the number of their tokens.
        sizes = [(0, 0), *(docs.size for docs in self.document_sets)]
        self.documents, self.tokens = np.sum(sizes, 0).tolist()
        # First number of each set when documents are numbered consecutively, and the end.
        self.starts = np.cumsum([0, *(len(docs.rows) for docs in self.document_sets)])
        # With a key, the documents of all sets are cached together.
        self.group = PartitionGroup(grouped, cached=key is None)


def open_column(sources: ReadSources, newest: NewestRows, column: str) -> TextColumn:
    """Open the document sets of a column of the base table that has a text index."""
    identities = tuple(source.identity for source in sources.generations)
    if None in identities:
        return _open_column(sources, newest, column, None)
    # None of these sources changes, so the column can be cached.
    options = tuple(sorted(sources.base.location.storage_options.items()))
    unreadable = num_left_out()
    key = (version_key(sources.base), options, column, identities, sources.plan.merged, unreadable)
    return _column_cache.get(key, lambda: _open_column(sources, newest, column, key))


def text_columns(base: BaseTable) -> list[str]:
    """List the columns with a text index whose documents are rows."""
    columns = (
        description.field_names[0]
        for description in base.dataset.describe_indices()
        if len(description.field_names) == 1 and _indexes_rows(description)
    )
    return list(dict.fromkeys(columns))


def find_text_index(dataset: lance.LanceDataset, column: str) -> IndexDescription | None:
    """Return the text index of a column whose documents are rows, if there is one."""
    descriptions: list[IndexDescription] = dataset.describe_indices()
    for description in descriptions:
        if list(description.field_names) == [column] and _indexes_rows(description):
            return description
    return None


def require_text_index(base: BaseTable, column: str) -> IndexDescription:
    """Return the text index of a column whose documents are rows; refuse a column without."""
    index = find_text_index(base.dataset, column)
    if index is not None:
        return index
    only_elements = any(
        list(description.field_names) == [column] and kind_of(description).is_text
        for description in base.dataset.describe_indices()
    )
    raise InvalidInputError(
        (
            f"the text index of column {column} takes each element of a list as a document of its "
            "own, and rows are what is searched for; "
            if only_elements
            else f"column {column} has no text index; "
        )
        + f"create one on the base table with create_scalar_index({column!r}, 'INVERTED')"
    )


def column_weight(column: TextColumn) -> int:
    """Return the memory of a column in bytes, without indexes, which other caches hold."""
    return column.group.nbytes + sum(_SET_BYTES + docs.nbytes for docs in column.document_sets)


def _open_column(
    sources: ReadSources, newest: NewestRows, column: str, key: Hashable | None
) -> TextColumn:
    base = sources.base
    index = require_text_index(base, column)
    is_used = is_readable(index)
    segments = run_all(
        [
            partial(LanceTextIndex.open, table, table.uri, segment.uuid)
            for segment in index.segments
            if is_used
            for table in (segment_location(base, segment),)
        ]
    )
    opener = _ColumnOpener(sources, newest, column, index, segments)
    positions = range(len(sources.generations))
    parts = run_all([partial(opener.generation, position) for position in positions])
    document_sets = [*chain.from_iterable(parts), *opener.base_table()]
    return TextColumn(opener.tokenizer, document_sets, key)


class _ColumnOpener:
    """Opens the document sets of one column."""

    def __init__(
        self,
        sources: ReadSources,
        newest: NewestRows,
        column: str,
        index: IndexDescription,
        segments: Sequence[LanceTextIndex],
    ) -> None:
        self.sources = sources
        self.newest = newest
        self.column = column
        self.index = index
        self.segments = segments
        # An index that cannot be read has the parameters in its details too.
        self.options = dict(segments[0].parameters if segments else index.details)
        self.tokenizer = Tokenizer(self.options)

    def generation(self, position: int) -> list[DocumentSet]:
        """Open the live rows of an unmerged generation."""
        source = self.sources.generations[position]
        live = self.newest.live_addresses(position)
        if not len(live):
            return []
        unflushed = source.unflushed
        if unflushed is not None:
            view = unflushed.snapshot.view
            alive = np.zeros(view.rows, np.bool_)
            alive[live.astype(np.int64)] = True
            text = unflushed.snapshot.text.get(self.column)
            if text is None or text.options != self.tokenizer.options:
                # The index was created again, with another tokenizer, after the writer was opened.
                text = TextIndex(self.column, self.options)
            rows = np.arange(view.rows, dtype=np.uint64)
            return [TokenizedDocuments(position, text, view, rows, alive, self.tokenizer)]
        indexed = self._indexed(source, position, live, None)
        if indexed:
            return indexed
        text, view, rows = self._tokenize_rows(source.identity, source.dataset, None)
        alive = contains(live, rows)
        return [TokenizedDocuments(position, text, view, rows, alive, self.tokenizer)]

    def base_table(self) -> list[DocumentSet]:
        """Open the rows of the base table that no generation replaced."""
        base = self.sources.base
        if not base.dataset.fragment_ids():
            return []
        replaced = replaced_rows(self.sources)
        if not self.segments:
            return [self._unindexed(tuple(sorted(base.dataset.fragment_ids())), None, replaced)]
        reason = self._reason_against_index()
        if reason is not None:
            warn_once(
                logger,
                "the text index on %s of %s %s: all texts are tokenized, which takes long",
                self.column,
                str(base.location),
                reason,
            )
            return [self._unindexed(tuple(sorted(base.dataset.fragment_ids())), None, replaced)]
        find_phrase = phrase_matcher(version_key(base), base.dataset, fast=True)
        document_sets = [
            base_documents(base, partition, fragments, replaced, find_phrase)
            for partition, fragments in self._parts()
        ]
        gap = find_gap(self.sources, self.index)
        if gap is None:
            return document_sets
        unbridged = gap.unbridged
        # Rows that came from a generation are found through its index.
        answers = run_all(
            [
                partial(
                    self._indexed,
                    bridge.source,
                    BASE,
                    bridge.addresses[~contains(replaced.rows, bridge.rows)],
                    bridge,
                )
                for bridge in gap.bridges
            ]
        )
        for bridge, answered in zip(gap.bridges, answers, strict=True):
            document_sets += answered
            if not answered:
                unbridged = np.concatenate([unbridged, bridge.rows])
        if len(unbridged):
            document_sets.append(self._unindexed(gap.fragments, np.sort(unbridged), replaced))
        return document_sets

    def _reason_against_index(self) -> str | None:
        """Return why the base table's index cannot answer, in words; None if it can."""
        base = self.sources.base
        if base.index_caveat is not None:
            return base.index_caveat
        if any(segment.partitions is None for segment in self.segments) or any(
            index.name == FRAG_REUSE_INDEX_NAME for index in base.dataset.describe_indices()
        ):
            return "has a form that is not known here"
        # A row that was replaced keeps its id. A second segment, or a segment that an old client
        # extended, then has a document of its former text, which no read tells from the new one.
        if base.dataset.has_stable_row_ids and (
            len(self.segments) > 1 or has_repeated_rows(base, list(self._parts()))
        ):
            return "may find rows by former texts, so create it again"
        return None

    def _parts(self) -> Iterator[tuple[TextPartition, frozenset[int]]]:
        """Iterate over the partitions of the base table's index, with the fragments of each."""
        for description, segment in zip(self.index.segments, self.segments, strict=True):
            fragments = frozenset(description.fragment_ids)
            for partition in segment.partitions or ():
                yield partition, fragments

    def _indexed(
        self, source: GenerationSource, number: int, live: RowIds, bridge: Bridge | None
    ) -> list[DocumentSet]:
        """Open some rows of a generation through its own index; empty if it cannot be used."""
        dataset = source.dataset
        index = find_text_index(dataset, self.column)
        if (
            source.identity is None
            or index is None
            or not is_readable(index)
            or set(dataset.fragment_ids()) - covered_fragments(index)
        ):
            return []
        location = self.sources.base.location
        segments = [LanceTextIndex.open(location, source.identity, s.uuid) for s in index.segments]
        if any(segment.partitions is None for segment in segments) or any(
            Tokenizer(segment.parameters).options != self.tokenizer.options for segment in segments
        ):
            return []
        find_phrase = phrase_matcher(source.identity, dataset)
        document_sets: list[DocumentSet] = []
        for segment in segments:
            for partition in segment.partitions or ():
                alive = contains(live, partition.rows)
                rows = partition.rows
                if bridge is not None:
                    at = np.searchsorted(bridge.addresses, rows)
                    rows = bridge.rows[np.minimum(at, len(bridge.rows) - 1)]
                size = count_live(partition.lengths, alive)
                document_sets.append(
                    IndexedDocuments(number, partition, rows, alive, size, find_phrase)
                )
        return document_sets

    def _unindexed(
        self, fragments: tuple[int, ...], included: RowIds | None, replaced: ReplacedRows
    ) -> DocumentSet:
        """Open the rows of the base table that no index covers."""
        base = self.sources.base
        key = (version_key(base), fragments)
        text, view, rows = self._tokenize_rows(key, base.dataset, fragments)
        alive = ~contains(replaced.rows, rows)
        if included is not None:
            alive &= contains(included, rows)
        return TokenizedDocuments(BASE, text, view, rows, alive, self.tokenizer)

    def _tokenize_rows(
        self, key: Hashable, dataset: lance.LanceDataset, fragments: tuple[int, ...] | None
    ) -> _Tokenized:
        def make() -> _Tokenized:
            rows = dataset.scanner(
                columns=[self.column],
                with_row_id=True,
                fragments=None if fragments is None else [*map(dataset.get_fragment, fragments)],
            ).to_table()
            texts = rows.select([0])
            view = RowView.of(texts.schema, texts.to_batches())
            text = TextIndex(texts.schema.names[0], self.options)
            text.catch_up(view)
            return text, view, rows.column("_rowid").to_numpy()

        if key is None:
            return make()
        options = repr(sorted(self.tokenizer.options.items()))
        return _tokenized_cache.get((key, self.column, options), make)


def _indexes_rows(description: IndexDescription) -> bool:
    if not kind_of(description).is_text:
        return False
    granularity = description.details.get("document_granularity") or _ROW_GRANULARITY
    return bool(granularity == _ROW_GRANULARITY)


# Rows that were read, with their tokens and their row ids.
_Tokenized = tuple[TextIndex, RowView, RowIds]
_tokenized_cache: LruCache[_Tokenized] = LruCache(
    256 << 20,
    lambda one: int(one[0].nbytes + one[1].to_table().nbytes + one[2].nbytes),
)
_column_cache: LruCache[TextColumn] = LruCache(128 << 20, column_weight)
