"""Vector, full-text and hybrid search over the base table, generations and MemTables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table.snapshot import lance_errors
from memwal.errors import InvalidInputError
from memwal.reader.hits import Hits, fetch_rows
from memwal.reader.latest import NewestRows
from memwal.reader.predicate import parenthesize_filter, translate_filter_errors
from memwal.reader.scan import output_schema
from memwal.reader.sources.generation import ReadSources
from memwal.search.text.query import TextQuery
from memwal.search.text.search import best_texts
from memwal.search.vector.query import SearchOptions
from memwal.search.vector.search import nearest

DISTANCE = "_distance"
SCORE = "_score"
RELEVANCE = "_relevance_score"

_RANK_CONSTANT = 60
_DEFAULT_CANDIDATES = 50


def search(
    sources: ReadSources,
    newest: NewestRows,
    vector: npt.ArrayLike | pa.Array,
    *,
    column: str | None = None,
    prefilter: bool = True,
    **options: Unpack[SearchOptions],
) -> pa.Table:
    """Find the rows with the nearest vectors: the columns and ``_distance``, nearest first."""
    schema = output_schema(sources.base, options.get("columns"))
    options["filter"] = filter = parenthesize_filter(options.get("filter"))
    with _translate_errors(sources, filter):
        hits = nearest(sources, newest, vector, column=column, prefilter=prefilter, **options)
        return fetch_rows(sources, hits, schema, [(DISTANCE, hits.values)])


def search_text(
    sources: ReadSources,
    newest: NewestRows,
    query: str | TextQuery,
    *,
    column: str | Sequence[str] | None = None,
    k: int | None = 10,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Find the rows whose texts match best: the columns and ``_score``, best first."""
    schema = output_schema(sources.base, columns)
    filter = parenthesize_filter(filter)
    with _translate_errors(sources, filter):
        hits = best_texts(sources, newest, query, columns=column, k=k, filter=filter)
        return fetch_rows(sources, hits, schema, [(SCORE, hits.values)])


def search_hybrid(
    sources: ReadSources,
    newest: NewestRows,
    vector: npt.ArrayLike | pa.Array,
    query: str | TextQuery,
    *,
    vector_column: str | None = None,
    text_column: str | Sequence[str] | None = None,
    weight: float = 0.5,
    candidates: int | None = None,
    **options: Unpack[SearchOptions],
) -> pa.Table:
    """Find rows by vectors and texts together, ranked by reciprocal rank fusion.

    A row's relevance is ``weight / (60 + rank)`` among the nearest vectors plus ``(1 - weight) /
    (60 + rank)`` among the best texts, times two, ranks counted from 1: with the default weight
    this is plain reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009). ``candidates`` rows
    of each search are ranked, ``max(k, 50)`` by default.

    Returns the columns, ``_distance``, ``_score`` and ``_relevance_score``, most relevant first. A
    distance or a score is null where the search did not find the row.
    """
    if not 0 <= weight <= 1:
        raise InvalidInputError(f"weight is {weight}; it is a share from 0 to 1")
    k = options.get("k", 10)
    if k < 1:
        raise InvalidInputError(f"k is {k}; ask for at least one row")
    options["k"] = depth = max(k, _DEFAULT_CANDIDATES if candidates is None else candidates)
    schema = output_schema(sources.base, options.get("columns"))
    options["filter"] = filter = parenthesize_filter(options.get("filter"))
    with _translate_errors(sources, filter):
        near = nearest(sources, newest, vector, column=vector_column, **options)
        texts = best_texts(sources, newest, query, columns=text_column, k=depth, filter=filter)
        hits, extra = _fuse_by_rank(near, texts, weight)
        positions = hits.order(k, smallest=False)
        rows = fetch_rows(sources, hits.take(positions), schema, [])
    for name, values in (*extra, (RELEVANCE, hits.values)):
        chosen = values[positions].astype("float32")
        rows = rows.append_column(name, pa.array(chosen, from_pandas=True))
    return rows


@contextmanager
def _translate_errors(sources: ReadSources, filter: str | None) -> Iterator[None]:
    searching = lance_errors(f"searching {sources.base.location}")
    with searching, translate_filter_errors(filter, sources.base.schema):
        yield


def _fuse_by_rank(
    near: Hits, texts: Hits, weight: float
) -> tuple[Hits, list[tuple[str, npt.NDArray[np.float64]]]]:
    """Merge the rows of both searches: their relevance, and their distance and score or NaN."""
    both = Hits.joined([near, texts])
    pairs = np.rec.fromarrays([both.source, both.rows])
    _, first, which = np.unique(pairs, return_index=True, return_inverse=True)
    extra = []
    relevance = np.zeros(len(first))
    for name, part, start, share in (
        (DISTANCE, near, 0, weight),
        (SCORE, texts, len(near), 1 - weight),
    ):
        at = which[start : start + len(part)]
        values = np.full(len(first), np.nan)
        values[at] = part.values
        extra.append((name, values))
        relevance[at] += 2 * share / (_RANK_CONSTANT + 1 + np.arange(len(part)))
    return Hits(both.source[first], both.rows[first], relevance), extra
