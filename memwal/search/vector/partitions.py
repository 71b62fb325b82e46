"""Vectors of a generation in memory, sorted by the partitions of the base table's index."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.reader.row_set import RowIds

if TYPE_CHECKING:
    import lance

_BLOCK_ROWS = 4096
# Relative rounding error of a sum in float32.
_ROUNDING = 1e-5
_METRICS: Final = ("l2", "cosine", "dot")


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """Partitions of an IVF index."""

    centroids: npt.NDArray[np.float32]  # Shape (partitions, dimension).
    metric: str  # l2, cosine or dot.
    digest: bytes  # Identifies these centroids and this metric for ever.

    @classmethod
    def of(cls, dataset: lance.LanceDataset, index: str, metric: str) -> Partitions | None:
        """Read the partitions of an index; None if it has none or the metric is not supported."""
        if metric not in _METRICS:
            return None
        centroids = dataset.get_ivf_model(index).centroids
        if centroids is None or not len(centroids):
            return None
        matrix = as_matrix(centroids).astype(np.float32)
        return cls(matrix, metric, hashlib.blake2b(matrix.tobytes() + metric.encode()).digest())

    def nearest(self, vectors: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
        """Return the nearest partitions of each vector, unordered, shape (vectors, count)."""
        count = min(count, len(self.centroids))
        nearest = np.empty((len(vectors), count), np.int64)
        for start in range(0, len(vectors), _BLOCK_ROWS):
            distances = self._distances(vectors[start : start + _BLOCK_ROWS].astype(np.float32))
            block = nearest[start : start + _BLOCK_ROWS]
            if count == 1:
                block[:, 0] = distances.argmin(axis=1)
            else:
                block[:] = np.argpartition(distances, count - 1, axis=1)[:, :count]
        return nearest

    def _distances(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Distances up to a constant per vector, shape (vectors, partitions)."""
        with np.errstate(all="ignore"):
            if self.metric == "dot":
                return -vectors @ self.centroids.T
            if self.metric == "cosine":
                # Lance normalizes vectors before it partitions them for a cosine index.
                vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            products: npt.NDArray[np.float32] = vectors @ self.centroids.T
            squares: npt.NDArray[np.float32] = np.vecdot(self.centroids, self.centroids)
            return squares - 2 * products


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Rows of a generation with their vectors, sorted by partition."""

    vectors: npt.NDArray[np.float32]  # Shape (rows, dimension).
    squares: npt.NDArray[np.float32]  # Squared lengths of the vectors.
    addresses: RowIds
    starts: npt.NDArray[np.int64]  # First row of each partition, and the number of rows.

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        parts = (self.vectors, self.squares, self.addresses, self.starts)
        return sum(int(part.nbytes) for part in parts)

    @classmethod
    def of(cls, rows: pa.Table, partitions: Partitions) -> Layout:
        """Sort rows (a column of vectors, with nulls, and ``_rowid``) by partition."""
        rows = rows.filter(rows.column(0).is_valid())
        vectors = as_matrix(rows.column(0)).astype(np.float32, copy=False)
        partition = partitions.nearest(vectors, 1)[:, 0]
        order = np.argsort(partition, kind="stable")
        starts = np.zeros(len(partitions.centroids) + 1, np.int64)
        np.cumsum(np.bincount(partition, minlength=len(starts) - 1), out=starts[1:])
        vectors = vectors[order]
        with np.errstate(all="ignore"):
            squares = np.vecdot(vectors, vectors)
        return cls(vectors, squares, rows.column("_rowid").to_numpy()[order], starts)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Estimated distances of the rows in the probed partitions of several layouts."""

    # Values that order rows as their distances do, up to rounding; NaN where there is none.
    values: npt.NDArray[np.float32]
    slack: float  # Bound of the rounding error of a comparison.
    layout: npt.NDArray[np.int64]  # Layout of each row, and position in it.
    position: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        layouts: Sequence[Layout],
        probes: npt.NDArray[np.int64],
        vector: npt.NDArray[np.float32],
        metric: str,
    ) -> Estimates:
        """Estimate all rows of the probed partitions, by products without a copy of vectors."""
        bounds = [(layout.starts[probes], layout.starts[probes + 1]) for layout in layouts]
        counts = [last - first for first, last in bounds]
        products = np.empty(sum(int(count.sum()) for count in counts), np.float32)
        done = 0
        with np.errstate(all="ignore"):
            for layout, (first, last) in zip(layouts, bounds, strict=True):
                vectors = layout.vectors
                for start, stop in zip(first.tolist(), last.tolist(), strict=True):
                    end = done + stop - start
                    np.dot(vectors[start:stop], vector, out=products[done:end])
                    done = end
        which = np.repeat(np.arange(len(layouts)), [int(count.sum()) for count in counts])
        position = _concatenate_ranges(
            np.concatenate([first for first, _ in bounds]), np.concatenate(counts)
        )
        own = np.split(position, np.cumsum([int(count.sum()) for count in counts[:-1]]))
        squares = np.concatenate(
            [layout.squares[mine] for layout, mine in zip(layouts, own, strict=True)]
        )
        length = np.dot(vector, vector)
        longest = np.nanmax(squares, initial=0.0)
        with np.errstate(all="ignore"):
            if metric == "dot":
                return cls(-products, _ROUNDING * (longest * length) ** 0.5, which, position)
            if metric == "cosine":
                return cls(-products / np.sqrt(squares * length), _ROUNDING, which, position)
            return cls(squares - 2 * products, _ROUNDING * (longest + length), which, position)

    def best(self, count: int) -> npt.NDArray[np.int64]:
        """Return numbers of rows that include the nearest ``count`` in spite of rounding."""
        finite: npt.NDArray[np.int64] = np.flatnonzero(np.isfinite(self.values))
        if len(finite) <= count:
            return finite
        values = self.values[finite]
        limit = np.partition(values, count - 1)[count - 1] + np.float32(self.slack)
        near: npt.NDArray[np.int64] = finite[values <= limit]
        return near


def as_matrix(vectors: pa.ChunkedArray | pa.Array) -> npt.NDArray[Any]:
    """Convert vectors without nulls to an array, shape (rows, dimension)."""
    values: npt.NDArray[Any] = np.asarray(pc.list_flatten(vectors))
    return values.reshape(-1, vectors.type.list_size)


def as_arrow(vectors: npt.NDArray[Any]) -> pa.FixedSizeListArray:
    """Convert vectors to an Arrow array, without a copy."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])


def _concatenate_ranges(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Concatenate several ranges of numbers."""
    before = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum()), dtype=np.int64)
    numbers += np.repeat(starts - before, counts)
    return numbers
