"""Find base-table rows by key, and the rows that newer sources replaced."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.fragments import FragmentStates
from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.expressions.predicate import literals, quoted
from memwal.format.paths import FRAG_REUSE_INDEX_NAME, INDICES_DIR
from memwal.lsm.indexes.catchup import covered_fragments, segment_location
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.lsm.key_matches import keys_among, mark_newest_rows, match_keys
from memwal.reader.base_indexes import find_index
from memwal.reader.latest import ROW_ADDRESS, read_keys
from memwal.reader.row_set import ROW_ID, contains, group_batches
from memwal.reader.sources.cache import LruCache, version_key
from memwal.reader.sources.generation import GenerationSource, ReadSources
from memwal.reader.sources.key_index import MAX_KEPT_BYTES, kept_bytes, page_hits
from memwal.reader.sources.narrow_columns import layout_of
from memwal.reader.sources.snapshot import fragments_of
from memwal.reader.unreadable_indexes import scan_table
from memwal.region.rows import key_column
from memwal.storage.location import TableLocation
from memwal.util.arrays import Addresses, Positions, RowIds, distinct
from memwal.util.log import warn_once

if TYPE_CHECKING:
    from lance.lance.indices import IndexSegmentDescription

# Finding a key in the index takes as long as comparing this many keys of the table (measured on
# integers: 2 us and 20 ns).
_ROWS_PER_KEY = 100
_KEYS_AT_ONCE = 5_000
# Arrays of this many rows stay in the processor's cache, and take longer than the calls for them.
_COMPARED_ROWS = 1 << 17
_COMPARED_BYTES = 32 << 20
# Versions of files of which Lance reads a number of rows at a time, however large they are: with
# its default, batches of long keys stay small.
_WITHOUT_BATCH_BYTES = frozenset({"legacy", "0.1", "2.0"})


def rows_of_keys(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment] | None = None
) -> tuple[RowIds, Positions]:
    """Find the row ids of distinct keys, and their positions, by the index or by one pass.

    Only rows of ``fragments`` are found, by default of all.
    """
    fragments = base.dataset.get_fragments() if fragments is None else fragments
    if not fragments or not len(keys):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    indexed = _indexed(base, fragments)
    rows = sum(fragment.physical_rows for fragment in indexed)
    if len(keys) * _ROWS_PER_KEY > rows:
        return scan_keys(base, keys, fragments)
    row_ids, positions = _look_up_keys(base, keys, indexed)
    indexed_ids = {fragment.fragment_id for fragment in indexed}
    others = [fragment for fragment in fragments if fragment.fragment_id not in indexed_ids]
    if not others:
        return row_ids, positions
    scanned_ids, scanned_positions = scan_keys(base, keys, others)
    return (
        np.concatenate([row_ids, scanned_ids]),
        np.concatenate([positions, scanned_positions]),
    )


def key_predicate(keys: pa.Table) -> str:
    """Return a predicate for rows of keys; composite keys pass in all combinations of values."""
    return " and ".join(
        f"{quoted(name)} in ({', '.join(literals(column))})"
        for name, column in zip(keys.column_names, keys.columns, strict=True)
    )


def _indexed(
    base: BaseTable, fragments: Sequence[lance.LanceFragment]
) -> list[lance.LanceFragment]:
    """Return the fragments that an index on the key covers."""
    if len(base.primary_key) != 1:
        return []
    index = find_index(
        base.dataset.describe_indices(), base.primary_key[0], lambda kind: kind.finds_keys
    )
    # Lance answers by all indexes on the column, whichever was found here.
    if index is None or unusable_indexes(base):
        return []
    covered = covered_fragments(index)
    return [fragment for fragment in fragments if fragment.fragment_id in covered]


def _look_up_keys(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment]
) -> tuple[RowIds, Positions]:
    (name,) = base.primary_key
    # Neighbours share the pages of the index.
    order = pc.array_sort_indices(keys)
    row_ids, positions = [], []
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        chunk = keys.take(order.slice(start, _KEYS_AT_ONCE))
        rows = scan_table(
            base.dataset,
            columns=[name],
            filter=key_predicate(pa.table({name: chunk})),
            with_row_id=True,
            fragments=list(fragments),
        )
        at = pc.index_in(key_column(rows, base.primary_key), value_set=chunk)
        row_ids.append(rows.column(ROW_ID).to_numpy())
        positions.append(order.to_numpy()[start + at.to_numpy()].astype(np.int64))
    return np.concatenate(row_ids), np.concatenate(positions)


def scan_keys(
    base: BaseTable,
    keys: pa.Array,
    fragments: Sequence[lance.LanceFragment],
    *,
    by: str = ROW_ID,
) -> tuple[RowIds, Positions]:
    """Find the row ids, or addresses, of distinct keys, and their positions, by one pass."""
    pieces = scan_in_groups(
        base.dataset,
        base.primary_key,
        with_row_id=by == ROW_ID,
        with_row_address=by == ROW_ADDRESS,
        fragments=list(fragments),
    )
    return match_keys(
        keys,
        ((key_column(piece, base.primary_key), piece.column(by).to_numpy()) for piece in pieces),
    )


def scan_in_groups(
    dataset: lance.LanceDataset, columns: Sequence[str], **options: object
) -> Iterator[pa.Table]:
    """Read columns in tables of as many rows as are best compared at a time."""
    limits = {"batch_size": _COMPARED_ROWS, "batch_size_bytes": _COMPARED_BYTES}
    if dataset.data_storage_version not in _WITHOUT_BATCH_BYTES:
        options |= limits
    batches = dataset.scanner(columns=list(columns), **options).to_batches()
    # Batches end where pages end: to join batches that are large enough would only copy them.
    for group in group_batches(batches, rows=_COMPARED_ROWS // 4, max_bytes=_COMPARED_BYTES):
        yield pa.Table.from_batches(group)


_CACHE_BYTES = 128 << 20
# Number of MemTable keys, or twice as many as there are now, after which all results are dropped.
_MAX_CACHED_KEYS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedRows:
    """Rows of the base table that a newer source replaced."""

    rows: RowIds  # Row ids, ascending.
    digest: bytes  # Equal for equal rows.

    @classmethod
    def of(cls, parts: Sequence[RowIds]) -> ReplacedRows:
        """Unite the rows of several arrays."""
        rows = distinct(np.concatenate([np.empty(0, np.uint64), *parts]))
        return cls(rows, hashlib.blake2b(rows.tobytes()).digest())


def replaced_rows(sources: ReadSources) -> ReplacedRows:
    """Find the rows of the base table whose keys a generation has; cached for its fragments."""
    return _of_sources.get(_state_key(sources), lambda: ReplacedRows.of(_parts(sources)))


def kept_rows(sources: ReadSources) -> pa.BooleanArray | None:
    """Mark the rows of the base table that :func:`replaced_rows` does not have; cached.

    One value for each row of a scan in order without a filter, which returns the rows of a version
    in the same order each time: so a scan need not read the ids of its rows. None with a MemTable,
    whose keys change with each write.
    """
    key = _state_key(sources)
    if key is None:
        return None

    def find() -> pa.BooleanArray:
        replaced = replaced_rows(sources).rows
        scanner = sources.base.dataset.scanner(
            columns=[], with_row_id=True, batch_size=_COMPARED_ROWS
        )
        parts = [
            pa.array(~contains(replaced, batch.column(ROW_ID).to_numpy()))
            for batch in scanner.to_batches()
        ]
        return pa.concat_arrays([pa.array([], pa.bool_()), *parts])

    return _kept.get(key, find)


def cheap_replaced_rows(sources: ReadSources) -> ReplacedRows | None:
    """Return :func:`replaced_rows` if it is known, or as cheap to find as to compare keys.

    To find it costs a pass over all keys of the fragments that were not searched for them before.
    Reads of one state that need it for few rows compare the keys of these, until they have compared
    as many: so no read costs much more than it must, and many reads cost little.
    """
    key = _state_key(sources)
    if key is None:
        return None if sources.base.dataset.count_rows() else replaced_rows(sources)
    is_known = _of_sources.use(key) is not None
    return replaced_rows(sources) if is_known or _rows_to_compare(sources, key)[0] <= 0 else None


def note_compared_rows(sources: ReadSources, rows: int) -> None:
    """Count base rows that a read of this state compared by key."""
    key = _state_key(sources)
    if key is None:
        return
    try:
        # Counts of two threads may be lost: they only choose the cheaper way.
        _rows_to_compare(sources, key)[0] -= rows
    except ObjectNotFoundError:
        # The read has the keys that it needs of a generation that was collected since, and is the
        # last one of this state.
        logger.debug("a generation was collected during a read")


def _rows_to_compare(sources: ReadSources, key: Hashable) -> list[int]:
    """Return the one number of rows that are still compared before all replaced rows are found."""
    return _to_compare.get(
        key, lambda: [sum(_compared_by(sources.base, search) for search in _searches(sources))]
    )


def _state_key(sources: ReadSources) -> Hashable | None:
    """Return a key of the base rows and the generations; None with a MemTable, which changes."""
    identities = tuple(source.identity for source in sources.generations)
    return None if None in identities else (*_base_key(sources.base), *identities)


def _base_key(base: BaseTable) -> tuple[Hashable, ...]:
    """Return a key of the rows of a version: the same for versions with the same rows and ids."""
    return base.location.uri, base.primary_key, fragments_of(base).digest


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Rows of the base table that a generation replaced, as searched for in some fragments."""

    fragments: FragmentStates
    rows: RowIds


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """Generations whose keys are searched for in the same fragments of a version."""

    found: list[tuple[GenerationSource, _Found]]  # result of an earlier search
    fragments: Sequence[lance.LanceFragment]  # that are searched; rows found in them do not count
    dropped: frozenset[int]  # fragments of the earlier search that are gone or searched again
    deleted: Addresses  # rows that were deleted since, ascending

    def remaining(self, rows: RowIds) -> RowIds:
        """Return the rows found earlier that still are in the version."""
        if self.dropped:
            numbers = np.fromiter(self.dropped, np.int64, len(self.dropped))
            rows = rows[~np.isin((rows >> np.uint64(32)).view(np.int64), numbers)]
        return rows[~contains(self.deleted, rows)]


