"""64-bit hashes of keys, which are never stored or sent.

:func:`hash_rows` reads whole keys. :func:`hash_tails` is cheaper, and reads the last bytes of text
and binary values only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.format.keys import SLICE_ROWS, Runs, byte_runs, integers
from memwal.format.values import is_binary, is_text
from memwal.util.arrays import Hashes

_WORD = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# Mask of a word by the number of its bytes that belong to the value.
_TAILS = np.array([(1 << (8 * count)) - 1 for count in range(_WORD + 1)], np.uint64)


def hash_rows(columns: Sequence[pa.Array]) -> Hashes:
    """Hash each row over some columns of integers, bool, text or binary, without nulls.

    Raises InvalidInputError if a type cannot be hashed.
    """
    hashes = _hash_column(columns[0])
    for column in columns[1:]:
        hashes = _mix(hashes + _GOLDEN) ^ _hash_column(column)
    return hashes


def hash_tails(values: pa.Array) -> Hashes:
    """Hash integers and bool, or length and last bytes of text and binary values.

    The upper bits tell values apart. Different integers have different hashes.
    """
    if pt.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if pt.is_integer(values.type):
        return signed(values).view(np.uint64) * _GOLDEN
    if not len(values):
        return np.empty(0, np.uint64)
    runs = byte_runs(values)
    width = int(runs.counts[0])
    if width >= _WORD and (runs.counts == width).all() and not values.null_count:
        # Words of values of one length are read in place.
        start = int(runs.starts[0]) + width - _WORD
        last = np.ndarray((len(values),), "<u8", runs.data, start, (width,))
    else:
        last = _words(runs)[runs.starts + np.maximum(runs.counts - _WORD, 0)]
        last &= _TAILS[np.minimum(runs.counts, _WORD)]
    return (last + runs.counts.view(np.uint64)) * _GOLDEN


def signed(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the values of an integer column in 64 bits; unsigned ones as they are stored."""
    numbers = integers(values)
    if numbers.dtype == np.uint64:
        return numbers.view(np.int64)
    return numbers.astype(np.int64, copy=False)


def _hash_column(column: pa.Array) -> Hashes:
    if pt.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pt.is_integer(column.type):
        return _mix(integers(column).astype(np.uint64))
    if not (is_text(column.type) or is_binary(column.type)):
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
    words = runs.counts // _WORD + 1
    ends = np.cumsum(words)
    firsts = ends - words
    position = np.arange(ends[-1]) - np.repeat(firsts, words)
    values = _words(runs)[np.repeat(runs.starts, words) + _WORD * position]
    values[ends - 1] &= _TAILS[runs.counts % _WORD]
    values ^= (position.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    sums: Hashes = np.add.reduceat(_mix(values), firsts)
    return _mix(sums + runs.counts.astype(np.uint64))


def _words(runs: Runs) -> Hashes:
    """Return the word that starts at each byte: values need not be aligned."""
    padded = np.concatenate([runs.data, np.zeros(_WORD, np.uint8)])
    return np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))


def _mix(values: Hashes) -> Hashes:
    """Scramble 64 bits so that each depends on all (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values
