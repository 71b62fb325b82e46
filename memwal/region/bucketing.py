"""Lance's bucket hash, computed over whole Arrow columns.

Which bucket a primary key falls into decides which region its rows live in, so every client of a
table must compute the same number. The hash is murmur3 (x86, 32 bit, seed 0) in the dialect of
Apache Spark: values are hashed in their own width, so ``int32(5)`` and ``int64(5)`` differ, and
the bytes of a text after its last whole 4-byte word are mixed in one by one, sign-extended.
Spec: Region Transform, ``bucket``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memwal.errors import InvalidInputError

_Words: TypeAlias = NDArray[np.uint32]
_Hasher: TypeAlias = Callable[[pa.Array], _Words]

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_INT32_MAX: Final = 0x7FFFFFFF

# Temporaries of this many rows stay in the processor's cache, and bound the memory of a call.
_ROWS_PER_BLOCK: Final = 65_536

BUCKETABLE_TYPES: Final = (
    "bool, int8 to int64, uint8 to uint64, float, double, date32, time32, time64, timestamp, "
    "string, large_string"
)
"""The types that :func:`bucket` takes, for messages."""


def bucket(column: pa.Array | pa.ChunkedArray, num_buckets: int) -> NDArray[np.int32]:
    """Return the bucket of every row, as Lance computes it.

    Parameters
    ----------
    column : pyarrow.Array or pyarrow.ChunkedArray
        Booleans, integers, 32- and 64-bit floats, ``date32``, times, timestamps or text. Nulls
        fall into bucket 0.
    num_buckets : int
        Number of buckets, from 1 to 2**31 - 1.

    Returns
    -------
    numpy.ndarray of int32, shape (len(column),)
        Bucket numbers in ``[0, num_buckets)``, in the order of the rows.

    Raises
    ------
    InvalidInputError
        If Lance does not bucket columns of this type, or the number of buckets is out of range.

    Notes
    -----
    No text is copied: besides the result a call needs a few megabytes, however long the column or
    a single text is. The time of text grows with the longest one of every 65,536 rows.
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
    """Tell whether Lance buckets columns of this type."""
    return _hasher_of(data_type) is not None


def _hasher_of(data_type: pa.DataType) -> _Hasher | None:
    if pa.types.is_timestamp(data_type):
        return _hash_words_64
    return _HASHERS.get(data_type)


def _mix(hashes: _Words, words: _Words) -> _Words:
    words = words * _C1
    words = (words << np.uint32(15)) | (words >> np.uint32(17))
    words *= _C2
    words ^= hashes
    words = (words << np.uint32(13)) | (words >> np.uint32(19))
    words *= np.uint32(5)
    words += np.uint32(0xE6546B64)
    return words


def _finish(hashes: _Words, lengths: _Words | np.uint32) -> _Words:
    hashes = hashes ^ lengths
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _values(rows: pa.Array, dtype: str) -> NDArray[Any]:
    """View the value buffer of a fixed-width array; slots of null rows hold anything."""
    values = rows.buffers()[1]
    item = np.dtype(dtype)
    return np.frombuffer(values, dtype=item, count=len(rows), offset=rows.offset * item.itemsize)


def _hash_32(words: _Words) -> _Words:
    return _finish(_mix(np.zeros(len(words), dtype=np.uint32), words), np.uint32(4))


def _hash_64(bits: NDArray[np.uint64]) -> _Words:
    low, high = bits.view("<u4").reshape(-1, 2).T
    hashes = _mix(np.zeros(len(bits), dtype=np.uint32), low)
    return _finish(_mix(hashes, high), np.uint32(8))


def _hash_words_64(rows: pa.Array) -> _Words:
    return _hash_64(_values(rows, "<u8"))


def _widening(dtype: str) -> _Hasher:
    """Return a hasher of integers that are sign- or zero-extended to 32 bits first."""

    def hash_rows(rows: pa.Array) -> _Words:
        return _hash_32(_values(rows, dtype).astype("<i4").view("<u4"))

    return hash_rows


def _hash_words_32(rows: pa.Array) -> _Words:
    return _hash_32(_values(rows, "<u4"))


def _hash_booleans(rows: pa.Array) -> _Words:
    return _hash_32(_values(rows.cast(pa.uint8()), "u1").astype("<u4"))


def _canonical(bits: NDArray[Any], infinity: int, nan: int) -> NDArray[Any]:
    """Give -0 the bits of 0 and every NaN the same bits, without touching a float."""
    magnitudes = bits & bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
    return np.where(magnitudes == 0, magnitudes, np.where(magnitudes > infinity, nan, bits)).astype(
        bits.dtype, copy=False
    )


def _hash_floats(rows: pa.Array) -> _Words:
    return _hash_32(_canonical(_values(rows, "<u4"), 0x7F800000, 0x7FC00000))


def _hash_doubles(rows: pa.Array) -> _Words:
    return _hash_64(_canonical(_values(rows, "<u8"), 0x7FF0000000000000, 0x7FF8000000000000))


def _text_hasher(offset_dtype: str) -> _Hasher:
    """Return a hasher of UTF-8 whose offsets are of this dtype."""

    def hash_rows(rows: pa.Array) -> _Words:
        _, offset_buffer, data = rows.buffers()
        item = np.dtype(offset_dtype)
        offsets = np.frombuffer(
            offset_buffer, item, len(rows) + 1, rows.offset * item.itemsize
        ).astype(np.int64)
        text = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
        return _hash_text(text, offsets[:-1], np.diff(offsets))

    return hash_rows


def _hash_text(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> _Words:
    """Hash the byte ranges ``text[start : start + length]``."""
    counts = lengths // 4
    longest = int(counts.max(initial=0))
    # Numpy sorts integers of 16 bits by radix, which takes a tenth of the time.
    order = np.argsort(counts.astype(np.uint16) if longest < 65_536 else counts, kind="stable")
    ordered_counts, ordered_starts = counts[order], starts[order]
    hashes = np.zeros(len(starts), dtype=np.uint32)
    # Element i is the little-endian word that begins at byte i.
    words = np.ndarray((max(len(text) - 3, 0),), dtype="<u4", buffer=text, strides=(1,))
    for position in range(longest):
        # The rows that have a word at this position stand together at the end.
        active = int(np.searchsorted(ordered_counts, position, side="right"))
        at = ordered_starts[active:] + 4 * position
        hashes[active:] = _mix(hashes[active:], words[at])
    ordered_lengths = lengths[order]
    tails = ordered_starts + (ordered_lengths & ~3)
    for position in range(3):
        (active_rows,) = np.nonzero((ordered_lengths & 3) > position)
        tail = text[tails[active_rows] + position].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[active_rows] = _mix(hashes[active_rows], tail)
    result = np.empty_like(hashes)
    result[order] = _finish(hashes, ordered_lengths.astype(np.uint32))
    return result


_HASHERS: Final[dict[pa.DataType, _Hasher]] = {
    pa.bool_(): _hash_booleans,
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
    pa.float32(): _hash_floats,
    pa.float64(): _hash_doubles,
    pa.string(): _text_hasher("<i4"),
    pa.large_string(): _text_hasher("<i8"),
}
