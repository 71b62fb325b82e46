"""Murmur3 (x86, 32 bit, seed 0) over whole numpy arrays, and over one value.

Two dialects are needed: the hash as published, and Apache Spark's, which mixes the bytes after the
last whole word of 4 bytes in one by one, sign-extended. They agree where the length divides by 4.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_MASK: Final = 0xFFFFFFFF


def mix(hashes: Words, words: Words) -> Words:
    """Take one word of 4 bytes per row into the hashes."""
    words = scramble(words)
    words ^= hashes
    words = (words << np.uint32(13)) | (words >> np.uint32(19))
    words *= np.uint32(5)
    words += np.uint32(0xE6546B64)
    return words


def scramble(words: Words) -> Words:
    """Spread the bits of words; what :func:`mix` does first, and all that is done to a tail."""
    words = words * _C1
    words = (words << np.uint32(15)) | (words >> np.uint32(17))
    words *= _C2
    return words


def finish(hashes: Words, lengths: Words | np.uint32) -> Words:
    """Take in the lengths in bytes, and let every bit depend on every other."""
    hashes = hashes ^ lengths
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def mix_64(hashes: Words, bits: NDArray[np.uint64]) -> Words:
    """Take 8 bytes per row into the hashes, the low word first."""
    low, high = bits.view("<u4").reshape(-1, 2).T
    return mix(mix(hashes, low), high)


def hash_64(bits: NDArray[np.uint64]) -> Words:
    """Hash values of 8 bytes."""
    return finish(mix_64(np.zeros(len(bits), dtype=np.uint32), bits), np.uint32(8))


def hash_32(words: Words) -> Words:
    """Hash values of 4 bytes."""
    return finish(mix(np.zeros(len(words), dtype=np.uint32), words), np.uint32(4))


def hash_bytes(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    spark: bool = False,
) -> Words:
    """Hash the byte ranges ``data[start : start + length]``.

    Parameters
    ----------
    data : numpy.ndarray of uint8
    starts, lengths : numpy.ndarray of int64, same shape
    spark : bool, default False
        Spark's dialect instead of the published one.

    Returns
    -------
    numpy.ndarray of uint32, shape (len(starts),)

    Notes
    -----
    The time grows with the longest range of a call.
    """
    counts = lengths // 4
    longest = int(counts.max(initial=0))
    # Numpy sorts integers of 16 bits by radix, which takes a tenth of the time.
    order = np.argsort(counts.astype(np.uint16) if longest < 65_536 else counts, kind="stable")
    ordered_counts, ordered_starts = counts[order], starts[order]
    hashes = np.zeros(len(starts), dtype=np.uint32)
    # Element i is the little-endian word that begins at byte i.
    words = np.ndarray((max(len(data) - 3, 0),), dtype="<u4", buffer=data, strides=(1,))
    for position in range(longest):
        # The rows that have a word at this position stand together at the end.
        active = int(np.searchsorted(ordered_counts, position, side="right"))
        at = ordered_starts[active:] + 4 * position
        hashes[active:] = mix(hashes[active:], words[at])
    ordered_lengths = lengths[order]
    tails = ordered_starts + (ordered_lengths & ~3)
    take_tails = _take_tails_as_spark if spark else _take_tails
    take_tails(hashes, data, tails, ordered_lengths & 3)
    result = np.empty_like(hashes)
    result[order] = finish(hashes, ordered_lengths.astype(np.uint32))
    return result


def _take_tails(
    hashes: Words, data: NDArray[np.uint8], tails: NDArray[np.int64], left: NDArray[np.int64]
) -> None:
    words = np.zeros(len(hashes), dtype=np.uint32)
    for position in range(3):
        (active,) = np.nonzero(left > position)
        words[active] |= data[tails[active] + position].astype(np.uint32) << np.uint32(8 * position)
    # Without a tail the word is 0, and so is what is left of it.
    hashes ^= scramble(words)


def _take_tails_as_spark(
    hashes: Words, data: NDArray[np.uint8], tails: NDArray[np.int64], left: NDArray[np.int64]
) -> None:
    for position in range(3):
        (active,) = np.nonzero(left > position)
        signed = data[tails[active] + position].view(np.int8).astype(np.int32)
        hashes[active] = mix(hashes[active], signed.view(np.uint32))


def hash_one(value: bytes, *, spark: bool = False) -> int:
    """Hash one value: for a few bytes this takes a tenth of what numpy's calls take.

    Returns
    -------
    int
        From 0 to 2**32 - 1.
    """
    length = len(value)
    whole = length & ~3
    hashed = 0
    for (word,) in struct.iter_unpack("<I", value[:whole]):
        hashed = _mix_one(hashed, word)
    tail = value[whole:]
    if spark:
        for byte in tail:
            hashed = _mix_one(hashed, byte | 0xFFFFFF00 if byte & 0x80 else byte)
    elif tail:
        hashed ^= _scramble_one(int.from_bytes(tail, "little"))
    hashed ^= length & _MASK
    hashed = ((hashed ^ hashed >> 16) * 0x85EBCA6B) & _MASK
    hashed = ((hashed ^ hashed >> 13) * 0xC2B2AE35) & _MASK
    return hashed ^ hashed >> 16


def _scramble_one(word: int) -> int:
    word = (word * 0xCC9E2D51) & _MASK
    word = (word << 15 | word >> 17) & _MASK
    return (word * 0x1B873593) & _MASK


def _mix_one(hashed: int, word: int) -> int:
    word = _scramble_one(word) ^ hashed
    word = (word << 13 | word >> 19) & _MASK
    return (word * 5 + 0xE6546B64) & _MASK


def canonical_bits(bits: NDArray[Any]) -> NDArray[Any]:
    """Give -0 the bits of 0 and every NaN the same bits, without touching a float.

    Parameters
    ----------
    bits : numpy.ndarray of uint32 or uint64
        Floats of that width as their bits.
    """
    infinity, nan = _SPECIAL[bits.dtype.itemsize]
    magnitudes = bits & bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
    return np.where(magnitudes == 0, magnitudes, np.where(magnitudes > infinity, nan, bits)).astype(
        bits.dtype, copy=False
    )


_SPECIAL: Final = {
    4: (0x7F800000, 0x7FC00000),
    8: (0x7FF0000000000000, 0x7FF8000000000000),
}
