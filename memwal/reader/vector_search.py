"""Nearest vectors over the base table and everything that is not in it yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.memtable.row_runs import RowView
from memwal.memtable.unflushed import UnflushedRows
from memwal.memtable.vector_rows import Neighbours, nearest_rows
from memwal.reader.base_indexes import Bridge, Gap, find_gap, find_index
from memwal.reader.hits import BASE, Hits, matching
from memwal.reader.newest import NewestRows
from memwal.reader.parallel import run_all
from memwal.reader.row_set import RowIds, contains, encode_row_set
from memwal.reader.sources import GenerationSource, ReadSources
from memwal.reader.warn_once import warn_once
from memwal.region.newest import key_column
from memwal.table_index.base_table import BaseTable

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription

logger = logging.getLogger(__name__)

_FLAT_METRIC = "l2"
_METRICS = {"l2": "l2", "euclidean": "l2", "cosine": "cosine", "dot": "dot", "hamming": "hamming"}
_REFINE = 2
# So many times the rows wanted are asked for where some may be stale, and so many times more in
# each further round.
_SPARE = 2
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """What to search for.

    Attributes
    ----------
    column : str
    vector : array of numbers
    k : int
        Candidates wanted of each source.
    metric : str
    options : mapping of str to Any
        For Lance: ``nprobes``, ``ef``.
    filter : str or None
        Applied before ranking.
    """

    column: str
    vector: Any
    k: int
    metric: str
    options: dict[str, Any]
    filter: str | None


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Rows of one source, and whether their distances are exact."""

    hits: Hits
    exact: bool


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
    column = column or _vector_column(base)
    index = find_index(base.dataset.describe_indices(), column, is_vector_index)
    query = VectorQuery(
        column=column,
        vector=_vector(base, column, vector),
        k=k * factor,
        metric=_known_metric(metric or _metric(index)),
        options={
            name: value for name, value in (("nprobes", nprobes), ("ef", ef)) if value is not None
        },
        filter=filter if prefilter else None,
    )
    tasks: list[Callable[[], _Candidates]] = [
        lambda position=position: _generation_hits(  # type: ignore[misc]
            sources, newest, position, query, expects_index=index is not None
        )
        for position in range(len(sources.generations))
    ]
    tasks += _base_tasks(sources, newest, index, query)
    hits = _ranked_again(sources, query, run_all(tasks)).best(k, smallest=True)
    if filter is not None and not prefilter and len(hits):
        hits = hits.take(matching(sources, hits, filter))
    return hits


