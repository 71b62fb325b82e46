"""Vector search over all generations in memory at once.

A search through the index of a generation takes about a millisecond however few rows it has, and
there may be dozens. Generations never change, so the vectors of generations that are searched
repeatedly are read once, cached, and searched together.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.lsm.indexes.catchup import covered_fragments
from memwal.lsm.memtable.vector_index import nearest_rows
from memwal.reader.hits import Hits
from memwal.reader.merged_scan import is_filtered_by_index, names_in
from memwal.reader.sources.cache import LruCache, cache_budget
from memwal.reader.sources.narrow_columns import group_generations, passing_together
from memwal.reader.unreadable_indexes import is_index_damage, leave_out
from memwal.search.vector.candidates import LiveGenerationRows, LiveRows
from memwal.search.vector.query import VectorQuery
from memwal.util.arrays import RowIds, nbytes_of
from memwal.util.concurrency import run_all

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

_MEMORY_BYTES = 512 << 20
# The vectors of a generation are read at its third search; fewer bytes of them at the first, which
# takes less than to search its index.
_SEARCHES_BEFORE = 2
_FEW_BYTES = 1 << 20
# Multiplications that one search spends on sorting rows by partition: about a tenth of a second.
_LAYOUT_WORK = 1 << 30
# Generations that need more are searched through their indexes.
_LONGEST_LAYOUT = 16 << 30
_READING_WORK = 64
_PROBES = 20
_OVERFETCH = 2
_GROWTH = 8


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Rows in storage whose vectors can be read into memory."""

    live: LiveRows  # Rows that may be returned.
    rows: int  # Number of all rows.
    read: Callable[[], pa.Table]  # Reads their vectors and ``_rowid``.
    search: Callable[[], Hits]  # Searches them in storage.


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
    try:
        (partitions,) = _partition_cache.get(
            (base.location.uri, index.name, segments, query.metric),
            lambda: (Partitions.of(base.dataset, index.name, query.metric),),
        )
    except BaseException as error:
        if not is_index_damage(error):
            raise
        raise leave_out(base.location.uri, segments, error) from error
    return partitions


