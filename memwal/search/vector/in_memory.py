"""Vector search over all generations in memory at once.

A search through the index of a generation takes about a millisecond however few rows it has, and
there may be dozens. Generations never change, so the vectors of those that are searched repeatedly
are read once, cached, and searched together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.vector_index import nearest_rows
from memwal.reader.base_indexes import covered_fragments
from memwal.reader.cache.lru import LruCache, cache_budget
from memwal.reader.hits import Hits
from memwal.reader.row_set import RowIds
from memwal.search.vector.candidates import Candidates, LiveRows
from memwal.search.vector.partitions import Estimates, Layout, Partitions, as_arrow
from memwal.search.vector.query import VectorQuery
from memwal.util.concurrency import run_all

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

_MEMORY_BYTES = 512 << 20
# The vectors of a generation are read at its third search.
_SEARCHES_BEFORE = 2
# Multiplications that one search spends on sorting rows by partition: about a tenth of a second.
_LAYOUT_WORK = 1 << 30
# Generations that need more are searched through their indexes.
_LONGEST_LAYOUT = 16 << 30
_READING_WORK = 64
_PARTITION_BYTES = 128 << 20
_KNOWN_NAMES = 10_000
_PROBES = 20
_OVERFETCH = 2
_GROWTH = 8


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Rows in storage whose vectors can be read into memory."""

    live: LiveRows  # Rows that may be returned.
    rows: int  # Number of all rows.
    read: Callable[[], pa.Table]  # Reads their vectors and ``_rowid``.
    search: Callable[[], Candidates]  # Searches them in storage.


def index_partitions(
    base: BaseTable, index: IndexDescription, query: VectorQuery
) -> Partitions | None:
    """Return the partitions of the base table's index, if a search in memory can use them."""
    if query.is_multi or query.vector.dtype not in (np.float16, np.float32):
        return None
    if query.column not in base.schema.names:
        # Lance does not return the partitions of an index on a nested column.
        return None
    if not covered_fragments(index):
        # With too few rows to train on, Lance lists an index and writes no file of it.
        return None
    segments = tuple(segment.uuid for segment in index.segments)
    (partitions,) = _partition_cache.get(
        (base.location.uri, index.name, segments, query.metric),
        lambda: (Partitions.of(base.dataset, index.name, query.metric),),
    )
    return partitions


def cached_layouts(
    stored: Sequence[StoredRows], column: str, partitions: Partitions
) -> list[Layout | None]:
    """Return the cached layouts of stored rows, None where there is none; read some more first.

    Rows beyond 512 MiB together, or beyond half of the cache budget of the process, are searched
    through their indexes, so that no search evicts the layouts that the next one needs.
    """
    dimension = partitions.centroids.shape[1]
    room, work = min(_MEMORY_BYTES, cache_budget() // 2), _LAYOUT_WORK
    layouts: list[Layout | None] = []
    missing: list[tuple[int, Hashable, StoredRows]] = []
    for number, rows in enumerate(stored):
        layouts.append(None)
        room -= rows.rows * (dimension + 3) * 4
        if rows.live.name is None or room < 0:
            continue
        name: Hashable = (rows.live.name, column, partitions.digest)
        cached = _layout_cache.peek(name)
        if cached is not None:
            # A get marks it as recently used.
            layouts[number] = _layout_cache.get(name, lambda hit=cached: hit)  # type: ignore[misc]
            continue
        needed = rows.rows * dimension * (len(partitions.centroids) + _READING_WORK)
        searches = _search_counts.get(name, itertools.count)
        if work > 0 and needed <= _LONGEST_LAYOUT and next(searches) >= _SEARCHES_BEFORE:
            work -= needed
            missing.append((number, name, rows))
    tables = run_all([rows.read for _, _, rows in missing])
    for (number, name, _), table in zip(missing, tables, strict=True):
        # One after the other: the matrix product has threads of its own.
        layouts[number] = _layout_cache.get(name, partial(Layout.of, table, partitions))
    return layouts


def nearest_in_memory(
    warm: Sequence[tuple[LiveRows, Layout]], query: VectorQuery, partitions: Partitions
) -> Candidates:
    """Find the nearest rows among cached layouts, with exact distances."""
    parts, layouts = zip(*warm, strict=True)
    vector = query.vector.astype(np.float32)
    nprobes = query.options.get("nprobes")
    # Without nprobes, all partitions are probed if the nearest 20 have too few rows, as in Lance.
    tries = [nprobes] if nprobes is not None else [_PROBES, len(partitions.centroids)]
    hits = Hits.joined([])
    for count in tries:
        probes = np.sort(partitions.nearest(vector[None], count)[0])
        estimates = Estimates.of(layouts, probes, vector, query.metric)
        hits = _nearest(parts, layouts, query, estimates)
        if len(hits) >= query.k:
            break
    return Candidates(hits, exact=True)


def _nearest(
    parts: Sequence[LiveRows],
    layouts: Sequence[Layout],
    query: VectorQuery,
    estimates: Estimates,
) -> Hits:
    count = _OVERFETCH * query.k
    while True:
        best = estimates.best(count)
        chosen = list(_select_live(parts, layouts, estimates, best))
        living = sum(len(rows) for _, rows, _ in chosen)
        if living >= query.k or count >= len(estimates.values):
            break
        count *= _GROWTH
    if not living:
        return Hits.joined([])
    vectors = as_arrow(np.concatenate([vectors for _, _, vectors in chosen]))
    batch = pa.record_batch([vectors], names=["vector"])
    view = RowView.of(batch.schema, [batch])
    near = nearest_rows(view, "vector", query.vector, k=query.k, metric=query.metric)
    rows = Hits.joined([Hits.of(number, rows, np.zeros(len(rows))) for number, rows, _ in chosen])
    rows = rows.take(near.rows)
    return Hits(rows.source, rows.rows, near.distances.astype(np.float64))


def _select_live(
    parts: Sequence[LiveRows],
    layouts: Sequence[Layout],
    estimates: Estimates,
    best: npt.NDArray[np.int64],
) -> Iterator[tuple[int, RowIds, npt.NDArray[np.float32]]]:
    """Select the estimated rows that may be returned: source, row ids, and vectors."""
    of = estimates.layout[best]
    for number in np.unique(of):
        position = estimates.position[best[of == number]]
        part, layout = parts[number], layouts[number]
        addresses = layout.addresses[position]
        at = np.minimum(np.searchsorted(part.addresses, addresses), len(part.addresses) - 1)
        living = part.addresses[at] == addresses
        yield part.number, part.rows[at[living]], layout.vectors[position[living]]


_partition_cache: LruCache[tuple[Partitions | None]] = LruCache(
    _PARTITION_BYTES, lambda entry: entry[0].centroids.nbytes if entry[0] else 0
)
_search_counts: LruCache[Iterator[int]] = LruCache(_KNOWN_NAMES)
_layout_cache: LruCache[Layout] = LruCache(_MEMORY_BYTES, lambda layout: layout.nbytes)
