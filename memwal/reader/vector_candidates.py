"""Candidates for the nearest vectors, source by source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.memtable.row_runs import RowView
from memwal.memtable.unflushed import UnflushedRows
from memwal.memtable.vector_rows import Neighbours, nearest_rows
from memwal.reader.base_indexes import Bridge, Gap, find_gap, find_index, find_indexes
from memwal.reader.generations import GenerationSource
from memwal.reader.hits import BASE, Hits
from memwal.reader.newest import NewestRows
from memwal.reader.row_set import RowIds, contains, encode_row_set
from memwal.reader.sources import ReadSources
from memwal.reader.vector_query import VectorQuery, known_metric
from memwal.reader.warn_once import warn_once
from memwal.region.newest import key_column
from memwal.table_index.base_table import BaseTable

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription

logger = logging.getLogger(__name__)

_FLAT_METRIC = "l2"
# So many times the rows wanted are asked for where some may be stale, and so many times more in
# each further round.
_SPARE = 2
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of one source, and whether their distances are exact."""

    hits: Hits
    exact: bool


def nearest_of(
    rows: pa.Table, query: VectorQuery, *, k: int, allowed: npt.NDArray[np.bool_] | None = None
) -> Neighbours:
    """The nearest of rows that were read, whose first column has the vectors."""
    vectors = rows.select([0]).rename_columns(["vector"])
    view = RowView.of(vectors.schema, vectors.to_batches())
    return nearest_rows(view, "vector", query.vector, k=k, metric=query.metric, allowed=allowed)


def is_vector_index(kind: str) -> bool:
    """Whether pylance calls a vector index so."""
    return kind.upper().startswith("IVF_")


def index_metric(index: IndexDescription | None) -> str:
    """The metric of an index, or the one that is taken where there is none."""
    return str(index.details.get("metric_type", _FLAT_METRIC)) if index else _FLAT_METRIC


@dataclass(frozen=True, slots=True)
class Choice:
    """The index that a column is searched through.

    Attributes
    ----------
    index : IndexDescription or None
    exact : bool
        Whether distances are those of the vectors, and not of what an index made of them.
    forced : bool
        Whether there are others, one of which Lance might take: the one that stands first in the
        manifest, which changes with every build.
    """

    index: IndexDescription | None
    exact: bool
    forced: bool

    def segments(self, query: VectorQuery) -> list[str] | None:
        """What Lance has to be told to look through, None when it finds it by itself."""
        if self.index is None or not self.forced:
            return None
        if query.metric != known_metric(index_metric(self.index)):
            return None
        return [segment.uuid for segment in self.index.segments]


def choose_index(
    dataset: lance.LanceDataset, column: str, *, preferred: Sequence[str] = ()
) -> Choice:
    """Choose among the vector indexes of a column: see :func:`find_index`."""
    descriptions = dataset.describe_indices()
    found = find_indexes(descriptions, column, is_vector_index)
    return Choice(
        index=find_index(found, column, is_vector_index, preferred=preferred),
        exact=all(index.index_type.upper().endswith("FLAT") for index in found),
        forced=len(found) > 1,
    )


def generation_candidates(
    sources: ReadSources,
    newest: NewestRows,
    position: int,
    query: VectorQuery,
    *,
    like: IndexDescription | None,
) -> Candidates:
    """The nearest living rows of one generation.

    Parameters
    ----------
    position : int
        Of the generation among those of the sources.
    like : IndexDescription or None
        The base table's index on the column. The generation's of the same name is taken; if a
        flushed generation has none at all, a warning says so.
    """
    source = sources.generations[position]
    live = newest.live_addresses(position)
    if not len(live):
        return Candidates(Hits.joined([]), exact=True)
    if source.unflushed is not None:
        rows, distances = _in_memtable(source.unflushed, source.dataset, live, query)
        return Candidates(Hits.of(position, rows, distances), exact=True)
    preferred = () if like is None else (like.name,)
    choice = choose_index(source.dataset, query.column, preferred=preferred)
    if choice.index is None and like is not None:
        _warn(source, query.column)
    rows, distances = _in_dataset(source.dataset, query, choice, k=query.k, allowed=live)
    return Candidates(Hits.of(position, rows, distances), exact=choice.exact)


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
    choice: Choice,
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
    segments = choice.segments(query)
    if segments is not None:
        # Then Lance looks at no row outside of them.
        options["index_segments"] = segments
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


def base_searches(
    sources: ReadSources,
    newest: NewestRows,
    choice: Choice,
    query: VectorQuery,
) -> list[Callable[[], Candidates]]:
    """Searches that together find the nearest rows of the base table that nothing replaced.

    Parameters
    ----------
    choice : Choice
        Among the base table's indexes on the column.
    """
    base, index = sources.base, choice.index
    if not base.dataset.fragment_ids():
        return []
    gap = None
    if index is not None and query.metric == known_metric(index_metric(index)):
        gap = find_gap(sources, index)
    bridged = gap is not None and (bool(gap.bridges) or choice.forced)

    def in_base() -> Candidates:
        def search(k: int, blocked: RowIds) -> tuple[RowIds, npt.NDArray[Any]]:
            return _in_dataset(base.dataset, query, choice, k=k, blocked=blocked, fast=bridged)

        hits = _unreplaced(newest, query.k, search, lambda rows: _keys_of(base, rows))
        return Candidates(hits, exact=choice.exact)

    if gap is None or not bridged:
        return [in_base]
    tasks: list[Callable[[], Candidates]] = [in_base]
    tasks += [
        lambda bridge=bridge: _bridge_hits(newest, bridge, query, index)  # type: ignore[misc]
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


def _bridge_hits(
    newest: NewestRows, bridge: Bridge, query: VectorQuery, like: IndexDescription | None
) -> Candidates:
    preferred = () if like is None else (like.name,)
    choice = choose_index(bridge.source.dataset, query.column, preferred=preferred)

    def search(k: int, blocked: RowIds) -> tuple[RowIds, npt.NDArray[Any]]:
        allowed = bridge.addresses
        if len(blocked):
            allowed = allowed[~np.isin(bridge.rows, blocked)]
        found, distances = _in_dataset(bridge.source.dataset, query, choice, k=k, allowed=allowed)
        return bridge.rows[np.searchsorted(bridge.addresses, found)], distances

    order = np.argsort(bridge.rows)

    def keys_of(rows: RowIds) -> pa.Array:
        return bridge.keys.take(pa.array(order[np.searchsorted(bridge.rows, rows, sorter=order)]))

    hits = _unreplaced(newest, query.k, search, keys_of)
    return Candidates(hits, exact=choice.exact)


def _rest_hits(base: BaseTable, newest: NewestRows, gap: Gap, query: VectorQuery) -> Candidates:
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
    near = nearest_of(rows, query, k=query.k, allowed=allowed)
    return Candidates(Hits.of(BASE, row_ids[near.rows], near.distances), exact=True)


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
