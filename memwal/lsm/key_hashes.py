"""Cheap hashes of keys, and tables of a power of two that are addressed by them.

A hash is 64 bits, of which the upper ones tell keys apart. Text and binary values are hashed by few
of their bytes: the caller compares values with the same hash. Nothing is stored or sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.format.keys import Runs, byte_runs, integers
from memwal.lsm.memtable.hashing import hash_rows
from memwal.util.arrays import Hashes, Positions

_WORD = 8
# Mask of a word by the number of its bytes that belong to the value.
_TAILS = np.array([(1 << (8 * count)) - 1 for count in range(_WORD + 1)], np.uint64)
# Odd numbers with bits in no order.
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
ROUNDS = tuple(
    np.uint64(number) for number in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
)
"""Factors for :func:`mixed`."""


def slots(hashes: Hashes, table: npt.NDArray[np.generic]) -> Positions:
    """Return the slots of a table of a power of two, by the upper bits of hashes."""
    shift = np.uint64(65 - len(table).bit_length())
    return (hashes >> shift).view(np.int64)


def mixed(hashes: Hashes, factor: np.uint64) -> Hashes:
    """Return hashes whose upper bits are others. Different hashes stay different."""
    return (hashes ^ (hashes >> np.uint64(32))) * factor


def signed(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the values of an integer column in 64 bits; unsigned ones as they are stored."""
    numbers = integers(values)
    if numbers.dtype == np.uint64:
        return numbers.view(np.int64)
    return numbers.astype(np.int64, copy=False)


def hash_tails(values: pa.Array) -> Hashes:
    """Hash integers and bool, or the last bytes of text and binary values.

    Different integers have different hashes.
    """
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if pa.types.is_integer(values.type):
        return signed(values).view(np.uint64) * _FIRST
    if not len(values):
        return np.empty(0, np.uint64)
    words = _FixedWidth.of(values)
    if words is not None:
        hashes = words.last + np.uint64(words.width)
    else:
        runs = byte_runs(values)
        hashes = _tails(runs) + runs.counts.view(np.uint64)
    hashes *= _FIRST
    return hashes


def hash_ends(values: pa.Array) -> Hashes:
    """Hash the first and last bytes of text and binary values."""
    if not len(values):
        return np.empty(0, np.uint64)
    words = _FixedWidth.of(values)
    if words is not None:
        hashes, last = words.first * _SECOND, words.last
        hashes += np.uint64(words.width)
    else:
        runs = byte_runs(values)
        hashes, last = _heads(runs) * _SECOND, _tails(runs)
        hashes += runs.counts.view(np.uint64)
    # The upper half has no trace of the first bits of what was multiplied last.
    hashes ^= hashes >> np.uint64(32)
    hashes += last
    hashes *= _FIRST
    return hashes


def hash_whole(values: pa.Array) -> Hashes:
    """Hash all bytes of values."""
    return hash_rows([values])


@dataclass(frozen=True, slots=True, eq=False)
class _FixedWidth:
    """The first and the last eight bytes of values that all have as many bytes, in place."""

    first: Hashes
    last: Hashes
    width: int

    @classmethod
    def of(cls, values: pa.Array) -> Self | None:
        """Return the words; None if the values differ in length, or are shorter than a word."""
        if values.null_count:
            return None
        _, offsets, data = values.buffers()
        is_large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
        stored = np.frombuffer(offsets, np.int64 if is_large else np.int32)
        ends = stored[values.offset : values.offset + len(values) + 1]
        start, width = int(ends[0]), int(ends[1] - ends[0])
        if width < _WORD or not (np.diff(ends) == width).all():
            return None
        first, last = (
            np.ndarray((len(values),), "<u8", data, start + at, (width,))
            for at in (0, width - _WORD)
        )
        return cls(first, last, width)


def _heads(runs: Runs) -> Hashes:
    """Return the first eight bytes of each run, or all if it is shorter."""
    return _words(runs)[runs.starts] & _TAILS[np.minimum(runs.counts, _WORD)]


def _tails(runs: Runs) -> Hashes:
    """Return the last eight bytes of each run, or all if it is shorter."""
    words = _words(runs)[runs.starts + np.maximum(runs.counts - _WORD, 0)]
    return words & _TAILS[np.minimum(runs.counts, _WORD)]


def _words(runs: Runs) -> Hashes:
    """Return the word that starts at each byte: values need not be aligned."""
    padded = np.concatenate([runs.data, np.zeros(_WORD, np.uint8)])
    return np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))
