"""Searches whose results are rows: nearest vectors, best texts, and both together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy.typing as npt
import pyarrow as pa

from memwal.errors import MemWalError
from memwal.reader.hits import fetch
from memwal.reader.newest import NewestRows
from memwal.reader.scan import output_schema
from memwal.reader.sources import ReadSources
from memwal.reader.vector_search import nearest
from memwal.table_index.base_table import translate_lance_error

DISTANCE = "_distance"


def search(
    sources: ReadSources,
    newest: NewestRows,
    vector: npt.ArrayLike | pa.Array,
    *,
    column: str | None = None,
    k: int = 10,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
    metric: str | None = None,
    nprobes: int | None = None,
    refine_factor: int | None = None,
    ef: int | None = None,
    prefilter: bool = True,
) -> pa.Table:
    """Rows with the nearest vectors; see :func:`memwal.reader.vector_search.nearest`.

    Returns
    -------
    pyarrow.Table
        The columns and ``_distance``, nearest first.
    """
    schema = output_schema(sources.base, columns)
    with _translated(sources, "searching"):
        hits = nearest(
            sources,
            newest,
            vector,
            column=column,
            k=k,
            filter=filter,
            metric=metric,
            nprobes=nprobes,
            refine_factor=refine_factor,
            ef=ef,
            prefilter=prefilter,
        )
        return fetch(sources, hits, schema, [(DISTANCE, hits.values)])


@contextmanager
def _translated(sources: ReadSources, doing: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, MemWalError):
            raise
        raise translate_lance_error(error, f"{doing} {sources.base.location}") from error
