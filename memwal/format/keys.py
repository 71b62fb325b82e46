"""Encode a composite primary key as one byte string that sorts as the key does.

The ``_pk_index`` of a flushed generation contains keys of several columns in this form.

Rows are encoded column by column. A *piece* is the encoding that one part of a key adds to each
row: a fixed number of bytes, or a run of bytes of another buffer. The pieces of a row are joined,
and the rows follow one another. Columns are processed in slices of :data:`SLICE_ROWS` rows, so that
the index arrays stay in the processor's cache. The bloom filter uses the same pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.format.values import is_binary, is_text, single_array
from memwal.util.arrays import Mask

SLICE_ROWS = 16_384
Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

# Longer runs are copied one by one: side by side takes an index of 8 bytes for each byte.
_LONG_RUN = 128

# Arrow's binary arrays count their bytes in 32 bits.
_MAX_ARRAY_BYTES = (1 << 31) - 1
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A piece with the same number of bytes in every row, or none where ``present`` is False."""

    values: Bytes  # shape (rows, width)
    present: Mask | None = None  # shape (rows,); None if all rows have the bytes

    def lengths(self) -> Counts:
        """Return the number of bytes of each row."""
        rows, width = self.values.shape
        if self.present is None:
            return np.full(rows, width, np.int64)
        return self.present * np.int64(width)

    def write(self, out: Bytes, at: Counts) -> None:
        """Write the bytes of row i to ``out[at[i]]`` and after."""
        values = self.values
        if self.present is not None:
            values, at = values[self.present], at[self.present]
        for offset in range(values.shape[1]):
            out[at + offset] = values[:, offset]


@dataclass(frozen=True, slots=True)
class Runs:
    """A piece with ``counts[i]`` bytes of ``data`` from ``starts[i]`` on in row i."""

    data: Bytes
    starts: Counts
    counts: Counts

    def lengths(self) -> Counts:
        """Return the number of bytes of each row."""
        return self.counts

    def write(self, out: Bytes, at: Counts) -> None:
        """Write the bytes of row i to ``out[at[i]]`` and after."""
        is_short = self.counts <= _LONG_RUN
        starts, counts, targets = self.starts, self.counts, at
        if not is_short.all():
            starts, counts, targets = starts[is_short], counts[is_short], at[is_short]
            for row in np.flatnonzero(~is_short):
                run = self.data[self.starts[row] : self.starts[row] + self.counts[row]]
                out[at[row] : at[row] + len(run)] = run
        before = np.cumsum(counts) - counts
        numbers = np.arange(counts.sum())
        values = self.data[np.repeat(starts - before, counts) + numbers]
        out[np.repeat(targets - before, counts) + numbers] = values


Piece = Fixed | Runs


def check_key_type(field: pa.Field) -> None:
    """Raise InvalidInputError for a primary-key column whose type Lance refuses for MemWAL."""
    if not (_is_bytes(field.type) or _is_number(field.type)):
        raise InvalidInputError(
            f"primary-key column {field.name!r} has type {field.type}; MemWAL takes integers, "
            "bool, text and binary, so cast it or choose another key"
        )


def encode_composite_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.BinaryArray:
    """Return every row's key as bytes whose order is the order of the keys, nulls first.

    Each column adds ``00`` when null, else ``01`` and its value: integers as 8 bytes big-endian
    (signed ones with the sign bit flipped), bool as one byte, text and binary with each ``00``
    written as ``00ff`` and ended by ``0000``.

    The columns are in key order, and no result is null. Raises InvalidInputError if a type cannot
    be a key, the lengths differ, or the keys take more than 2 GiB.
    """
    for number, column in enumerate(columns):
        check_key_type(pa.field(str(number), column.type))
    parts = [_encode_slice(part) for part in slices(columns)]
    if not parts:
        return pa.array([], pa.binary())
    try:
        return pa.concat_arrays(parts)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"the keys do not fit one array: {error}; take fewer") from error


