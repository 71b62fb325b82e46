"""Nearest vectors over the base table and all unmerged rows, with exact distances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.reader.base_indexes import find_gap
from memwal.reader.hits import BASE, Hits, filter_hits
from memwal.reader.latest import NewestRows
from memwal.reader.sources.generation import ReadSources
from memwal.reader.unreadable_indexes import readable, retry_unreadable
from memwal.search.vector.candidates import (
    base_candidates,
    generation_candidates,
    memtable_candidates,
    rank_vectors,
    read_unindexed_vectors,
    read_vectors,
    select_vectors,
    unindexed_candidates,
    unindexed_rows,
    unmerged_rows,
)
from memwal.search.vector.in_memory import (
    StoredRows,
    VectorLayout,
    cached_layouts,
    index_partitions,
    nearest_in_memory,
    passing_parts,
)
from memwal.search.vector.query import SearchOptions, VectorQuery
from memwal.util.arrays import RowIds
from memwal.util.concurrency import run_all


def nearest(
    sources: ReadSources,
    newest: NewestRows,
    vector: npt.ArrayLike | pa.Array,
    *,
    column: str | None = None,
    prefilter: bool = True,
    **options: Unpack[SearchOptions],
) -> Hits:
    """Find the rows with the nearest vectors (spec: LSM Tree Merging Read, Indexed Read Plan).

    Every source is searched through its own index, without rows that a newer source replaced, and
    returns up to ``k * refine_factor`` candidates. The best candidates with estimated distances are
    ranked again by their vectors, so that distances are exact and comparable between sources.

    The distance of a row with several vectors is the sum, over the vectors of the query, of the
    distance of its nearest vector. Hits are ordered nearest first; distances are squared for
    ``l2``, as in Lance.
    """
    predicate = options.get("filter")
    options["filter"] = predicate if prefilter else None
    query = VectorQuery(sources.base, vector, column, options)
    results = retry_unreadable(lambda: run_all(_search_tasks(sources, newest, query)))
    exact = [hits for hits in results if hits.is_exact]
    estimated = Hits.joined([hits for hits in results if not hits.is_exact])
    refined = _with_exact_distances(sources, query, estimated.best(query.candidates, smallest=True))
    hits = Hits.joined([*exact, refined]).best(query.k, smallest=True)
    if predicate is not None and not prefilter and len(hits):
        hits = hits.take(filter_hits(sources, hits, predicate))
    return hits


def _search_tasks(
    sources: ReadSources, newest: NewestRows, query: VectorQuery
) -> list[Callable[[], Hits]]:
    """Build the searches that together cover all sources."""
    base = sources.base
    # Lance's own search also knows which rows of an index data overlay files replaced.
    index = readable(query.usable_index) if base.index_caveat is None else None
    gap = find_gap(sources, index) if index is not None else None
    bridges, unbridged = unindexed_rows(sources, newest, gap)
    tasks: list[Callable[[], Hits]] = []
    stored = []
    if base.dataset.fragment_ids():
        tasks.append(partial(base_candidates, sources, newest, query, covered=gap is not None))
    for part in (*unmerged_rows(sources, newest), *bridges):
        source = part.source
        if not source.is_flushed:
            tasks.append(partial(memtable_candidates, part, base, query))
            continue
        stored.append(
            StoredRows(
                part,
                part.layout.rows,
                partial(read_vectors, part, query),
                partial(generation_candidates, part, query),
            )
        )
    if gap is not None and unbridged is not None:
        stored.append(
            StoredRows(
                unbridged,
                len(gap.unbridged),
                partial(read_unindexed_vectors, base, gap, query.column),
                partial(unindexed_candidates, base, unbridged, gap, query),
            )
        )
    partitions = None if index is None else index_partitions(base, index, query)
    layouts: list[VectorLayout | None] = [None] * len(stored)
    if partitions is not None:
        layouts = cached_layouts(stored, query.column, partitions)
        live = [rows.live for rows in stored]
        if query.filter is not None:
            passing = passing_parts(base, live, layouts, query.filter)
            live = [
                rows if part is None else part for part, rows in zip(passing, live, strict=True)
            ]
            layouts = [
                layout if part is not None else None
                for part, layout in zip(passing, layouts, strict=True)
            ]
        warm = [(part, layout) for part, layout in zip(live, layouts, strict=True) if layout]
        if warm:
            tasks.append(partial(nearest_in_memory, warm, query, partitions))
    tasks += [rows.search for rows, layout in zip(stored, layouts, strict=True) if layout is None]
    return tasks


def _with_exact_distances(sources: ReadSources, query: VectorQuery, hits: Hits) -> Hits:
    def exact_distances(number: int, rows: RowIds) -> npt.NDArray[np.float64]:
        dataset = sources.base.dataset if number == BASE else sources.generations[number].dataset
        read = dataset._take_rows(rows.tolist(), columns=[query.column])
        near = rank_vectors(select_vectors(read, query.column), query, k=len(rows))
        distances = np.full(len(rows), np.inf)
        distances[near.rows] = near.distances
        return distances

    values = hits.values.copy()
    for at, distances in hits.read_each(exact_distances):
        values[at] = distances
    return Hits(hits.source, hits.rows, values)
