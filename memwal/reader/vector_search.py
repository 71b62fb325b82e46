"""Nearest vectors over the base table and everything that is not in it yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.reader.hits import BASE, Hits, matching
from memwal.reader.newest import NewestRows
from memwal.reader.parallel import run_all
from memwal.reader.row_set import RowIds
from memwal.reader.sources import ReadSources
from memwal.reader.vector_candidates import (
    Candidates,
    base_searches,
    choose_index,
    generation_candidates,
    index_metric,
    nearest_of,
)
from memwal.reader.vector_query import VectorQuery, known_metric, query_vector, vector_column

_REFINE = 2


def nearest(
    sources: ReadSources,
    newest: NewestRows,
    vector: npt.ArrayLike | pa.Array,
    *,
    column: str | None = None,
    k: int = 10,
    filter: str | None = None,
    metric: str | None = None,
    nprobes: int | None = None,
    refine_factor: int | None = None,
    ef: int | None = None,
    prefilter: bool = True,
) -> Hits:
    """Find the rows with the nearest vectors (spec: LSM Tree Merging Read, Indexed Read Plan).

    Every source is searched through its own index and gives as many candidates as are asked for,
    after all rows were dropped that a newer source replaced. The best candidates of all sources
    are ranked again by their vectors where an index had only estimated how near they are, so that
    distances are exact and those of different sources can be compared.

    Parameters
    ----------
    sources, newest
        See :func:`memwal.reader.scan.collect_newest`.
    vector : array of numbers, shape (dimension,)
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
    refine_factor : int, default 2
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
    factor = _REFINE if refine_factor is None else refine_factor
    if factor < 1:
        raise InvalidInputError(f"refine_factor is {factor}; it is at least 1")
    base = sources.base
    column = column or vector_column(base)
    choice = choose_index(base.dataset, column, preferred=base.details.maintained_indexes)
    index = choice.index
    query = VectorQuery(
        column=column,
        vector=query_vector(base, column, vector),
        k=k * factor,
        metric=known_metric(metric or index_metric(index)),
        options={
            name: value for name, value in (("nprobes", nprobes), ("ef", ef)) if value is not None
        },
        filter=filter if prefilter else None,
    )
    tasks: list[Callable[[], Candidates]] = [
        lambda position=position: generation_candidates(  # type: ignore[misc]
            sources, newest, position, query, like=index
        )
        for position in range(len(sources.generations))
    ]
    tasks += base_searches(sources, newest, choice, query)
    hits = _ranked_again(sources, query, run_all(tasks)).best(k, smallest=True)
    if filter is not None and not prefilter and len(hits):
        hits = hits.take(matching(sources, hits, filter))
    return hits


def _ranked_again(
    sources: ReadSources, query: VectorQuery, candidates: Sequence[Candidates]
) -> Hits:
    """The best candidates with exact distances."""
    hits = Hits.joined([found.hits for found in candidates])
    exact = np.repeat(
        np.array([found.exact for found in candidates], np.bool_),
        [len(found.hits) for found in candidates],
    )
    chosen = hits.order(query.k, smallest=True)
    hits, exact = hits.take(chosen), exact[chosen]
    numbers = np.unique(hits.source[~exact])
    mine = [np.flatnonzero((hits.source == number) & ~exact) for number in numbers]
    values = hits.values.copy()
    for at, distances in zip(
        mine,
        run_all(
            [
                lambda number=number, at=at: _distances(  # type: ignore[misc]
                    sources, int(number), hits.rows[at], query
                )
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
    near = nearest_of(found, query, k=len(rows))
    distances = np.full(len(rows), np.inf)
    distances[near.rows] = near.distances
    return distances
