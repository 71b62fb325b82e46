"""Live rows of each source, and candidates for the nearest vectors among them.

Includes late interaction: distances of rows with several vectors each (multivectors).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.format.values import single_array
from memwal.lsm.indexes.kinds import kind_of
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.lsm.memtable.vector_index import Neighbours, distance_of, nearest_rows
from memwal.reader.base_indexes import Gap, find_index, options_key
from memwal.reader.base_rows import cheap_replaced_rows, note_compared_rows
from memwal.reader.hits import BASE, Hits
from memwal.reader.latest import NewestRows
from memwal.reader.merged_scan import passing_rows
from memwal.reader.row_set import contains, encode_row_set
from memwal.reader.sources.cache import LruCache
from memwal.reader.sources.generation import GenerationSource, ReadSources
from memwal.reader.sources.narrow_columns import FragmentLayout, layout_of, read_columns
from memwal.reader.unreadable_indexes import (
    is_index_damage,
    leave_out,
    readable,
    scan_table,
)
from memwal.region.rows import key_column
from memwal.search.vector.query import VectorQuery, canonical_metric, index_metric
from memwal.util.arrays import Mask, Numbers, RowIds
from memwal.util.log import warn_once

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

logger = logging.getLogger(__name__)
# A search of rows some of which may be stale asks for this many times the candidates, and for this
# many times more in each further round.
_OVERFETCH = 2
_GROWTH = 4
# Above this number of rows, a search asks Lance for at most as many as there are; an index of
# multivectors for at most this number of vectors.
_MANY_ROWS = 1 << 16
_MANY_VECTORS = 1 << 22


def nearest_multivectors(
    vectors: pa.ChunkedArray,
    query: npt.NDArray[np.number],
    *,
    k: int,
    metric: str,
    column: str,
    allowed: Mask | None = None,
) -> Neighbours:
    """Find the nearest rows of a multivector column, with the distances that Lance computes.

    The distance of a row is the sum, over the query's vectors, of the distance of the row's nearest
    vector; nulls within a list are zeros. Rows without vectors, or with a distance that is not
    finite, are left out. ``vectors`` are lists of fixed-size lists, ``query`` has shape (vectors,
    dimension), and the metric is l2, cosine or dot. Only rows in the mask ``allowed`` are returned.
    Raises InvalidInputError, which names ``column``, for another metric.
    """
    lengths = pc.fill_null(pc.list_value_length(vectors), 0).to_numpy().astype(np.int64)
    rows = np.flatnonzero(lengths if allowed is None else lengths * allowed)
    distances = np.full(len(vectors), np.nan, np.float32)
    distance = distance_of(metric, query.dtype, column)
    if len(rows):
        inner = single_array(pc.list_flatten(vectors.take(pa.array(rows))))
        dimension = query.shape[1]
        # Lance takes nulls for zeros. To flatten again would leave out null vectors.
        flat = inner.values.slice(inner.offset * dimension, len(inner) * dimension)
        values = np.asarray(pc.fill_null(flat, 0)).reshape(-1, dimension)
        values = values.astype(np.result_type(values, np.float32), copy=False)
        if inner.null_count:
            is_valid = inner.is_valid().to_numpy(zero_copy_only=False)
            values = np.where(is_valid[:, np.newaxis], values, 0)
        starts = np.cumsum(lengths[rows]) - lengths[rows]
        summed = np.zeros(len(rows))
        for vector in query.astype(values.dtype):
            summed += np.minimum.reduceat(distance(values, vector), starts)
        distances[rows] = summed
    near = np.argsort(distances, kind="stable")[:k]
    near = near[np.isfinite(distances[near])]
    return Neighbours(near, distances[near])


def rank_vectors(
    vectors: pa.ChunkedArray,
    query: VectorQuery,
    *,
    k: int,
    allowed: Mask | None = None,
) -> Neighbours:
    """Rank vectors that were read by their exact distance."""
    rank = nearest_multivectors if query.is_multi else nearest_rows
    return rank(
        vectors, query.vector, k=k, metric=query.metric, column=query.column, allowed=allowed
    )


def select_vectors(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """Select a column of vectors, which Lance returns within its structs if it is nested."""
    if column in rows.column_names:
        return rows.column(column)
    name, *fields = column.split(".")
    return pc.struct_field(rows.column(name), fields)


def memtable_candidates(part: LiveGenerationRows, base: BaseTable, query: VectorQuery) -> Hits:
    """Find the nearest rows of a MemTable."""
    source = part.source
    if source.unflushed is None:
        return generation_candidates(part, query)
    view = source.unflushed.snapshot.view
    allowed = np.zeros(view.rows, np.bool_)
    allowed[part.addresses.astype(np.int64)] = True
    if query.filter is not None:
        allowed &= passing_rows(source, query.filter, base)
    vectors = view.column(query.column)
    near = rank_vectors(vectors, query, k=query.candidates, allowed=allowed)
    return Hits.of(part.number, near.rows.astype(np.uint64), near.distances)


def generation_candidates(part: LiveGenerationRows, query: VectorQuery) -> Hits:
    """Find the nearest rows of a generation, through its own index."""
    index = _own_index(part, query)
    found = _search_dataset(
        part.source.dataset, query, k=query.candidates, index=index, allowed=part.encoded
    )
    addresses = found.column("_rowid").to_numpy()
    distances = found.column("_distance").to_numpy()
    rows = part.rows[np.searchsorted(part.addresses, addresses)]
    return Hits.of(part.number, rows, distances, is_exact=_is_exact(index, query))


def _own_index(part: LiveGenerationRows, query: VectorQuery) -> IndexDescription | None:
    """Return the index of a generation; warn if it has none that it should have."""
    index = find_index(
        part.source.dataset.describe_indices(),
        query.column,
        lambda kind: kind.is_vector,
        preferred=() if query.usable_index is None else (query.usable_index.name,),
    )
    index = readable(index)
    # Generations have no index over multivectors: Lance cannot maintain one.
    is_expected = query.index is not None and not query.is_multi and part.number != BASE
    if index is None and is_expected:
        _warn_no_index(part.source, query.column)
    return index


def read_vectors(part: LiveGenerationRows, query: VectorQuery) -> pa.Table:
    """Read the vectors and ``_rowid`` of a generation; warn as a search by its index does."""
    _own_index(part, query)
    source, layout = part.source, part.layout
    if layout.has_deletions:
        return source.dataset.scanner(columns=[query.column], with_row_id=True).to_table()
    rows = read_columns(source, [query.column])
    return rows.append_column("_rowid", pa.array(layout.addresses()))


def unindexed_candidates(base: BaseTable, part: LiveRows, gap: Gap, query: VectorQuery) -> Hits:
    """Find the nearest rows that were written directly to the base table and are not indexed."""
    rows = read_unindexed_vectors(base, gap, query.column, filter=query.filter)
    row_ids = rows.column("_rowid").to_numpy()
    allowed = contains(part.addresses, row_ids)
    vectors = select_vectors(rows, query.column)
    near = rank_vectors(vectors, query, k=query.candidates, allowed=allowed)
    return Hits.of(BASE, row_ids[near.rows], near.distances)


def read_unindexed_vectors(
    base: BaseTable, gap: Gap, column: str, *, filter: str | None = None
) -> pa.Table:
    """Read vectors and ``_rowid`` of the rows that no index and no merged generation covers."""
    read = base.dataset.scanner(
        columns=[column],
        filter=filter,
        with_row_id=True,
        use_scalar_index=not unusable_indexes(base),
        fragments=[base.dataset.get_fragment(fragment) for fragment in gap.fragments],
    ).to_table()
    return read.filter(pa.array(contains(gap.unbridged, read.column("_rowid").to_numpy())))


def base_candidates(
    sources: ReadSources, newest: NewestRows, query: VectorQuery, *, covered: bool
) -> Hits:
    """Find the nearest rows of the base table that no generation replaced, with exact distances.

    Only rows that the search returns are checked for replacement. Replaced rows are blocked, and
    the search is repeated for more rows until there are enough, or no more. Lance reads the keys
    and ranks the candidates by their vectors in the same call, except multivectors, of which it
    estimates distances. With ``covered``, only rows that the index covers are searched.
    """
    base, index = sources.base, readable(query.usable_index)
    has_newer = len(newest.keys) > 0
    known = cheap_replaced_rows(sources) if has_newer else None
    keys = list(base.primary_key) if has_newer and known is None else []
    is_exact = _is_exact(index, query)
    wanted = query.candidates if query.is_multi else query.k
    blocked = np.empty(0, np.uint64)
    count = wanted * (_OVERFETCH if has_newer else 1)
    while True:
        found = _search_dataset(
            base.dataset,
            query,
            k=count,
            index=index,
            columns=keys,
            refine=not is_exact and not query.is_multi,
            blocked=blocked,
            covered=covered,
            use_scalar_index=not unusable_indexes(base),
        )
        rows = found.column("_rowid").to_numpy()
        replaced = np.zeros(len(rows), np.bool_)
        if known is not None:
            replaced = contains(known.rows, rows)
        elif keys:
            # There are few of these keys, so they are hashed, and not those of the generations.
            # A key that was appended twice is among them twice.
            few = key_column(found, keys)
            newer = newest.keys.filter(pc.is_in(newest.keys, value_set=few))
            replaced = pc.is_in(few, value_set=newer).to_numpy(zero_copy_only=False)
            note_compared_rows(sources, len(newest.keys))
        if len(rows) < count or np.count_nonzero(~replaced) >= wanted:
            break
        blocked = np.concatenate([blocked, rows[replaced]])
        count *= _GROWTH
    rows, distances = rows[~replaced], found.column("_distance").to_numpy()[~replaced]
    if query.is_multi and not is_exact and len(rows):
        read = base.dataset._take_rows(rows.tolist(), columns=[query.column])
        near = rank_vectors(select_vectors(read, query.column), query, k=len(rows))
        rows, distances = rows[near.rows], near.distances
    return Hits.of(BASE, rows, distances)


def _is_exact(index: IndexDescription | None, query: VectorQuery) -> bool:
    """Return whether a search gives exact distances, not estimates of an index."""
    # Of a multivector, an index finds some vectors and estimates the distances of the others.
    return index is None or (kind_of(index).exact_distances and not query.is_multi)


def _search_dataset(
    dataset: lance.LanceDataset,
    query: VectorQuery,
    *,
    k: int,
    index: IndexDescription | None,
    columns: Sequence[str] = (),
    refine: bool = False,
    allowed: bytes | None = None,
    blocked: RowIds | None = None,
    covered: bool = False,
    use_scalar_index: bool = True,
) -> pa.Table:
    """Find the nearest ``k`` rows of a data set: ``_rowid``, ``_distance`` and ``columns``.

    With ``refine``, the candidates of the query for each row are ranked by their vectors.
    """
    if k > _MANY_ROWS:
        # Lance reserves memory for k rows, and aborts the process if there is not as much. The
        # number of rows is no limit for an index of multivectors: Lance takes the rows of the
        # nearest 10 k vectors, and a row may have many of these.
        is_by_vectors = query.is_multi and index is not None
        k = min(k, max(dataset.count_rows(), _MANY_VECTORS if is_by_vectors else 1))
    options: dict[str, object] = {}
    nearest: dict[str, object] = {
        "column": query.column,
        "q": query.vector,
        "k": k,
        "metric": query.metric,
        **query.options,
    }
    if refine:
        nearest["refine_factor"] = query.candidates // query.k
    if allowed is not None:
        options["row_addr_allowlist"] = allowed
    if blocked is not None and len(blocked):
        options["row_addr_blocklist"] = encode_row_set(blocked)
    if index is None:
        # Lance would take one that was left out because it cannot be read.
        nearest["use_index"] = False
    elif query.metric == canonical_metric(index_metric(index)):
        # Of several indexes, Lance takes the first in the manifest, which changes with every
        # build. It searches no row outside of the segments that are passed.
        segments = [segment.uuid for segment in index.segments if segment.fragment_ids]
        if segments:
            options["index_segments"] = segments
        else:
            # Listed, but without files: Lance does not train an index on so few rows.
            nearest["use_index"] = False
    try:
        return scan_table(
            dataset,
            columns=[*columns, "_distance"],
            nearest=nearest,
            filter=query.filter,
            prefilter=True,
            with_row_id=True,
            fast_search=covered,
            # With a scalar index, a fast search would also omit rows that this index does not
            # cover.
            use_scalar_index=use_scalar_index and not covered,
            disable_scoring_autoprojection=True,
            **options,
        )
    except BaseException as error:
        if index is None or not is_index_damage(error):
            raise
        segments = [segment.uuid for segment in index.segments]
        raise leave_out(str(dataset.uri), segments, error) from error


def _warn_no_index(source: GenerationSource, column: str) -> None:
    """Warn about a flushed generation that is searched row by row."""
    if source.identity is None:
        return
    warn_once(
        logger,
        "generation %s has no vector index on %s: its rows are searched one by one, and Lance's "
        "own search does not see them; merge it, or name the index among the maintained ones",
        source.identity,
        column,
    )


_PART_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, eq=False)
class LiveRows:
    """Rows of one source that a search may return."""

    number: int  # Source of the hits: ``BASE``, or a position among the generations.
    name: Hashable  # Identity of the stored rows, for caches; None for a MemTable, which changes.
    addresses: RowIds  # Rows in storage, ascending.
    rows: RowIds  # Row ids of the hits.

    @property
    def nbytes(self) -> int:
        """Memory in bytes; encoded addresses, and positions, are assumed to take as much each."""
        return int(3 * self.addresses.nbytes + self.rows.nbytes)


@dataclass(frozen=True, eq=False)
class LiveGenerationRows(LiveRows):
    """Live rows of a generation."""

    source: GenerationSource

    @cached_property
    def encoded(self) -> bytes:
        """The addresses in the form that Lance's scanner takes."""
        return encode_row_set(self.addresses)

    @cached_property
    def layout(self) -> FragmentLayout:
        """The layout of a flushed generation."""
        return layout_of(self.source)

    @cached_property
    def positions(self) -> Numbers:
        """The positions of the rows in the order of a scan of a flushed generation."""
        return self.layout.positions(self.addresses)


