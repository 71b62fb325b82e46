"""Exact nearest-neighbour search over vectors in memory, such as those of a MemTable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.rows import Rows
from memwal.util.arrays import Mask

_Vectors = npt.NDArray[Any]
Distance = Callable[[_Vectors, _Vectors], _Vectors]

# Rows per block, so that intermediate results stay in the processor's cache.
_BLOCK_ROWS = 2048
# If at most one row of this many is allowed, the allowed rows of a block are gathered first.
_SPARSE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """Rows with their distances, nearest first; equal distances in log order."""

    rows: Rows  # shape (neighbours,): row numbers
    distances: npt.NDArray[np.float32]  # shape (neighbours,): what Lance calls ``_distance``


def nearest_rows(
    vectors: pa.ChunkedArray,
    query: _Vectors,
    *,
    k: int,
    metric: str,
    column: str,
    allowed: Mask | None = None,
) -> Neighbours:
    """Find the rows with the nearest vectors, with the distances that Lance computes.

    Compares all vectors, without an index: 100,000 vectors of 128 floats take 2 to 5 ms. Leaves out
    vectors that are null or have no distance (a NaN in them; a vector of zeros with ``cosine``), as
    Lance does.

    The vectors are fixed-size lists of float16, float32, float64, or uint8 for ``hamming``. The
    query, shape (dimension,), is converted to their type. The metric is ``l2`` (squared),
    ``cosine`` (1 - cosine), ``dot`` (1 - dot product), or ``hamming`` (number of different bits).
    ``allowed``, shape (rows,), are the rows that may be returned, by default all: the caller
    excludes superseded and deleted rows. Raises InvalidInputError, which names ``column``, if the
    metric does not fit the vectors.
    """
    dtype = np.dtype(vectors.type.value_type.to_pandas_dtype())
    distance = distance_of(metric, dtype, column)
    query = query.astype(np.float32 if dtype == np.float16 else dtype)
    distances = np.full(len(vectors), np.nan, np.float32)
    start = 0
    for chunk in filter(len, vectors.chunks):
        stop = start + len(chunk)
        mask = None if allowed is None else allowed[start:stop]
        if chunk.null_count:
            valid = chunk.is_valid().to_numpy(zero_copy_only=False)
            mask = valid if mask is None else mask & valid
        _measure(_vector_matrix(chunk, dtype), query, mask, distance, out=distances[start:stop])
        start = stop
    return _nearest(distances, k)


def _measure(
    vectors: _Vectors,
    query: _Vectors,
    mask: Mask | None,
    distance: Distance,
    *,
    out: npt.NDArray[np.float32],
) -> None:
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = vectors[start : start + _BLOCK_ROWS]
        part = out[start : start + _BLOCK_ROWS]
        if mask is None:
            part[:] = distance(block, query)
            continue
        within = mask[start : start + _BLOCK_ROWS]
        count = np.count_nonzero(within)
        if count * _SPARSE > len(block):
            np.copyto(part, distance(block, query), where=within, casting="same_kind")
        elif count:
            part[within] = distance(block[within], query)


def _nearest(distances: npt.NDArray[np.float32], k: int) -> Neighbours:
    k = min(k, int(np.count_nonzero(~np.isnan(distances))))
    if not k:
        return Neighbours(np.empty(0, np.int64), np.empty(0, np.float32))
    # NaN sorts last. All rows with the distance of the last one are candidates: log order decides.
    limit = np.partition(distances, k - 1)[k - 1]
    rows = np.flatnonzero(distances <= limit)
    rows = rows[np.argsort(distances[rows], kind="stable")[:k]]
    return Neighbours(rows, distances[rows])


def _l2(vectors: _Vectors, query: _Vectors) -> _Vectors:
    # Subtract first: norms and products would lose the precision of vectors that are close.
    with np.errstate(all="ignore"):
        apart = vectors - query
        squares: _Vectors = np.vecdot(apart, apart)
    return squares


def _dot(vectors: _Vectors, query: _Vectors) -> _Vectors:
    with np.errstate(all="ignore"):
        distances: _Vectors = 1 - _widened(vectors, query) @ query
    return distances


def _cosine(vectors: _Vectors, query: _Vectors) -> _Vectors:
    vectors = _widened(vectors, query)
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.vecdot(vectors, vectors)) * np.sqrt(np.vecdot(query, query))
        distances: _Vectors = 1 - (vectors @ query) / lengths
    return distances


def _hamming(vectors: _Vectors, query: _Vectors) -> _Vectors:
    distances: _Vectors = np.bitwise_count(vectors ^ query).sum(axis=1, dtype=np.float32)
    return distances


_METRICS: Final[dict[str, Distance]] = {
    "l2": _l2,
    "cosine": _cosine,
    "dot": _dot,
    "hamming": _hamming,
}


def distance_of(metric: str, dtype: np.dtype[np.number], column: str) -> Distance:
    """Return the function that measures the rows of vectors, shape (rows, dimension), and a query.

    Raises InvalidInputError, which names ``column``, if the metric does not fit the type.
    """
    if (metric == "hamming") != (dtype == np.uint8):
        raise InvalidInputError(
            f"the metric {metric} does not fit the {dtype} vectors of column {column}; uint8 "
            "vectors take hamming, floats the others"
        )
    return _METRICS[metric]


def _widened(vectors: _Vectors, query: _Vectors) -> _Vectors:
    """Return float16 vectors as float32, the type of the query; others as they are."""
    return vectors.astype(query.dtype, copy=False)


def _vector_matrix(vectors: pa.FixedSizeListArray, dtype: np.dtype[np.number]) -> _Vectors:
    """View the values, shape (rows, dimension); those of null vectors are undefined."""
    dimension = vectors.type.list_size
    values = vectors.values
    data = np.frombuffer(values.buffers()[1], dtype)
    first = values.offset + vectors.offset * dimension
    return data[first : first + len(vectors) * dimension].reshape(-1, dimension)
