"""Candidates for the nearest vectors, source by source.

Includes late interaction: distances of rows that have several vectors each.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.lsm.indexes.kinds import kind_of
from memwal.lsm.memtable.rows import RowView
from memwal.lsm.memtable.vector_index import Neighbours, nearest_rows
from memwal.reader.base_indexes import Gap, find_index
from memwal.reader.hits import BASE, Hits
from memwal.reader.latest import NewestRows
from memwal.reader.merged_scan import passing_rows
from memwal.reader.row_set import RowIds, contains, encode_row_set
from memwal.reader.sources.generation import GenerationSource
from memwal.region.rows import key_column
from memwal.search.vector.query import VectorQuery, known_metric
from memwal.search.vector.sources import GenerationPart, Part
from memwal.util.log import warn_once

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription


def nearest_multivectors(
    vectors: pa.ChunkedArray,
    query: npt.NDArray[Any],
    *,
    k: int,
    metric: str,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Neighbours:
    """Find the rows that are nearest, with the distances that Lance computes.

    A row is as far as its nearest vector is from each vector of the query, added up. Rows without
    vectors, or with vectors that have no distance, are left out.

    Parameters
    ----------
    vectors : pyarrow.ChunkedArray
        Lists of fixed-size lists of floats.
    query : array of numbers, shape (vectors, dimension)
    k : int
        How many rows at most.
    metric : {"l2", "cosine", "dot"}
    allowed : numpy.ndarray of bool, shape (rows,), optional
        Rows that may be returned; all by default.
    """
    lengths = pc.fill_null(pc.list_value_length(vectors), 0).to_numpy().astype(np.int64)
    rows = np.flatnonzero(lengths if allowed is None else lengths * allowed)
    distances = np.full(len(vectors), np.nan, np.float32)
    if len(rows):
        wanted = vectors.take(pa.array(rows))
        inner = pc.list_flatten(wanted)
        values = np.asarray(pc.list_flatten(inner)).reshape(-1, query.shape[1])
        values = values.astype(np.result_type(values, np.float32), copy=False)
        starts = np.cumsum(lengths[rows]) - lengths[rows]
        summed = np.zeros(len(rows))
        for one in query.astype(values.dtype):
            summed += np.minimum.reduceat(_distances(values, one, metric), starts)
        distances[rows] = summed
    near = np.argsort(distances, kind="stable")[:k]
    near = near[np.isfinite(distances[near])]
    return Neighbours(near, distances[near])


def _distances(vectors: npt.NDArray[Any], query: npt.NDArray[Any], metric: str) -> Any:
    with np.errstate(all="ignore"):
        if metric == "l2":
            apart = vectors - query
            return np.vecdot(apart, apart)
        products = vectors @ query
        if metric == "cosine":
            products /= np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        return 1 - products


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
    vectors: pa.ChunkedArray,
    query: VectorQuery,
    *,
    k: int,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Neighbours:
    """The nearest of vectors that were read."""
    if query.is_multi:
        return nearest_multivectors(
            vectors, query.vector, k=k, metric=query.metric, allowed=allowed
        )
    rows = pa.table([vectors], names=["vector"])
    view = RowView.of(rows.schema, rows.to_batches())
    return nearest_rows(view, "vector", query.vector, k=k, metric=query.metric, allowed=allowed)


def vectors_in(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """The vectors in rows that were read, which Lance leaves in the structs that hold them."""
    if column in rows.column_names:
        return rows.column(column)
    name, *fields = column.split(".")
    return pc.struct_field(rows.column(name), fields)


def index_metric(index: IndexDescription | None) -> str:
    """The metric of an index, or the one that is taken where there is none."""
    return str(index.details.get("metric_type", _FLAT_METRIC)) if index else _FLAT_METRIC


def _is_exact(index: IndexDescription | None, query: VectorQuery) -> bool:
    """Whether distances are those of the vectors, and not of what an index made of them."""
    # Of a multivector an index finds some vectors, and guesses how near the others are.
    return index is None or (kind_of(index).exact_distances and not query.is_multi)


def memtable_candidates(part: GenerationPart, base: BaseTable, query: VectorQuery) -> Candidates:
    """The nearest rows of a MemTable."""
    source = part.source
    if source.unflushed is None:
        return generation_candidates(part, query)
    view = source.unflushed.snapshot.view
    allowed = np.zeros(view.rows, np.bool_)
    allowed[part.addresses.astype(np.int64)] = True
    if query.filter is not None:
        allowed &= passing_rows(source, query.filter, base)
    near = nearest_of(view.column(query.column), query, k=query.k, allowed=allowed)
    return Candidates(Hits.of(part.number, near.rows.astype(np.uint64), near.distances), exact=True)


def generation_candidates(
    part: GenerationPart,
    query: VectorQuery,
    *,
    preferred: Sequence[str] = (),
    expects_index: bool = False,
) -> Candidates:
    """The nearest rows of a generation, through its own index.

    Parameters
    ----------
    preferred : sequence of str
        Which index to take if it has several.
    expects_index : bool, default False
        Whether to warn when it has none.
    """
    source = part.source
    index = find_index(
        source.dataset.describe_indices(),
        query.column,
        lambda kind: kind.is_vector,
        preferred=preferred,
    )
    if index is None and expects_index:
        _warn(source, query.column)
    found, distances = _in_dataset(
        source.dataset, query, k=query.k, index=index, allowed=part.encoded()
    )
    rows = part.rows[np.searchsorted(part.addresses, found)]
    return Candidates(Hits.of(part.number, rows, distances), exact=_is_exact(index, query))


def read_vectors(source: GenerationSource, column: str) -> pa.Table:
    """Vectors and ``_rowid`` of a generation."""
    return source.dataset.scanner(columns=[column], with_row_id=True).to_table()


def rest_candidates(base: BaseTable, part: Part, gap: Gap, query: VectorQuery) -> Candidates:
    """The nearest of the rows that came into the base table past the log, looked at one by one."""
    rows = read_rest(base, gap, query.column, filter=query.filter)
    row_ids = rows.column("_rowid").to_numpy()
    allowed = contains(part.addresses, row_ids)
    near = nearest_of(vectors_in(rows, query.column), query, k=query.k, allowed=allowed)
    return Candidates(Hits.of(BASE, row_ids[near.rows], near.distances), exact=True)


def read_rest(base: BaseTable, gap: Gap, column: str, *, filter: str | None = None) -> pa.Table:
    """Vectors and ``_rowid`` of the rows that neither an index nor a generation answers for."""
    read = base.dataset.scanner(
        columns=[column],
        filter=filter,
        with_row_id=True,
        fragments=[base.dataset.get_fragment(fragment) for fragment in gap.fragments],
    ).to_table()
    return read.filter(pa.array(contains(gap.rest, read.column("_rowid").to_numpy())))


def base_candidates(
    base: BaseTable,
    newest: NewestRows,
    index: IndexDescription | None,
    query: VectorQuery,
    *,
    covered: bool,
) -> Candidates:
    """The nearest rows of the base table that no generation replaced, with exact distances.

    Which rows were replaced is only asked of those that are found: they are blocked, and the
    search goes on with more, until there are enough or no more. Their keys and vectors are read
    together.

    Parameters
    ----------
    index : IndexDescription or None
        The base table's index on the column.
    covered : bool
        Whether only rows that the index covers are looked for.
    """
    keys = list(base.primary_key) if len(newest.keys) else []
    columns = keys if _is_exact(index, query) else [*keys, query.column]
    blocked = np.empty(0, np.uint64)
    asked = query.k * _SPARE if keys else query.k
    while True:
        rows, distances = _in_dataset(
            base.dataset, query, k=asked, index=index, blocked=blocked, covered=covered
        )
        if not len(rows) or not columns:
            break
        read = base.dataset._take_rows(rows.tolist(), columns=columns)
        replaced = np.zeros(len(rows), np.bool_)
        if keys:
            replaced = _replaced(newest, key_column(read, keys))
        left = np.flatnonzero(~replaced)[: query.k]
        if len(left) < query.k and len(rows) == asked:
            blocked = np.concatenate([blocked, rows[replaced]])
            asked *= _GROWTH
            continue
        rows, distances = rows[left], distances[left]
        if len(left) and not _is_exact(index, query):
            vectors = vectors_in(read, query.column).take(pa.array(left))
            near = nearest_of(vectors, query, k=len(left))
            rows, distances = rows[near.rows], near.distances
        break
    return Candidates(Hits.of(BASE, rows, distances), exact=True)


def _in_dataset(
    dataset: lance.LanceDataset,
    query: VectorQuery,
    *,
    k: int,
    index: IndexDescription | None,
    allowed: bytes | None = None,
    blocked: RowIds | None = None,
    covered: bool = False,
) -> tuple[RowIds, npt.NDArray[Any]]:
    options: dict[str, Any] = {}
    nearest: dict[str, Any] = {
        "column": query.column,
        "q": query.vector,
        "k": k,
        "metric": query.metric,
        **query.options,
    }
    if allowed is not None:
        options["row_addr_allowlist"] = allowed
    if blocked is not None and len(blocked):
        options["row_addr_blocklist"] = encode_row_set(blocked)
    if index is not None and query.metric == known_metric(index_metric(index)):
        # Of several, Lance takes the one that stands first in the manifest, which changes with
        # every build. It looks at no row outside of the segments that it is told.
        segments = [segment.uuid for segment in index.segments if segment.fragment_ids]
        if segments:
            options["index_segments"] = segments
        else:
            # There in name only: Lance trains none from so few rows.
            nearest["use_index"] = False
    found = dataset.scanner(
        columns=["_distance"],
        nearest=nearest,
        filter=query.filter,
        prefilter=True,
        with_row_id=True,
        fast_search=covered,
        # Beside it, Lance leaves out rows that an index of the filter does not cover, too.
        use_scalar_index=not covered,
        disable_scoring_autoprojection=True,
        **options,
    ).to_table()
    return found.column("_rowid").to_numpy(), found.column("_distance").to_numpy()


def _replaced(newest: NewestRows, keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Which keys a generation has. Few are asked for, so that those are what is hashed."""
    hit = pc.index_in(newest.keys, value_set=keys).drop_null().to_numpy()
    replaced = np.zeros(len(keys), np.bool_)
    replaced[hit] = True
    return replaced


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