def unmerged_rows(sources: ReadSources, newest: NewestRows) -> tuple[LiveGenerationRows, ...]:
    """Return the rows of each generation that are the newest of their keys; cached."""
    return _unmerged_cache.get(_flushed_key(sources), lambda: _find_unmerged(sources, newest))


def unindexed_rows(
    sources: ReadSources, newest: NewestRows, gap: Gap | None
) -> tuple[tuple[LiveGenerationRows, ...], LiveRows | None]:
    """Return uncovered base rows that are live: found through merged generations, and others."""
    if gap is None:
        return (), None
    flushed = _flushed_key(sources)
    if flushed is None:
        return _find_unindexed(newest, gap)
    return _unindexed_cache.get((flushed, gap.key), lambda: _find_unindexed(newest, gap))


def _find_unmerged(sources: ReadSources, newest: NewestRows) -> tuple[LiveGenerationRows, ...]:
    parts = []
    for position, source in enumerate(sources.generations):
        live = newest.live_addresses(position)
        if len(live):
            parts.append(LiveGenerationRows(position, source.identity, live, live, source))
    return tuple(parts)


def _find_unindexed(
    newest: NewestRows, gap: Gap
) -> tuple[tuple[LiveGenerationRows, ...], LiveRows | None]:
    bridged = []
    for bridge in gap.bridges:
        live = ~pc.is_in(bridge.keys, value_set=newest.keys).to_numpy(zero_copy_only=False)
        if live.any():
            source, rows = bridge.source, bridge.rows[live]
            addresses = bridge.addresses[live]
            bridged.append(LiveGenerationRows(BASE, source.identity, addresses, rows, source))
    replaced = pc.is_in(gap.unbridged_keys, value_set=newest.keys).to_numpy(zero_copy_only=False)
    unbridged = gap.unbridged[~replaced]
    if not len(unbridged):
        return tuple(bridged), None
    return tuple(bridged), LiveRows(BASE, gap.key, unbridged, unbridged)


def _flushed_key(sources: ReadSources) -> tuple[Hashable, ...] | None:
    """Return the cache key of the open generations; None if one of them is a MemTable."""
    names = tuple(source.identity for source in sources.generations)
    return None if None in names else (names, options_key(sources.base))


def _total_bytes(parts: Sequence[LiveRows]) -> int:
    return sum(part.nbytes for part in parts)


def _unindexed_bytes(unindexed: tuple[tuple[LiveGenerationRows, ...], LiveRows | None]) -> int:
    bridged, unbridged = unindexed
    return _total_bytes(bridged if unbridged is None else [*bridged, unbridged])


_unmerged_cache: LruCache[tuple[LiveGenerationRows, ...]] = LruCache(_PART_BYTES, _total_bytes)
_unindexed_cache: LruCache[tuple[tuple[LiveGenerationRows, ...], LiveRows | None]] = LruCache(
    _PART_BYTES, _unindexed_bytes
)