_NOTHING_FOUND = _Found(FragmentStates.of({}), np.empty(0, np.uint64))


def _searches(sources: ReadSources) -> list[_Search]:
    """Group the flushed generations by the fragments that their keys were searched for in.

    Rows that were found in a fragment that did not change are found in every version that has it.
    """
    base = sources.base
    groups: dict[bytes, list[tuple[GenerationSource, _Found]]] = {}
    for source in sources.generations:
        if source.identity is not None:
            found = _of_generation.use(_generation_key(base, source)) or _NOTHING_FOUND
            groups.setdefault(found.fragments.digest, []).append((source, found))
    return [_search(base, group) for group in groups.values()]


def _search(base: BaseTable, group: list[tuple[GenerationSource, _Found]]) -> _Search:
    earlier, now = group[0][1].fragments, fragments_of(base)
    if earlier.digest == now.digest:
        return _Search(group, (), frozenset(), np.empty(0, np.uint64))
    if base.dataset.has_stable_row_ids:
        # An id does not tell the fragment, so that rows of some fragments cannot be dropped.
        group = [(source, _NOTHING_FOUND) for source, _ in group]
        earlier = _NOTHING_FOUND.fragments
    changes = now.changes_since(earlier, base.location.store)
    return _Search(
        group,
        [part for part in base.dataset.get_fragments() if part.fragment_id in changes.fragments],
        frozenset(earlier.states.keys() - (now.states.keys() - changes.fragments)),
        changes.deleted,
    )


