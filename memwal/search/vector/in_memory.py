"""Search over generations whose vectors are in memory, all of them at once.

A search through the index of a generation costs a millisecond however few rows it has, and there
may be dozens. Generations never change, so those that are searched again and again are read once
and searched together.
"""

from __future__ import annotations

import hashlib
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
from memwal.search.vector.candidates import Candidates
from memwal.search.vector.partitions import Estimates, Layout, Partitions, as_arrow
from memwal.search.vector.query import VectorQuery
from memwal.search.vector.sources import Part
from memwal.util.concurrency import run_all

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

_MEMORY_BYTES = 512 << 20
# From the third search of a generation on its vectors are read.
_SEARCHES_BEFORE = 2
# Multiplications that one search spends on laying out what it read: about a tenth of a second.
_LAYOUT_WORK = 1 << 30
# What takes longer is left to the indexes.
_LONGEST_LAYOUT = 16 << 30
_READING_WORK = 64
_PARTITION_BYTES = 128 << 20
_KNOWN_NAMES = 10_000
_PROBES = 20
_SPARE = 2
_GROWTH = 8


@dataclass(frozen=True, slots=True, eq=False)
class NamedPartitions:
    """Partitions of an index, and what names them for ever."""

    partitions: Partitions
    name: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Rows in storage, which could be in memory.

    Attributes
    ----------
    part : Part
        Which of them may be returned.
    rows : int
        How many there are altogether.
    read : callable
        Reads their vectors, and ``_rowid``.
    search : callable
        Searches them where they are.
    """

    part: Part
    rows: int
    read: Callable[[], pa.Table]
    search: Callable[[], Candidates]


def partitions_of(
    base: BaseTable, index: IndexDescription, query: VectorQuery
) -> NamedPartitions | None:
    """The partitions of the base table's index where vectors can be laid out by them."""
    if query.is_multi or query.vector.dtype not in (np.float16, np.float32):
        return None
    if query.column not in base.schema.names:
        # Lance does not tell the partitions of an index on a nested column.
        return None
    if not covered_fragments(index):
        # With too few rows to train on, Lance names an index and writes no file of it.
        return None
    segments = tuple(segment.uuid for segment in index.segments)
    found = _partitions.get(
        (base.location.uri, index.name, segments, query.metric),
        lambda: (_named(Partitions.of(base.dataset, index.name, query.metric)),),
    )
    return found[0]


def _named(partitions: Partitions | None) -> NamedPartitions | None:
    if partitions is None:
        return None
    name = hashlib.blake2b(partitions.centroids.tobytes() + partitions.metric.encode())
    return NamedPartitions(partitions, name.digest())


def layouts_of(
    stored: Sequence[Stored], column: str, named: NamedPartitions
) -> list[Layout | None]:
    """Those of the rows that are in memory, after some more were read.

    What does not fit in 512 MiB together, or in half of the budget of the process, is left to the
    indexes, so that no search drives out what the next one needs.
    """
    dimension = named.partitions.centroids.shape[1]
    room, work = min(_MEMORY_BYTES, cache_budget() // 2), _LAYOUT_WORK
    found: list[Layout | None] = []
    missing: list[tuple[int, Hashable, Stored]] = []
    for number, rows in enumerate(stored):
        found.append(None)
        room -= rows.rows * (dimension + 3) * 4
        if rows.part.name is None or room < 0:
            continue
        name: Hashable = (rows.part.name, column, named.name)
        known = _layouts.peek(name)
        if known is not None:
            # Asked for, so that it is not the next to be forgotten.
            found[number] = _layouts.get(name, lambda known=known: known)  # type: ignore[misc]
            continue
        needed = rows.rows * dimension * (len(named.partitions.centroids) + _READING_WORK)
        searches = _searches.get(name, itertools.count)
        if work > 0 and needed <= _LONGEST_LAYOUT and next(searches) >= _SEARCHES_BEFORE:
            work -= needed
            missing.append((number, name, rows))
    tables = run_all([rows.read for _, _, rows in missing])
    for (number, name, _), table in zip(missing, tables, strict=True):
        # One after the other: the product in it has threads of its own.
        found[number] = _layouts.get(name, partial(Layout.of, table, named.partitions))
    return found


def nearest_in_memory(
    warm: Sequence[tuple[Part, Layout]],
    query: VectorQuery,
    partitions: Partitions,
    *,
    k: int,
) -> Candidates:
    """The nearest rows of parts whose vectors are in memory, with exact distances.

    Parameters
    ----------
    warm : sequence of (Part, Layout)
    k : int
        How many rows at most.
    """
    parts, layouts = zip(*warm, strict=True)
    vector = query.vector.astype(np.float32)
    given = query.options.get("nprobes")
    # More than asked for where they do not have enough rows, as Lance does without a number.
    tries = [given] if given is not None else [_PROBES, len(partitions.centroids)]
    found = Hits.joined([])
    for count in tries:
        probes = np.sort(partitions.nearest(vector[None], count)[0])
        found = _nearest(
            parts, layouts, query, k, Estimates.of(layouts, probes, vector, query.metric)
        )
        if len(found) >= k:
            break
    return Candidates(found, exact=True)


def _nearest(
    parts: Sequence[Part],
    layouts: Sequence[Layout],
    query: VectorQuery,
    k: int,
    estimates: Estimates,
) -> Hits:
    wanted = _SPARE * k
    while True:
        best = estimates.best(wanted)
        chosen = list(_living(parts, layouts, estimates, best))
        living = sum(len(rows) for _, rows, _ in chosen)
        if living >= k or wanted >= len(estimates.values):
            break
        wanted *= _GROWTH
    if not living:
        return Hits.joined([])
    vectors = as_arrow(np.concatenate([vectors for _, _, vectors in chosen]))
    batch = pa.record_batch([vectors], names=["vector"])
    view = RowView.of(batch.schema, [batch])
    near = nearest_rows(view, "vector", query.vector, k=k, metric=query.metric)
    rows = Hits.joined([Hits.of(number, rows, np.zeros(len(rows))) for number, rows, _ in chosen])
    rows = rows.take(near.rows)
    return Hits(rows.source, rows.rows, near.distances.astype(np.float64))


def _living(
    parts: Sequence[Part],
    layouts: Sequence[Layout],
    estimates: Estimates,
    best: npt.NDArray[np.int64],
) -> Iterator[tuple[int, RowIds, npt.NDArray[np.float32]]]:
    """Those of some rows that may be returned: source, row ids, and vectors."""
    of = estimates.layout[best]
    for number in np.unique(of):
        position = estimates.position[best[of == number]]
        part, layout = parts[number], layouts[number]
        addresses = layout.addresses[position]
        at = np.minimum(np.searchsorted(part.addresses, addresses), len(part.addresses) - 1)
        living = part.addresses[at] == addresses
        yield part.number, part.rows[at[living]], layout.vectors[position[living]]


_partitions: LruCache[tuple[NamedPartitions | None]] = LruCache(
    _PARTITION_BYTES, lambda found: found[0].partitions.centroids.nbytes if found[0] else 0
)
_searches: LruCache[Iterator[int]] = LruCache(_KNOWN_NAMES)
_layouts: LruCache[Layout] = LruCache(_MEMORY_BYTES, lambda layout: layout.nbytes)
