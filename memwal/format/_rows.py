"""Byte strings of many rows at once: every row joins its pieces, and rows stand one after another.

A piece is what one part of a key adds to each row: a fixed number of bytes, or a run of bytes of
another buffer. Work goes through slices of :data:`SLICE_ROWS` rows, which keeps the index arrays
within the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError

SLICE_ROWS = 16_384

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same number of bytes in every row, shape (rows, width); none where not ``present``."""

    values: Bytes
    present: Mask | None = None

    def lengths(self) -> Counts:
        """Return how many bytes each row gets."""
        rows, width = self.values.shape
        if self.present is None:
            return np.full(rows, width, np.int64)
        return self.present * np.int64(width)

    def write(self, out: Bytes, at: Counts) -> None:
        """Write every row's bytes at its place."""
        values = self.values
        if self.present is not None:
            values, at = values[self.present], at[self.present]
        for offset in range(values.shape[1]):
            out[at + offset] = values[:, offset]


@dataclass(frozen=True, slots=True)
class Runs:
    """``counts[i]`` bytes of ``data`` from ``starts[i]`` on, in row i."""

    data: Bytes
    starts: Counts
    counts: Counts

    def lengths(self) -> Counts:
        """Return how many bytes each row gets."""
        return self.counts

    def write(self, out: Bytes, at: Counts) -> None:
        """Write every row's bytes at its place."""
        within = np.arange(self.counts.sum()) - np.repeat(
            np.cumsum(self.counts) - self.counts, self.counts
        )
        out[np.repeat(at, self.counts) + within] = self.data[
            np.repeat(self.starts, self.counts) + within
        ]


Piece = Fixed | Runs


def slices(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Iterator[list[pa.Array]]:
    """Cut columns of equal length into aligned arrays of at most :data:`SLICE_ROWS` rows.

    Raises
    ------
    InvalidInputError
        When there is no column, or the lengths differ.
    """
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise InvalidInputError(
            f"key columns have {sorted(lengths)} rows; give at least one column, and as many rows "
            "in each"
        )
    table = pa.table(list(columns), names=[str(number) for number in range(len(columns))])
    for batch in table.to_batches(max_chunksize=SLICE_ROWS):
        if batch.num_rows:
            yield batch.columns


def validity(column: pa.Array) -> Mask | None:
    """Return which values are not null, or None when all are."""
    if column.null_count == 0:
        return None
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def integers(column: pa.Array) -> npt.NDArray[np.integer]:
    """Return the values of an integer column, 0 where null."""
    filled = column.fill_null(0) if column.null_count else column
    values: npt.NDArray[np.integer] = filled.to_numpy()
    return values


def byte_runs(column: pa.Array) -> Runs:
    """Return the bytes of a text or binary column, none where null."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offset_buffer, data_buffer = column.buffers()
    stored = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
    offsets = stored[column.offset : column.offset + len(column) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = (
        np.frombuffer(data_buffer, np.uint8)[first:last]
        if data_buffer is not None
        else np.empty(0, np.uint8)
    )
    counts: Counts = np.diff(offsets)
    valid = validity(column)
    return Runs(data, offsets[:-1] - first, counts if valid is None else counts * valid)


def row_lengths(pieces: Sequence[Piece]) -> Counts:
    """Return how many bytes the pieces of each row take together."""
    lengths: Counts = np.sum([piece.lengths() for piece in pieces], axis=0, dtype=np.int64)
    return lengths


def write_rows(pieces: Sequence[Piece], *, out: Bytes, starts: Counts) -> None:
    """Write the pieces of every row, joined, from ``starts`` on."""
    at = starts
    for piece in pieces:
        piece.write(out, at)
        at = at + piece.lengths()