def _compared_by(base: BaseTable, search: _Search) -> int:
    """Return how many rows are compared in the time of a search by :func:`rows_of_keys`."""
    rows, indexed = (
        sum(fragment.physical_rows for fragment in fragments)
        for fragments in (search.fragments, _indexed(base, search.fragments))
    )
    keys = sum(layout_of(source).rows for source, _ in search.found)
    return int(rows - indexed + min(indexed, keys * _ROWS_PER_KEY))


def _parts(sources: ReadSources) -> list[RowIds]:
    base = sources.base
    if not (base.primary_key and base.dataset.fragment_ids()):
        return []
    parts = [rows for search in _searches(sources) for rows in _replaced_by(base, search)]
    unflushed = [
        read_keys(source, base.primary_key).keys
        for source in sources.generations
        if source.identity is None
    ]
    if unflushed:
        parts.append(_replaced_by_memtables(base, pa.concat_arrays(unflushed)))
    return parts


def _generation_key(base: BaseTable, source: GenerationSource) -> tuple[Hashable, ...]:
    return base.location.uri, base.primary_key, source.identity


def _replaced_by(base: BaseTable, search: _Search) -> Iterator[RowIds]:
    """Search for the keys of generations; yield the rows that each replaced."""
    new = _search_keys(base, [source for source, _ in search.found], search.fragments)
    for (source, found), rows in zip(search.found, new, strict=True):
        every = np.concatenate([search.remaining(found.rows), rows])
        _of_generation.put(_generation_key(base, source), _Found(fragments_of(base), every))
        yield every


def _search_keys(
    base: BaseTable,
    sources: Sequence[GenerationSource],
    fragments: Sequence[lance.LanceFragment],
) -> list[RowIds]:
    """Find the rows of fragments that have a key of each of some generations."""
    if not fragments:
        return [np.empty(0, np.uint64)] * len(sources)
    keys = [read_keys(source, base.primary_key).keys for source in sources]
    encoded = pc.dictionary_encode(pa.concat_arrays(keys), null_encoding="encode")
    rows, positions = rows_of_keys(base, encoded.dictionary, fragments)
    # Ordered by their keys, so that a generation costs as much as its own keys.
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    codes = encoded.indices.to_numpy()
    parts = []
    start = 0
    for own_keys in keys:
        own = distinct(codes[start : start + len(own_keys)])
        start += len(own_keys)
        first, last = np.searchsorted(ordered, own), np.searchsorted(ordered, own, side="right")
        counts = last - first
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        parts.append(rows[np.sort(order[np.repeat(first, counts) + offsets])])
    return parts