def cached_layouts(
    stored: Sequence[StoredRows], column: str, partitions: Partitions
) -> list[VectorLayout | None]:
    """Return the cached layouts of stored rows, None where there is none; read some more first.

    Rows beyond 512 MiB together, or beyond half of the cache budget of the process, are searched
    through their indexes, so that no search evicts the layouts that the next one needs.
    """
    dimension = partitions.centroids.shape[1]
    room, work = min(_MEMORY_BYTES, cache_budget() // 2), _LAYOUT_WORK
    layouts: list[VectorLayout | None] = []
    missing: list[tuple[int, Hashable, StoredRows]] = []
    for number, rows in enumerate(stored):
        layouts.append(None)
        room -= rows.rows * (dimension + 3) * 4
        if rows.live.name is None or room < 0:
            continue
        name: Hashable = (rows.live.name, column, partitions.digest)
        layouts[number] = _layout_cache.use(name)
        if layouts[number] is not None:
            continue
        needed = rows.rows * dimension * (len(partitions.centroids) + _READING_WORK)
        is_due = rows.rows * dimension * 4 <= _FEW_BYTES or (
            next(_search_counts.get(name, itertools.count)) >= _SEARCHES_BEFORE
        )
        if is_due and work > 0 and needed <= _LONGEST_LAYOUT:
            work -= needed
            missing.append((number, name, rows))
    tables = run_all([rows.read for _, _, rows in missing])
    for (number, name, _), table in zip(missing, tables, strict=True):
        # One after the other: the matrix product has threads of its own.
        layouts[number] = _layout_cache.get(name, partial(VectorLayout.of, table, partitions))
    return layouts


def passing_parts(
    base: BaseTable,
    parts: Sequence[LiveRows],
    layouts: Sequence[VectorLayout | None],
    filter: str,
) -> list[LiveRows | None]:
    """Return the rows of generations with layouts that pass a filter, by one scan in memory.

    None for a part that is searched through storage: it has no layout, is no flushed generation, or
    the filter names a column that is not kept in memory.
    """
    passing: list[LiveRows | None] = [None] * len(parts)
    names = names_in(filter, base)
    flushed = {
        number: part
        for number, (part, layout) in enumerate(zip(parts, layouts, strict=True))
        if layout is not None
        and isinstance(part, LiveGenerationRows)
        and not part.layout.has_deletions
    }
    for group in group_generations({number: part.layout for number, part in flushed.items()}):
        found = passing_together(
            [flushed[number].source for number in group],
            base.schema,
            names,
            filter,
            is_indexed=partial(is_filtered_by_index, base),
        )
        if found is None:
            continue
        sizes = [flushed[number].layout.rows for number in group]
        passes = np.zeros(sum(sizes), np.bool_)
        passes[found] = True
        for number, first in zip(group, np.cumsum([0, *sizes[:-1]]), strict=True):
            part = flushed[number]
            kept = passes[part.positions + first]
            passing[number] = LiveRows(
                part.number, part.name, part.addresses[kept], part.rows[kept]
            )
    return passing


def nearest_in_memory(
    warm: Sequence[tuple[LiveRows, VectorLayout]], query: VectorQuery, partitions: Partitions
) -> Hits:
    """Find the nearest rows among cached layouts, with exact distances."""
    parts, layouts = zip(*warm, strict=True)
    vector = query.vector.astype(np.float32)
    nprobes = query.options.get("nprobes")
    # Without nprobes, all partitions are probed if the nearest 20 have too few rows, as in Lance.
    tries = [nprobes] if nprobes is not None else [_PROBES, len(partitions.centroids)]
    hits = Hits.joined([])
    for count in tries:
        probes = np.sort(partitions.nearest(vector[None], count)[0])
        estimates = Estimates(layouts, probes, vector, query.metric)
        hits = _nearest(parts, layouts, query, estimates)
        if len(hits) >= query.k:
            break
    return hits


def _nearest(
    parts: Sequence[LiveRows],
    layouts: Sequence[VectorLayout],
    query: VectorQuery,
    estimates: Estimates,
) -> Hits:
    stored, live = (sum(len(one.addresses) for one in many) for many in (layouts, parts))
    # A filter may leave few of the rows.
    count = _OVERFETCH * query.k * max(stored // max(live, 1), 1)
    while True:
        best = estimates.best(count)
        chosen = list(_select_live(parts, layouts, estimates, best))
        living = sum(len(rows) for _, rows, _ in chosen)
        if living >= query.k or count >= len(estimates.values):
            break
        count *= _GROWTH
    if not living:
        return Hits.joined([])
    vectors = pa.chunked_array([as_arrow(np.concatenate([vectors for _, _, vectors in chosen]))])
    near = nearest_rows(vectors, query.vector, k=query.k, metric=query.metric, column=query.column)
    sources = np.repeat([n for n, _, _ in chosen], [len(rows) for _, rows, _ in chosen])
    rows = np.concatenate([rows for _, rows, _ in chosen])
    return Hits(sources[near.rows], rows[near.rows], near.distances.astype(np.float64))


def _select_live(
    parts: Sequence[LiveRows],
    layouts: Sequence[VectorLayout],
    estimates: Estimates,
    best: npt.NDArray[np.int64],
) -> Iterator[tuple[int, RowIds, npt.NDArray[np.float32]]]:
    """Select the estimated rows that may be returned: source, row ids, and vectors."""
    if not len(best):
        return
    of, positions = estimates.rows_of(best)
    # Ascending, as the values of layouts follow each other.
    numbers, first = np.unique(of, return_index=True)
    for number, position in zip(numbers.tolist(), np.split(positions, first[1:]), strict=True):
        part, layout = parts[number], layouts[number]
        if not len(part.addresses):
            continue
        addresses = layout.addresses[position]
        at = np.minimum(np.searchsorted(part.addresses, addresses), len(part.addresses) - 1)
        living = part.addresses[at] == addresses
        yield part.number, part.rows[at[living]], layout.vectors[position[living]]


_partition_cache: LruCache[tuple[Partitions | None]] = LruCache(
    128 << 20, lambda entry: entry[0].centroids.nbytes if entry[0] else 0
)
_search_counts: LruCache[Iterator[int]] = LruCache(10_000)
_layout_cache: LruCache[VectorLayout] = LruCache(_MEMORY_BYTES, nbytes_of)


_BLOCK_ROWS = 4096
# Relative rounding error of a sum in float32.
_ROUNDING = 1e-5
_METRICS: Final = ("l2", "cosine", "dot")


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """Partitions of an IVF index."""

    centroids: npt.NDArray[np.float32]  # Shape (partitions, dimension).
    metric: str  # l2, cosine or dot.
    digest: bytes  # Identifies these centroids and this metric for ever.

    @classmethod
    def of(cls, dataset: lance.LanceDataset, index: str, metric: str) -> Partitions | None:
        """Read the partitions of an index; None if it has none or the metric is not supported."""
        if metric not in _METRICS:
            return None
        centroids = dataset.get_ivf_model(index).centroids
        if centroids is None or not len(centroids):
            return None
        matrix = as_matrix(centroids).astype(np.float32)
        return cls(matrix, metric, hashlib.blake2b(matrix.tobytes() + metric.encode()).digest())

    def nearest(self, vectors: npt.NDArray[np.number], count: int) -> npt.NDArray[np.int64]:
        """Return the nearest partitions of each vector, unordered, shape (vectors, count)."""
        count = min(count, len(self.centroids))
        nearest = np.empty((len(vectors), count), np.int64)
        for start in range(0, len(vectors), _BLOCK_ROWS):
            distances = self._distances(vectors[start : start + _BLOCK_ROWS].astype(np.float32))
            block = nearest[start : start + _BLOCK_ROWS]
            if count == 1:
                block[:, 0] = distances.argmin(axis=1)
            else:
                block[:] = np.argpartition(distances, count - 1, axis=1)[:, :count]
        return nearest

    def _distances(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Distances up to a constant per vector, shape (vectors, partitions)."""
        with np.errstate(all="ignore"):
            if self.metric == "dot":
                return -vectors @ self.centroids.T
            if self.metric == "cosine":
                # Lance normalizes vectors before it partitions them for a cosine index.
                vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            products: npt.NDArray[np.float32] = vectors @ self.centroids.T
            squares: npt.NDArray[np.float32] = np.vecdot(self.centroids, self.centroids)
            return squares - 2 * products


@dataclass(frozen=True, slots=True, eq=False)
class VectorLayout:
    """Rows of a generation with their vectors, sorted by partition."""

    vectors: npt.NDArray[np.float32]  # Shape (rows, dimension).
    squares: npt.NDArray[np.float32]  # Squared lengths of the vectors.
    addresses: RowIds
    starts: npt.NDArray[np.int64]  # First row of each partition, and the number of rows.

    @classmethod
    def of(cls, rows: pa.Table, partitions: Partitions) -> VectorLayout:
        """Sort rows (a column of vectors, with nulls, and ``_rowid``) by partition."""
        rows = rows.filter(rows.column(0).is_valid())
        vectors = as_matrix(rows.column(0)).astype(np.float32, copy=False)
        partition = partitions.nearest(vectors, 1)[:, 0]
        order = np.argsort(partition, kind="stable")
        starts = np.zeros(len(partitions.centroids) + 1, np.int64)
        np.cumsum(np.bincount(partition, minlength=len(starts) - 1), out=starts[1:])
        vectors = vectors[order]
        with np.errstate(all="ignore"):
            squares = np.vecdot(vectors, vectors)
        return cls(vectors, squares, rows.column("_rowid").to_numpy()[order], starts)


class Estimates:
    """Estimated distances of the rows in the probed partitions of several layouts.

    Partitions that follow each other in a layout are one range of its rows.
    """

    def __init__(
        self,
        layouts: Sequence[VectorLayout],
        probes: npt.NDArray[np.int64],
        vector: npt.NDArray[np.float32],
        metric: str,
    ) -> None:
        """Estimate all rows of the probed partitions, ascending, by products without a copy."""
        is_first = np.diff(probes, prepend=-2) > 1
        first, last = probes[is_first], probes[np.roll(is_first, -1)]
        starts = np.array([layout.starts[first] for layout in layouts], np.int64)
        counts = np.array([layout.starts[last + 1] for layout in layouts], np.int64) - starts
        ends = np.cumsum(counts)
        products = np.empty(int(ends[-1]), np.float32)
        squares = np.empty_like(products)
        done = 0
        with np.errstate(all="ignore"):
            for layout, rows in zip(
                layouts, np.stack([starts, starts + counts], 2).tolist(), strict=True
            ):
                for start, stop in rows:
                    end = done + stop - start
                    np.dot(layout.vectors[start:stop], vector, out=products[done:end])
                    squares[done:end] = layout.squares[start:stop]
                    done = end
            length = np.dot(vector, vector)
            longest = np.nanmax(squares, initial=0.0)
            if metric == "dot":
                values, slack = -products, _ROUNDING * (longest * length) ** 0.5
            elif metric == "cosine":
                values, slack = -products / np.sqrt(squares * length), _ROUNDING
            else:
                values, slack = squares - 2 * products, _ROUNDING * (longest + length)
        # Values that order rows as their distances do, up to rounding; NaN where there is none.
        self.values: npt.NDArray[np.float32] = values
        self.slack = slack  # Bound of the rounding error of a comparison.
        # Layout of each range, its first row, and the end of its values.
        self.layout = np.repeat(np.arange(len(layouts)), len(first))
        self.starts, self.ends = starts.ravel(), ends

    def rows_of(
        self, numbers: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the layout of each value, by its number, and its position there."""
        at = np.searchsorted(self.ends, numbers, side="right")
        before = np.where(at > 0, self.ends[at - 1], 0)
        return self.layout[at], self.starts[at] + numbers - before

    def best(self, count: int) -> npt.NDArray[np.int64]:
        """Return numbers of rows that include the nearest ``count`` in spite of rounding."""
        values = self.values
        if len(values) > count:
            # NaN sorts last.
            limit = np.partition(values, count - 1)[count - 1] + np.float32(self.slack)
            near: npt.NDArray[np.int64] = np.flatnonzero(values <= limit)
            if np.isfinite(values[near]).all() and len(near) >= count:
                return near
        finite: npt.NDArray[np.int64] = np.flatnonzero(np.isfinite(values))
        return finite


def as_matrix(vectors: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.number]:
    """Convert vectors without nulls to an array, shape (rows, dimension)."""
    values: npt.NDArray[np.number] = np.asarray(pc.list_flatten(vectors))
    return values.reshape(-1, vectors.type.list_size)


def as_arrow(vectors: npt.NDArray[np.number]) -> pa.FixedSizeListArray:
    """Convert vectors to an Arrow array, without a copy."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
