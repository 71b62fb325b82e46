"""The spec's hash functions ``murmur3`` and ``murmur3_multi`` over Arrow columns.

The spec names the hash (x86, 32 bit, seed 0) and not the bytes that are hashed. Here these are,
one value after the other: integers and booleans as 64-bit little-endian integers, floats as
64-bit ones with -0 as 0 and one NaN, so that a number hashes alike in every width; text as UTF-8;
binary as it is; dates, times and timestamps as Arrow stores them, little-endian. Nulls add
nothing. For 64-bit integers, text and binary this is what Lance's own ``murmur3_multi`` (of its
partitioned namespaces) hashes. Spec: Region Transform.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from memwal.errors import InvalidInputError
from memwal.region.murmur3 import (
    Words,
    canonical_bits,
    finish,
    hash_bytes,
    hash_one,
    mix,
    mix_64,
)

# Bounds the temporaries of a call.
_ROWS_PER_BLOCK: Final = 65_536
# Of one row, shorter than this, the bytes are quicker hashed one after the other.
_SHORT: Final = 128

HASHABLE_TYPES: Final = (
    "bool, integers, float, double, date32, date64, time32, time64, timestamp, string, binary and "
    "their large and fixed-size forms"
)
"""The types that :func:`murmur3_multi` takes, for messages."""


def is_hashable(data_type: pa.DataType) -> bool:
    """Tell whether :func:`murmur3_multi` takes columns of this type."""
    return bool(
        pt.is_boolean(data_type)
        or pt.is_integer(data_type)
        or pt.is_float32(data_type)
        or pt.is_float64(data_type)
        or pt.is_date(data_type)
        or pt.is_time(data_type)
        or pt.is_timestamp(data_type)
        or pt.is_null(data_type)
        or _is_bytes(data_type)
    )


def murmur3(column: pa.Array) -> pa.Int32Array:
    """Hash one column; null where it is null. See :func:`murmur3_multi`."""
    return murmur3_multi([column])


def murmur3_multi(columns: Sequence[pa.Array]) -> pa.Int32Array:
    """Hash rows of several columns.

    Parameters
    ----------
    columns : sequence of pyarrow.Array
        At least one, all of the same length.

    Returns
    -------
    pyarrow.Int32Array
        One hash per row; null where all columns are null.

    Raises
    ------
    InvalidInputError
        A column is of a type that cannot be hashed.
    """
    for column in columns:
        if not is_hashable(column.type):
            raise InvalidInputError(
                f"cannot hash a column of type {column.type}; cast it to one of: {HASHABLE_TYPES}"
            )
    used = [column for column in columns if not pt.is_null(column.type)]
    rows = len(columns[0])
    if not used:
        return pa.nulls(rows, pa.int32())
    hashes = np.empty(rows, dtype=np.int32)
    for start in range(0, rows, _ROWS_PER_BLOCK):
        block = [column.slice(start, _ROWS_PER_BLOCK) for column in used]
        hashes[start : start + len(block[0])] = _hash_block(block).view(np.int32)
    return pa.array(hashes, mask=_all_null(used))


def _hash_block(columns: Sequence[pa.Array]) -> Words:
    rows = len(columns[0])
    if not any(column.null_count or _is_bytes(column.type) for column in columns):
        return _hash_fixed([_widened(column) for column in columns])
    parts = [_as_binary(column) for column in columns]
    joined = parts[0] if len(parts) == 1 else _joined(parts)
    if rows == 1:
        value = joined[0].as_py() or b""
        if len(value) <= _SHORT:
            return np.array([hash_one(value)], dtype=np.uint32)
    _, offset_buffer, data = joined.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, rows + 1, joined.offset * 8)
    return hash_bytes(
        np.frombuffer(data if data is not None else b"", dtype=np.uint8),
        offsets[:-1],
        np.diff(offsets),
    )


def _hash_fixed(columns: Sequence[NDArray[np.uint32] | NDArray[np.uint64]]) -> Words:
    """Hash columns of whole words, without putting their bytes side by side."""
    if len(columns[0]) == 1:
        value = b"".join(column.tobytes() for column in columns)
        return np.array([hash_one(value)], dtype=np.uint32)
    hashes = np.zeros(len(columns[0]), dtype=np.uint32)
    for column in columns:
        hashes = (
            mix_64(hashes, column.view(np.uint64))
            if column.dtype.itemsize == 8
            else mix(hashes, column.view(np.uint32))
        )
    return finish(hashes, np.uint32(sum(column.dtype.itemsize for column in columns)))


def _widened(column: pa.Array) -> NDArray[np.uint32] | NDArray[np.uint64]:
    """The words of a column whose values have a fixed width; null slots hold anything."""
    data_type = column.type
    if pt.is_boolean(data_type):
        column = column.cast(pa.uint8())
        data_type = column.type
    width = data_type.byte_width
    if pt.is_floating(data_type):
        values = _view(column, f"<f{width}").astype("<f8").view("<u8")
        bits: NDArray[np.uint64] = canonical_bits(values)
        return bits
    if pt.is_integer(data_type):
        sign = "i" if pt.is_signed_integer(data_type) else "u"
        return _view(column, f"<{sign}{width}").astype(f"<{sign}8").view("<u8")
    return _view(column, f"<u{width}")


def _view(column: pa.Array, dtype: str) -> NDArray[Any]:
    item = np.dtype(dtype)
    return np.frombuffer(
        column.buffers()[1], item, count=len(column), offset=column.offset * item.itemsize
    )


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(
        pt.is_string(data_type)
        or pt.is_large_string(data_type)
        or pt.is_string_view(data_type)
        or pt.is_binary(data_type)
        or pt.is_large_binary(data_type)
        or pt.is_binary_view(data_type)
        or pt.is_fixed_size_binary(data_type)
    )


def _as_binary(column: pa.Array) -> pa.LargeBinaryArray:
    """The bytes that are hashed, one value per row."""
    if _is_bytes(column.type):
        if pt.is_fixed_size_binary(column.type):
            column = column.cast(pa.binary())
        return column.cast(pa.large_binary())
    words = _widened(column)
    offsets = np.arange(len(words) + 1, dtype=np.int64) * words.dtype.itemsize
    values = pa.Array.from_buffers(
        pa.large_binary(),
        len(words),
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(words))],
    )
    return values if not column.null_count else pc.if_else(column.is_valid(), values, None)


def _joined(parts: Sequence[pa.LargeBinaryArray]) -> pa.LargeBinaryArray:
    # Arrow's own way of skipping nulls drops the rows where every part is null.
    filled = [part.fill_null(b"") for part in parts]
    return pc.binary_join_element_wise(*filled, pa.scalar(b"", pa.large_binary()))


def _all_null(columns: Sequence[pa.Array]) -> NDArray[np.bool_] | None:
    if not all(column.null_count for column in columns):
        return None
    nulls = [column.is_null().to_numpy(zero_copy_only=False) for column in columns]
    result: NDArray[np.bool_] = np.logical_and.reduce(nulls)
    return result