def slices(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Iterator[list[pa.Array]]:
    """Cut columns of equal length into aligned arrays of at most :data:`SLICE_ROWS` rows.

    Raises InvalidInputError if there is no column, or the lengths differ.
    """
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise InvalidInputError(
            f"key columns have {sorted(lengths)} rows; give at least one column, and as many rows "
            "in each"
        )
    if max(lengths) <= SLICE_ROWS:
        if max(lengths):
            yield [single_array(column) for column in columns]
        return
    table = pa.table(list(columns), names=[str(number) for number in range(len(columns))])
    for batch in table.to_batches(max_chunksize=SLICE_ROWS):
        if batch.num_rows:
            yield batch.columns


def validity(column: pa.Array) -> Mask | None:
    """Return which values are not null; None if no value is null."""
    if column.null_count == 0:
        return None
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def integers(column: pa.Array) -> npt.NDArray[np.integer]:
    """Return the values of an integer column, with 0 for null."""
    filled = column.fill_null(0) if column.null_count else column
    values: npt.NDArray[np.integer] = filled.to_numpy()
    return values


def byte_runs(column: pa.Array) -> Runs:
    """Return the bytes of a text or binary column; a null has none."""
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
    """Return the number of bytes of each row, over all its pieces."""
    lengths: Counts = np.sum([piece.lengths() for piece in pieces], axis=0, dtype=np.int64)
    return lengths


def write_rows(pieces: Sequence[Piece], *, out: Bytes, starts: Counts) -> None:
    """Write the joined pieces of row i to ``out[starts[i]]`` and after."""
    at = starts
    for piece in pieces:
        piece.write(out, at)
        at = at + piece.lengths()


def _encode_slice(columns: Sequence[pa.Array]) -> pa.BinaryArray:
    pieces = [piece for column in columns for piece in _pieces(column)]
    lengths = row_lengths(pieces)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > _MAX_ARRAY_BYTES:
        raise InvalidInputError(
            f"{len(lengths)} keys take {offsets[-1]} bytes, more than one array holds; take fewer "
            "or shorter ones"
        )
    data = np.empty(int(offsets[-1]), np.uint8)
    write_rows(pieces, out=data, starts=offsets[:-1])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), buffers)


def _pieces(column: pa.Array) -> list[Piece]:
    valid = validity(column)
    flags = np.ones(len(column), np.uint8) if valid is None else valid.view(np.uint8)
    return [Fixed(flags[:, np.newaxis]), *_value_pieces(column, valid)]


def _value_pieces(column: pa.Array, valid: Mask | None) -> list[Piece]:
    if _is_bytes(column.type):
        end = np.zeros((len(column), 2), np.uint8)
        return [_escape_zeros(byte_runs(column)), Fixed(end, valid)]
    if pa.types.is_boolean(column.type):
        numbers = column.cast(pa.uint8())
        return [Fixed(integers(numbers).astype(np.uint8)[:, np.newaxis], valid)]
    return [Fixed(_big_endian(integers(column)), valid)]


def _big_endian(values: npt.NDArray[np.integer]) -> Bytes:
    if values.dtype.kind == "u":
        wide = values.astype(np.uint64)
    else:
        wide = values.astype(np.int64).view(np.uint64) ^ _SIGN
    return wide.astype(">u8").view(np.uint8).reshape(-1, 8)


def _escape_zeros(runs: Runs) -> Runs:
    """Return the runs with ``ff`` inserted after every zero byte."""
    zeros = np.flatnonzero(runs.data == 0)
    if not len(zeros):
        return runs
    before = np.searchsorted(zeros, runs.starts)
    within = np.searchsorted(zeros, runs.starts + runs.counts) - before
    return Runs(np.insert(runs.data, zeros + 1, 0xFF), runs.starts + before, runs.counts + within)


def _is_bytes(data_type: pa.DataType) -> bool:
    return is_text(data_type) or is_binary(data_type)


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_boolean(data_type))
