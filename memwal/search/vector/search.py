"""Nearest vectors over the base table and all unmerged rows, with exact distances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.reader.base_indexes import find_gap, find_index
from memwal.reader.hits import BASE, Hits, filter_hits
from memwal.reader.latest import NewestRows
from memwal.reader.row_set import RowIds
from memwal.reader.sources.generation import ReadSources
from memwal.search.vector.candidates import (
    Candidates,
    base_candidates,
    generation_candidates,
    index_metric,
    memtable_candidates,
    rank_vectors,
    read_unindexed_vectors,
    read_vectors,
    select_vectors,
    unindexed_candidates,
)
from memwal.search.vector.in_memory import (
    StoredRows,
    cached_layouts,
    index_partitions,
    nearest_in_memory,
)
from memwal.search.vector.partitions import Layout
from memwal.search.vector.query import (
    VectorOptions,
    VectorQuery,
    canonical_metric,
    only_vector_column,
    parse_query_vector,
)
from memwal.search.vector.sources import unindexed_rows, unmerged_rows
from memwal.util.concurrency import run_all

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

_REFINE = 2
# Of a multivector, an index finds some vectors and estimates the distances of the others.
_REFINE_MULTI = 10


def nearest(
    sources: ReadSources,
    newest: NewestRows,
    vector: npt.ArrayLike | pa.Array,
    *,
    column: str | None = None,
    k: int = 10,
    filter: str | None = None,
    prefilter: bool = True,
    **options: Unpack[VectorOptions],
) -> Hits:
    """Find the rows with the nearest vectors (spec: LSM Tree Merging Read, Indexed Read Plan).

    Every source is searched through its own index, without rows that a newer source replaced, and
    returns up to ``k * refine_factor`` candidates. The best candidates with estimated distances are
    ranked again by their vectors, so that distances are exact and comparable between sources.

    Parameters
    ----------
    sources, newest
        See :func:`memwal.reader.scan.open_newest`.
    vector : array of numbers, shape (dimension,) or (vectors, dimension)
        Several vectors for a column of multivectors: the distance of a row is the sum, over these
        vectors, of the distance of its nearest vector.
    column : str, optional
        Required unless the table has exactly one column of vectors.
    k : int, default 10
    filter : str, optional
        SQL predicate over any columns.
    metric : str, optional
        The metric of the base table's index by default, or ``l2`` without an index. A search with
        another metric does not use the index.
    nprobes : int, optional
        Partitions probed in each source; Lance decides by default.
    refine_factor : int, default 2, of multivectors 10
        Candidates per result row that are ranked again by their vectors. A larger factor finds
        more of the nearest rows, and reads as many more vectors.
    ef : int, optional
        Candidates that a graph index keeps.
    prefilter : bool, default True
        False filters the ``k`` nearest rows, so fewer than ``k`` may remain.

    Returns
    -------
    Hits
        Nearest first. Distances are squared for ``l2``, as in Lance.

    Raises
    ------
    InvalidInputError
        An argument does not fit the table.
    """
    if k < 1:
        raise InvalidInputError(f"k is {k}; ask for at least one row")
    base = sources.base
    column = column or only_vector_column(base)
    index = find_index(
        base.dataset.describe_indices(),
        column,
        lambda kind: kind.is_vector,
        preferred=base.details.maintained_indexes,
    )
    query_vector = parse_query_vector(base, column, vector)
    factor = options.get("refine_factor")
    if factor is None:
        factor = _REFINE if query_vector.ndim == 1 else _REFINE_MULTI
    if factor < 1:
        raise InvalidInputError(f"refine_factor is {factor}; it is at least 1")
    query = VectorQuery(
        column=column,
        vector=query_vector,
        k=k * factor,
        metric=canonical_metric(options.get("metric") or index_metric(index)),
        options={
            name: value for name in ("nprobes", "ef") if (value := options.get(name)) is not None
        },
        filter=filter if prefilter else None,
    )
    is_usable = index is not None and query.metric == canonical_metric(index_metric(index))
    # Generations have no index over multivectors: Lance cannot maintain one.
    warns = index is not None and not query.is_multi
    tasks = _search_tasks(sources, newest, query, index if is_usable else None, k, warns=warns)
    results = run_all(tasks)
    exact = [candidates.hits for candidates in results if candidates.exact]
    estimated = Hits.joined([candidates.hits for candidates in results if not candidates.exact])
    refined = _with_exact_distances(sources, query, estimated.best(query.k, smallest=True))
    hits = Hits.joined([*exact, refined]).best(k, smallest=True)
    if filter is not None and not prefilter and len(hits):
        hits = hits.take(filter_hits(sources, hits, filter))
    return hits


def _search_tasks(
    sources: ReadSources,
    newest: NewestRows,
    query: VectorQuery,
    index: IndexDescription | None,
    k: int,
    *,
    warns: bool,
) -> list[Callable[[], Candidates]]:
    """Build the searches that together cover all sources.

    Parameters
    ----------
    index : IndexDescription or None
        The base table's index, if the query can use it.
    warns : bool
        Whether to warn about generations without an index.
    """
    base = sources.base
    gap = find_gap(sources, index) if index is not None else None
    bridges, rest = unindexed_rows(sources, newest, gap)
    tasks: list[Callable[[], Candidates]] = []
    stored = []
    if base.dataset.fragment_ids():
        tasks.append(partial(base_candidates, base, newest, index, query, covered=gap is not None))
    for part in (*unmerged_rows(sources, newest), *bridges):
        source = part.source
        if not source.is_flushed:
            tasks.append(partial(memtable_candidates, part, base, query))
            continue
        expected = warns and part.number != BASE
        stored.append(
            StoredRows(
                part,
                source.dataset.count_rows(),
                partial(read_vectors, source, query.column),
                partial(
                    generation_candidates,
                    part,
                    query,
                    preferred=() if index is None else (index.name,),
                    expects_index=expected,
                ),
            )
        )
    if gap is not None and rest is not None:
        stored.append(
            StoredRows(
                rest,
                len(gap.rest),
                partial(read_unindexed_vectors, base, gap, query.column),
                partial(unindexed_candidates, base, rest, gap, query),
            )
        )
    partitions = None if index is None or query.filter else index_partitions(base, index, query)
    layouts: list[Layout | None] = [None] * len(stored)
    if partitions is not None:
        layouts = cached_layouts(stored, query.column, partitions)
        warm = [(rows.live, layout) for rows, layout in zip(stored, layouts, strict=True) if layout]
        if warm:
            tasks.append(partial(nearest_in_memory, warm, query, partitions, k=k))
    tasks += [rows.search for rows, layout in zip(stored, layouts, strict=True) if layout is None]
    return tasks


def _with_exact_distances(sources: ReadSources, query: VectorQuery, hits: Hits) -> Hits:
    """Replace the estimated distances of hits by exact ones."""
    numbers = np.unique(hits.source).tolist()
    positions = [np.flatnonzero(hits.source == number) for number in numbers]
    tasks = [
        partial(_exact_distances, sources, number, hits.rows[at], query)
        for number, at in zip(numbers, positions, strict=True)
    ]
    values = hits.values.copy()
    for at, distances in zip(positions, run_all(tasks), strict=True):
        values[at] = distances
    return Hits(hits.source, hits.rows, values)


def _exact_distances(
    sources: ReadSources, number: int, rows: RowIds, query: VectorQuery
) -> npt.NDArray[np.float64]:
    dataset = sources.base.dataset if number == BASE else sources.generations[number].dataset
    read = dataset._take_rows(rows.tolist(), columns=[query.column])
    near = rank_vectors(select_vectors(read, query.column), query, k=len(rows))
    distances = np.full(len(rows), np.inf)
    distances[near.rows] = near.distances
    return distances
