"""64-bit hash of primary keys for the key index of a MemTable; never stored or sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.format.keys import SLICE_ROWS, byte_runs, integers
from memwal.util.arrays import Hashes

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# Mask of a word by the number of its bytes that belong to the value.
_TAILS = np.array([(1 << (8 * count)) - 1 for count in range(8)], np.uint64)


def hash_rows(columns: Sequence[pa.Array]) -> Hashes:
    """Hash each row over some columns of integers, bool, text or binary, without nulls.

    Raises InvalidInputError if a type cannot be hashed.
    """
    hashes = _hash_column(columns[0])
    for column in columns[1:]:
        hashes = _mix(hashes + _GOLDEN) ^ _hash_column(column)
    return hashes


def _hash_column(column: pa.Array) -> Hashes:
    if pt.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pt.is_integer(column.type):
        return _mix(integers(column).astype(np.uint64))
    if column.type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        raise InvalidInputError(
            f"a key has type {column.type}; keys are integers, bool, text or binary"
        )
    if len(column) <= SLICE_ROWS:
        return _hash_bytes(column) if len(column) else np.empty(0, np.uint64)
    starts = range(0, len(column), SLICE_ROWS)
    return np.concatenate([_hash_bytes(column.slice(start, SLICE_ROWS)) for start in starts])


def _hash_bytes(column: pa.Array) -> Hashes:
    """Hash each value as the sum of its 8-byte words, each mixed with its position."""
    runs = byte_runs(column)
    padded = np.concatenate([runs.data, np.zeros(8, np.uint8)])
    # A word starts at every byte, so that values need not be aligned.
    loads = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    words = runs.counts // 8 + 1
    ends = np.cumsum(words)
    firsts = ends - words
    position = np.arange(ends[-1]) - np.repeat(firsts, words)
    values = loads[np.repeat(runs.starts, words) + 8 * position]
    values[ends - 1] &= _TAILS[runs.counts % 8]
    values ^= (position.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    sums: Hashes = np.add.reduceat(_mix(values), firsts)
    return _mix(sums + runs.counts.astype(np.uint64))


def _mix(values: Hashes) -> Hashes:
    """Scramble 64 bits so that each depends on all (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values
