"""The primary key of a row as one byte string that sorts as the key does.

This is how the ``_pk_index`` of a flushed generation holds keys of several columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.format import _rows
from memwal.format._rows import Fixed, Piece, Runs

# Arrow's binary arrays count their bytes in 32 bits.
_MAX_ARRAY_BYTES = (1 << 31) - 1
_SIGN = np.uint64(1 << 63)


def check_key_type(field: pa.Field) -> None:
    """Refuse a primary-key column whose type Lance refuses for MemWAL.

    Raises
    ------
    InvalidInputError
        When the type is none of signed and unsigned integers, bool, text and binary.
    """
    if not (_is_text(field.type) or _is_number(field.type)):
        raise InvalidInputError(
            f"primary-key column {field.name!r} has type {field.type}; MemWAL takes integers, "
            "bool, text and binary, so cast it or choose another key"
        )


def encode_composite_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.BinaryArray:
    """Return every row's key as bytes whose order is the order of the keys, nulls first.

    Each column adds ``00`` when null, else ``01`` and its value: integers as 8 bytes big-endian
    (signed ones with the sign bit flipped), bool as one byte, text and binary with each ``00``
    written as ``00ff`` and ended by ``0000``.

    Parameters
    ----------
    columns : sequence of pyarrow.Array or pyarrow.ChunkedArray
        The primary key's columns in key order, all of the same length.

    Returns
    -------
    pyarrow.BinaryArray
        As many values as rows, none of them null.

    Raises
    ------
    InvalidInputError
        When a type cannot be a key, the lengths differ, or the keys take more than 2 GiB.
    """
    for number, column in enumerate(columns):
        check_key_type(pa.field(str(number), column.type))
    parts = [_encode_slice(part) for part in _rows.slices(columns)]
    if not parts:
        return pa.array([], pa.binary())
    try:
        return pa.concat_arrays(parts)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"the keys do not fit one array: {error}; take fewer") from error


def _encode_slice(columns: Sequence[pa.Array]) -> pa.BinaryArray:
    pieces = [piece for column in columns for piece in _pieces(column)]
    lengths = _rows.row_lengths(pieces)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > _MAX_ARRAY_BYTES:
        raise InvalidInputError(
            f"{len(lengths)} keys take {offsets[-1]} bytes, more than one array holds; take fewer "
            "or shorter ones"
        )
    data = np.empty(int(offsets[-1]), np.uint8)
    _rows.write_rows(pieces, out=data, starts=offsets[:-1])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), buffers)


def _pieces(column: pa.Array) -> list[Piece]:
    valid = _rows.validity(column)
    flags = np.ones(len(column), np.uint8) if valid is None else valid.view(np.uint8)
    return [Fixed(flags[:, np.newaxis]), *_value_pieces(column, valid)]


def _value_pieces(column: pa.Array, valid: _rows.Mask | None) -> list[Piece]:
    if _is_text(column.type):
        end = np.zeros((len(column), 2), np.uint8)
        return [_escaped(_rows.byte_runs(column)), Fixed(end, valid)]
    if pa.types.is_boolean(column.type):
        numbers = column.cast(pa.uint8())
        return [Fixed(_rows.integers(numbers).astype(np.uint8)[:, np.newaxis], valid)]
    return [Fixed(_big_endian(_rows.integers(column)), valid)]


def _big_endian(values: npt.NDArray[np.integer]) -> _rows.Bytes:
    if values.dtype.kind == "u":
        wide = values.astype(np.uint64)
    else:
        wide = values.astype(np.int64).view(np.uint64) ^ _SIGN
    return wide.astype(">u8").view(np.uint8).reshape(-1, 8)


def _escaped(runs: Runs) -> Runs:
    """Return the runs with every zero byte followed by ``ff``."""
    zeros = np.flatnonzero(runs.data == 0)
    if not len(zeros):
        return runs
    before = np.searchsorted(zeros, runs.starts)
    within = np.searchsorted(zeros, runs.starts + runs.counts) - before
    return Runs(np.insert(runs.data, zeros + 1, 0xFF), runs.starts + before, runs.counts + within)


def _is_text(data_type: pa.DataType) -> bool:
    return data_type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_boolean(data_type))