def _ranked_again(
    sources: ReadSources, query: VectorQuery, candidates: Sequence[_Candidates]
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
    near = _nearest_of(found, query, k=len(rows))
    distances = np.full(len(rows), np.inf)
    distances[near.rows] = near.distances
    return distances


def _nearest_of(
    rows: pa.Table, query: VectorQuery, *, k: int, allowed: npt.NDArray[np.bool_] | None = None
) -> Neighbours:
    """The nearest of rows that were read, whose first column has the vectors."""
    vectors = rows.select([0]).rename_columns(["vector"])
    view = RowView.of(vectors.schema, vectors.to_batches())
    return nearest_rows(view, "vector", query.vector, k=k, metric=query.metric, allowed=allowed)


def is_vector_index(kind: str) -> bool:
    """Whether pylance calls a vector index so."""
    return kind.upper().startswith("IVF_")


def _known_metric(name: str) -> str:
    metric = _METRICS.get(name.lower())
    if metric is None:
        raise InvalidInputError(f"there is no metric {name}; choose one of {', '.join(_METRICS)}")
    return metric


def _metric(index: IndexDescription | None) -> str:
    return str(index.details.get("metric_type", _FLAT_METRIC)) if index else _FLAT_METRIC


def _is_exact(index: IndexDescription | None) -> bool:
    """Whether distances are those of the vectors, and not of what an index made of them."""
    return index is None or index.index_type.upper().endswith("FLAT")


def _generation_hits(
    sources: ReadSources,
    newest: NewestRows,
    position: int,
    query: VectorQuery,
    *,
    expects_index: bool,
) -> _Candidates:
    source = sources.generations[position]
    live = newest.live_addresses(position)
    if not len(live):
        return _Candidates(Hits.joined([]), exact=True)
    if source.unflushed is not None:
        rows, distances = _in_memtable(source.unflushed, source.dataset, live, query)
        return _Candidates(Hits.of(position, rows, distances), exact=True)
    index = find_index(source.dataset.describe_indices(), query.column, is_vector_index)
    if index is None and expects_index:
        _warn(source, query.column)
    rows, distances = _in_dataset(source.dataset, query, k=query.k, allowed=live)
    return _Candidates(Hits.of(position, rows, distances), exact=_is_exact(index))


def _in_memtable(
    unflushed: UnflushedRows, dataset: lance.LanceDataset, live: RowIds, query: VectorQuery
) -> tuple[RowIds, npt.NDArray[Any]]:
    view = unflushed.snapshot.view
    allowed = np.zeros(view.rows, np.bool_)
    allowed[live.astype(np.int64)] = True
    if query.filter is not None:
        passing = np.zeros(view.rows, np.bool_)
        found = dataset.scanner(columns=[], filter=query.filter, with_row_id=True)
        passing[found.to_table().column("_rowid").to_numpy().astype(np.int64)] = True
        allowed &= passing
    near = nearest_rows(
        view, query.column, query.vector, k=query.k, metric=query.metric, allowed=allowed
    )
    return near.rows.astype(np.uint64), near.distances


def _in_dataset(
    dataset: lance.LanceDataset,
    query: VectorQuery,
    *,
    k: int,
    allowed: RowIds | None = None,
    blocked: RowIds | None = None,
    fast: bool = False,
) -> tuple[RowIds, npt.NDArray[Any]]:
    options: dict[str, Any] = {}
    if allowed is not None:
        options["row_addr_allowlist"] = encode_row_set(allowed)
    if blocked is not None and len(blocked):
        options["row_addr_blocklist"] = encode_row_set(blocked)
    found = dataset.scanner(
        columns=["_distance"],
        nearest={
            "column": query.column,
            "q": query.vector,
            "k": k,
            "metric": query.metric,
            **query.options,
        },
        filter=query.filter,
        prefilter=True,
        with_row_id=True,
        fast_search=fast,
        disable_scoring_autoprojection=True,
        **options,
    ).to_table()
    return found.column("_rowid").to_numpy(), found.column("_distance").to_numpy()


def _base_tasks(
    sources: ReadSources,
    newest: NewestRows,
    index: IndexDescription | None,
    query: VectorQuery,
) -> list[Callable[[], _Candidates]]:
    base = sources.base
    if not base.dataset.fragment_ids():
        return []
    gap = None
    if index is not None and query.metric == _known_metric(_metric(index)):
        gap = find_gap(sources, index)
    bridged = gap is not None and bool(gap.bridges)

    def in_base() -> _Candidates:
        def search(k: int, blocked: RowIds) -> tuple[RowIds, npt.NDArray[Any]]:
            return _in_dataset(base.dataset, query, k=k, blocked=blocked, fast=bridged)

        hits = _unreplaced(newest, query.k, search, lambda rows: _keys_of(base, rows))
        return _Candidates(hits, exact=_is_exact(index))

    if gap is None or not bridged:
        return [in_base]
    tasks: list[Callable[[], _Candidates]] = [in_base]
    tasks += [
        lambda bridge=bridge: _bridge_hits(newest, bridge, query)  # type: ignore[misc]
        for bridge in gap.bridges
    ]
    if len(gap.rest):
        tasks.append(lambda: _rest_hits(base, newest, gap, query))
    return tasks


def _unreplaced(
    newest: NewestRows,
    k: int,
    search: Callable[[int, RowIds], tuple[RowIds, npt.NDArray[Any]]],
    keys_of: Callable[[RowIds], pa.Array],
) -> Hits:
    """Search until ``k`` rows are found that no generation replaced, or there are no more.

    Which rows were replaced is only asked of those that are found: they are blocked, and the next
    round asks for more.
    """
    blocked = np.empty(0, np.uint64)
    # Where nothing can be stale, no more than what is wanted; else enough for one round mostly.
    asked = _SPARE * k if len(newest.keys) else k
    while True:
        rows, distances = search(asked, blocked)
        if not len(newest.keys) or not len(rows):
            return Hits.of(BASE, rows, distances)
        replaced = _replaced(newest, keys_of(rows))
        left = np.flatnonzero(~replaced)
        if len(left) >= k or len(rows) < asked:
            return Hits.of(BASE, rows[left[:k]], distances[left[:k]])
        blocked = np.concatenate([blocked, rows[replaced]])
        asked *= _GROWTH


def _replaced(newest: NewestRows, keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Which keys a generation has. Few are asked for, so that those are what is hashed."""
    hit = pc.index_in(newest.keys, value_set=keys).drop_null().to_numpy()
    replaced = np.zeros(len(keys), np.bool_)
    replaced[hit] = True
    return replaced


def _keys_of(base: BaseTable, rows: RowIds) -> pa.Array:
    found = base.dataset._take_rows(rows.tolist(), columns=list(base.primary_key))
    return key_column(found, base.primary_key)


def _bridge_hits(newest: NewestRows, bridge: Bridge, query: VectorQuery) -> _Candidates:
    index = find_index(bridge.source.dataset.describe_indices(), query.column, is_vector_index)

    def search(k: int, blocked: RowIds) -> tuple[RowIds, npt.NDArray[Any]]:
        allowed = bridge.addresses
        if len(blocked):
            allowed = allowed[~np.isin(bridge.rows, blocked)]
        found, distances = _in_dataset(bridge.source.dataset, query, k=k, allowed=allowed)
        return bridge.rows[np.searchsorted(bridge.addresses, found)], distances

    order = np.argsort(bridge.rows)

    def keys_of(rows: RowIds) -> pa.Array:
        return bridge.keys.take(pa.array(order[np.searchsorted(bridge.rows, rows, sorter=order)]))

    hits = _unreplaced(newest, query.k, search, keys_of)
    return _Candidates(hits, exact=_is_exact(index))


def _rest_hits(base: BaseTable, newest: NewestRows, gap: Gap, query: VectorQuery) -> _Candidates:
    """Rows that came into the base table some other way, looked at one by one."""
    rows = base.dataset.scanner(
        columns=[query.column],
        filter=query.filter,
        with_row_id=True,
        fragments=[base.dataset.get_fragment(fragment) for fragment in gap.fragments],
    ).to_table()
    replaced = pc.is_in(gap.rest_keys, value_set=newest.keys).to_numpy(zero_copy_only=False)
    row_ids = rows.column("_rowid").to_numpy()
    allowed = contains(gap.rest[~replaced], row_ids)
    near = _nearest_of(rows, query, k=query.k, allowed=allowed)
    return _Candidates(Hits.of(BASE, row_ids[near.rows], near.distances), exact=True)


def _warn(source: GenerationSource, column: str) -> None:
    """Tell of a flushed generation that has to be searched row by row."""
    if source.identity is None:
        return
    warn_once(
        logger,
        "generation %s has no vector index on %s: its rows are searched one by one, and Lance's "
        "own search does not see them; merge it, or name the index among the maintained ones",
        source.identity,
        column,
    )


def _vector_column(base: BaseTable) -> str:
    found: list[str] = [field.name for field in base.schema if _is_vector(field.type)]
    if len(found) != 1:
        raise InvalidInputError(
            f"the table has {len(found)} columns of vectors"
            f"{': ' + ', '.join(found) if found else ''}; name one as column"
        )
    return found[0]


def _is_vector(kind: pa.DataType) -> bool:
    return bool(
        pt.is_fixed_size_list(kind)
        and (pt.is_floating(kind.value_type) or kind.value_type == pa.uint8())
    )


def _column_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    if path in schema.names:
        return schema.field(path).type
    found: pa.DataType = pa.struct(list(schema))
    for name in path.split("."):
        if not pt.is_struct(found) or found.get_field_index(name) < 0:
            return None
        found = found.field(name).type
    return found


def _vector(base: BaseTable, column: str, vector: npt.ArrayLike | pa.Array) -> Any:
    kind = _column_type(base.schema, column)
    if kind is None or not _is_vector(kind):
        raise InvalidInputError(
            f"column {column} is {kind if kind is not None else 'not in the table'}; vectors are "
            "fixed-size lists of float16, float32, float64 or uint8"
        )
    values: Any = vector
    if isinstance(vector, pa.Array | pa.ChunkedArray):
        values = vector.to_numpy(zero_copy_only=False)
    try:
        numbers = np.asarray(values).astype(kind.value_type.to_pandas_dtype())
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"the query is not a vector of numbers: {error}") from error
    if numbers.shape != (kind.list_size,):
        raise InvalidInputError(
            f"the query has shape {numbers.shape}; column {column} has vectors of {kind.list_size}"
        )
    if numbers.dtype != np.uint8 and not np.isfinite(numbers).all():
        raise InvalidInputError("the query holds numbers that are not finite")
    return numbers
