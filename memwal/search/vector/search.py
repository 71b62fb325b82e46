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
from memwal.reader.sources.collect import ReadSources
from memwal.search.vector.candidates import (
    Candidates,
    base_candidates,
    generation_candidates,
    index_metric,
    memtable_candidates,
    nearest_of,
    read_rest,
    read_vectors,
    rest_candidates,
    vectors_in,
)
from memwal.search.vector.in_memory import Stored, layouts_of, nearest_in_memory, partitions_of
from memwal.search.vector.query import (
    VectorOptions,
    VectorQuery,
    known_metric,
    query_vector,
    vector_column,
)
from memwal.search.vector.sources import uncovered_parts, unmerged_parts
from memwal.util.concurrency import run_all

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

_REFINE = 2
# An index finds some vectors of a row with several, and guesses how near the others are.
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

    Every source is searched through its own index and gives as many candidates as are asked for,
    after all rows were dropped that a newer source replaced. The best candidates of all sources
    are ranked again by their vectors where an index had only estimated how near they are, so that
    distances are exact and those of different sources can be compared.

    Parameters
    ----------
    sources, newest
        See :func:`memwal.reader.scan.open_newest`.
    vector : array of numbers, shape (dimension,) or (vectors, dimension)
        Several vectors for a column of multivectors, whose rows are as far as their nearest vector
        is from each of them, added up.
    column : str, optional
        May be left out when the table has one column of vectors.
    k : int, default 10
    filter : str, optional
        SQL predicate over any columns.
    metric : str, optional
        That of the base table's index, or ``l2`` when there is none. Another one is answered
        without the index.
    nprobes : int, optional
        Partitions to look at in each source; Lance decides by default.
    refine_factor : int, default 2, of multivectors 10
        How many candidates per row that is asked for are ranked again by their vectors. More
        finds more of the nearest rows, and costs reading so many more vectors.
    ef : int, optional
        Candidates that a graph index keeps.
    prefilter : bool, default True
        False filters the ``k`` nearest rows, of which fewer are then left.

    Returns
    -------
    Hits
        Nearest first, with squared distances as Lance has them.

    Raises
    ------
    InvalidInputError
        An argument does not fit the table.
    """
    if k < 1:
        raise InvalidInputError(f"k is {k}; ask for at least one row")
    base = sources.base
    column = column or vector_column(base)
    index = find_index(
        base.dataset.describe_indices(),
        column,
        lambda kind: kind.is_vector,
        preferred=base.details.maintained_indexes,
    )
    asked = query_vector(base, column, vector)
    factor = options.get("refine_factor")
    if factor is None:
        factor = _REFINE if asked.ndim == 1 else _REFINE_MULTI
    if factor < 1:
        raise InvalidInputError(f"refine_factor is {factor}; it is at least 1")
    query = VectorQuery(
        column=column,
        vector=asked,
        k=k * factor,
        metric=known_metric(options.get("metric") or index_metric(index)),
        options={
            name: value for name in ("nprobes", "ef") if (value := options.get(name)) is not None
        },
        filter=filter if prefilter else None,
    )
    answers = index is not None and query.metric == known_metric(index_metric(index))
    # Lance has no way to maintain an index over multivectors, so that nothing is amiss.
    warns = index is not None and not query.is_multi
    tasks = _tasks(sources, newest, query, index if answers else None, k, warns=warns)
    found = run_all(tasks)
    exact = [candidates.hits for candidates in found if candidates.exact]
    estimated = Hits.joined([candidates.hits for candidates in found if not candidates.exact])
    measured = _measured(sources, query, estimated.best(query.k, smallest=True))
    hits = Hits.joined([*exact, measured]).best(k, smallest=True)
    if filter is not None and not prefilter and len(hits):
        hits = hits.take(filter_hits(sources, hits, filter))
    return hits


def _tasks(
    sources: ReadSources,
    newest: NewestRows,
    query: VectorQuery,
    index: IndexDescription | None,
    k: int,
    *,
    warns: bool,
) -> list[Callable[[], Candidates]]:
    """Searches that together find the nearest rows of all sources.

    Parameters
    ----------
    index : IndexDescription or None
        The base table's index if it answers the query.
    warns : bool
        Whether to warn of generations without an index.
    """
    base = sources.base
    gap = find_gap(sources, index) if index is not None else None
    bridges, rest = uncovered_parts(sources, newest, gap)
    tasks: list[Callable[[], Candidates]] = []
    stored = []
    if base.dataset.fragment_ids():
        tasks.append(partial(base_candidates, base, newest, index, query, covered=gap is not None))
    for part in (*unmerged_parts(sources, newest), *bridges):
        source = part.source
        if not source.is_flushed:
            tasks.append(partial(memtable_candidates, part, base, query))
            continue
        expected = warns and part.number != BASE
        stored.append(
            Stored(
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
            Stored(
                rest,
                len(gap.rest),
                partial(read_rest, base, gap, query.column),
                partial(rest_candidates, base, rest, gap, query),
            )
        )
    named = None if index is None or query.filter else partitions_of(base, index, query)
    layouts = [None] * len(stored) if named is None else layouts_of(stored, query.column, named)
    warm = [(rows.part, layout) for rows, layout in zip(stored, layouts, strict=True) if layout]
    if named is not None and warm:
        tasks.append(partial(nearest_in_memory, warm, query, named.partitions, k=k))
    tasks += [rows.search for rows, layout in zip(stored, layouts, strict=True) if layout is None]
    return tasks


def _measured(sources: ReadSources, query: VectorQuery, hits: Hits) -> Hits:
    """Hits with the distances of their vectors."""
    numbers = np.unique(hits.source).tolist()
    mine = [np.flatnonzero(hits.source == number) for number in numbers]
    values = hits.values.copy()
    for at, distances in zip(
        mine,
        run_all(
            [
                partial(_distances, sources, number, hits.rows[at], query)
                for number, at in zip(numbers, mine, strict=True)
            ]
        ),
        strict=True,
    ):
        values[at] = distances
    return Hits(hits.source, hits.rows, values)


def _distances(
    sources: ReadSources, number: int, rows: RowIds, query: VectorQuery
) -> npt.NDArray[np.float64]:
    dataset = sources.base.dataset if number == BASE else sources.generations[number].dataset
    found = dataset._take_rows(rows.tolist(), columns=[query.column])
    near = nearest_of(vectors_in(found, query.column), query, k=len(rows))
    distances = np.full(len(rows), np.inf)
    distances[near.rows] = near.distances
    return distances