def _replaced_by_memtables(base: BaseTable, keys: pa.Array) -> RowIds:
    """Find the rows of MemTable keys; keys that were looked up before are not looked up again.

    A key may be there several times.
    """
    results = _lookups.get(_base_key(base), partial(_LookupResults.empty, keys.type))
    if len(results.keys) > max(_MAX_CACHED_KEYS, 2 * len(keys)):
        results = _LookupResults.empty(keys.type)
    # The last rows of keys that are not among those: far quicker than to hash all keys by Arrow.
    is_missing = mark_newest_rows(pa.concat_arrays([keys, results.keys]))[: len(keys)]
    if is_missing.any():
        missing = keys.filter(pa.array(is_missing))
        rows, positions = rows_of_keys(base, missing)
        results = _LookupResults(
            pa.concat_arrays([results.keys, missing]),
            np.concatenate([results.rows, rows]),
            np.concatenate([results.positions, positions + len(results.keys)]),
        )
        # If two threads do this at once, the results of one are lost, and its keys are looked up
        # again.
        _lookups.put(_base_key(base), results)
    # Only keys that the base table has are compared.
    found = np.unique(results.positions)
    is_requested = np.zeros(len(results.keys), np.bool_)
    is_requested[found] = keys_among(results.keys.take(pa.array(found)), [keys])
    replaced: RowIds = results.rows[is_requested[results.positions]]
    return replaced


@dataclass(frozen=True, slots=True, eq=False)
class _LookupResults:
    """Keys that were looked up in the base table, and their rows: ``positions`` among the keys."""

    keys: pa.Array
    rows: RowIds
    positions: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, key_type: pa.DataType) -> _LookupResults:
        """Return results without keys."""
        return cls(pa.array([], key_type), np.empty(0, np.uint64), np.empty(0, np.int64))


_of_sources: LruCache[ReplacedRows] = LruCache(_CACHE_BYTES, lambda replaced: replaced.rows.nbytes)
_kept: LruCache[pa.BooleanArray] = LruCache(_CACHE_BYTES, lambda kept: kept.nbytes)
_of_generation: LruCache[_Found] = LruCache(_CACHE_BYTES, lambda found: found.rows.nbytes)
_to_compare: LruCache[list[int]] = LruCache(64)
_lookups: LruCache[_LookupResults] = LruCache(4)


logger = logging.getLogger(__name__)


# Table and folder of each segment, and the fragments that it answers for, ascending.
_Segments = tuple[tuple[TableLocation, str, npt.NDArray[np.uint64]], ...]


def key_segments(base: BaseTable) -> Sequence[IndexSegmentDescription]:
    """Return the segments of the index on the key whose pages tell where rows are, if any do."""
    if len(base.primary_key) != 1:
        return ()
    (column,) = base.primary_key
    indexes = base.dataset.describe_indices()
    index = find_index(indexes, column, lambda kind: kind.finds_keys)
    # With stable row ids, an index may have these in place of addresses.
    if index is None or base.dataset.has_stable_row_ids or base.index_caveat:
        return ()
    # Its pages have rows where they were before a compaction, although it counts as covering the
    # new fragments: keys would be missed, and be in the table twice.
    if any(other.name == FRAG_REUSE_INDEX_NAME for other in indexes):
        return ()
    return index.segments


def addresses_in_pages(base: BaseTable, keys: pa.Array) -> RowIds | None:
    """Return addresses of rows of distinct keys, deleted ones too; None if pages do not tell."""
    # In an object store, pages that are not in memory cost more requests than a query.
    if not base.location.store.is_local:
        return None
    found = [np.empty(0, np.uint64)]
    try:
        (segments,) = _segments.get(version_key(base), lambda: (_find_segments(base),))
        if segments is None:
            return None
        for location, folder, fragments in segments:
            hits = page_hits(location, folder, keys)
            if hits is None:
                return None
            found.append(hits.ids[contains(fragments, hits.ids >> np.uint64(32))])
    except (CorruptDataError, ObjectNotFoundError) as error:
        warn_once(logger, "%s; keys are looked up by a query", str(error))
        return None
    return np.concatenate(found)


def _find_segments(base: BaseTable) -> _Segments | None:
    """Return the segments of the index on the key; None if they miss rows, or are too large."""
    left = set(base.dataset.fragment_ids())
    segments = []
    for segment in key_segments(base):
        own = left & segment.fragment_ids
        left.difference_update(own)
        folder = f"{INDICES_DIR}/{segment.uuid}"
        location = segment_location(base, segment)
        segments.append((location, folder, np.array(sorted(own), np.uint64)))
    if left or sum(kept_bytes(at, folder) for at, folder, _ in segments) > MAX_KEPT_BYTES:
        return None
    return tuple(segments)


_segments: LruCache[tuple[_Segments | None]] = LruCache(64)
