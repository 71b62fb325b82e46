"""Lance's bucket hash, computed over whole Arrow columns.

The bucket of a primary key decides the region of its rows, so all clients of a table must compute
the same number. The hash is murmur3 (x86, 32 bit, seed 0) in the dialect of Apache Spark: values
are hashed in their own width, so ``int32(5)`` and ``int64(5)`` differ, and the bytes of a text
after its last 4-byte word are mixed in one by one, sign-extended.
Spec: Region Transform, ``bucket``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memwal.errors import InvalidInputError
from memwal.format.values import value_buffer
from memwal.region.hashing import Words, canonical_bits, hash_32, hash_64, hash_bytes, hash_value

_Hasher: TypeAlias = Callable[[pa.Array], Words]

_INT32_MAX: Final = 0x7FFFFFFF

# Temporary arrays of this many rows fit the processor's cache, and limit the memory of a call.
_ROWS_PER_BLOCK: Final = 65_536

BUCKETABLE_TYPES: Final = (
    "bool, int8 to int64, uint8 to uint64, float, double, date32, time32, time64, timestamp, "
    "string, large_string"
)
"""Types that :func:`bucket` accepts, for messages."""


def bucket(column: pa.Array | pa.ChunkedArray, num_buckets: int) -> NDArray[np.int32]:
    """Return the bucket of each row, as Lance computes it; the bucket of null is 0.

    Text is not copied: besides the result a call needs a few megabytes, however long the column or
    a single text is. The time for text grows with the longest one of each 65,536 rows.

    Raises InvalidInputError if Lance does not bucket columns of this type, or the number of buckets
    is not from 1 to 2**31 - 1.
    """
    if not 1 <= num_buckets <= _INT32_MAX:
        raise InvalidInputError(
            f"the number of buckets must be between 1 and {_INT32_MAX}, got {num_buckets}"
        )
    hasher = _hasher_of(column.type)
    if hasher is None:
        raise InvalidInputError(
            f"cannot hash a column of type {column.type} into buckets; cast it to the type that "
            f"the column has in the table, which must be one of: {BUCKETABLE_TYPES}"
        )
    if len(column) == 1 and isinstance(column, pa.Array):
        hashed = _hash_single_row(column)
        if hashed is not None:
            return np.array([(hashed & _INT32_MAX) % num_buckets], dtype=np.int32)
    buckets = np.empty(len(column), dtype=np.int32)
    done = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        for start in range(0, len(chunk), _ROWS_PER_BLOCK):
            rows = chunk.slice(start, _ROWS_PER_BLOCK)
            numbers = (hasher(rows) & np.uint32(_INT32_MAX)) % np.uint32(num_buckets)
            if rows.null_count:
                numbers[rows.is_null().to_numpy(zero_copy_only=False)] = 0
            buckets[done : done + len(rows)] = numbers
            done += len(rows)
    return buckets


def is_bucketable(data_type: pa.DataType) -> bool:
    """Return whether Lance buckets columns of this type."""
    return _hasher_of(data_type) is not None


def _hash_single_row(column: pa.Array) -> int | None:
    """Hash the only row without numpy; None if it is null, or if numpy is faster."""
    data_type = column.type
    if data_type in _TEXT:
        text = column[0].as_py()
        # For a long text, numpy is faster.
        if text is None or len(text) > _SHORT_TEXT:
            return None
        return hash_value(text.encode(), spark=True)
    if data_type not in _WORDS or column.null_count:
        return None
    width = data_type.byte_width
    start = column.offset * width
    return hash_value(column.buffers()[1][start : start + width].to_pybytes())


def _hasher_of(data_type: pa.DataType) -> _Hasher | None:
    if pa.types.is_timestamp(data_type):
        return _hash_words_64
    return _HASHERS.get(data_type)


def _hash_words_64(rows: pa.Array) -> Words:
    return hash_64(value_buffer(rows, "<u8"))


def _widening(dtype: str) -> _Hasher:
    """Return a hasher of integers that extends them to 32 bits first."""

    def hash_rows(rows: pa.Array) -> Words:
        return hash_32(value_buffer(rows, dtype).astype("<i4").view("<u4"))

    return hash_rows


def _hash_words_32(rows: pa.Array) -> Words:
    return hash_32(value_buffer(rows, "<u4"))


def _text_hasher(offset_dtype: str) -> _Hasher:
    def hash_rows(rows: pa.Array) -> Words:
        _, offset_buffer, data = rows.buffers()
        item = np.dtype(offset_dtype)
        offsets = np.frombuffer(
            offset_buffer, item, len(rows) + 1, rows.offset * item.itemsize
        ).astype(np.int64)
        text = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
        return hash_bytes(text, offsets[:-1], np.diff(offsets), spark=True)

    return hash_rows


_SHORT_TEXT: Final = 128
_TEXT: Final = frozenset({pa.string(), pa.large_string()})
_WORDS: Final = frozenset({pa.int32(), pa.uint32(), pa.date32(), pa.int64(), pa.uint64()})

_HASHERS: Final[dict[pa.DataType, _Hasher]] = {
    pa.bool_(): lambda rows: hash_32(value_buffer(rows.cast(pa.uint8()), "u1").astype("<u4")),
    pa.int8(): _widening("i1"),
    pa.int16(): _widening("<i2"),
    pa.uint8(): _widening("u1"),
    pa.uint16(): _widening("<u2"),
    pa.int32(): _hash_words_32,
    pa.uint32(): _hash_words_32,
    pa.date32(): _hash_words_32,
    pa.time32("s"): _hash_words_32,
    pa.time32("ms"): _hash_words_32,
    pa.int64(): _hash_words_64,
    pa.uint64(): _hash_words_64,
    pa.time64("us"): _hash_words_64,
    pa.time64("ns"): _hash_words_64,
    pa.float32(): lambda rows: hash_32(canonical_bits(value_buffer(rows, "<u4"))),
    pa.float64(): lambda rows: hash_64(canonical_bits(value_buffer(rows, "<u8"))),
    pa.string(): _text_hasher("<i4"),
    pa.large_string(): _text_hasher("<i8"),
}
