"""Distances of rows that have several vectors each, by late interaction."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.memtable.vector_rows import Neighbours


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
