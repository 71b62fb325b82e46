"""Decoder of posting lists: documents that contain a token, and how often."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from memwal.errors import CorruptDataError

Numbers = np.ndarray[Any, np.dtype[np.int64]]

BLOCK = 128
"""Documents of a block; the last one may have fewer."""

# A block begins with its best score, which depends on the statistics of the index alone.
_SCORE_BYTES = 4
_LANES = 4
_STEPS = BLOCK // _LANES
_WIDEST = 32
_VARINT_BYTES = 5


def decode_postings(
    blocks: Sequence[bytes | memoryview],
    length: int,
    *,
    documents: int,
    varint_tail: bool,
    name: str,
) -> tuple[Numbers, Numbers]:
    """Decode a posting list.

    Parameters
    ----------
    blocks : sequence of bytes or memoryview
        As the index holds them, 128 documents each.
    length : int
        Documents of all blocks.
    documents : int
        How many there are in the index; their numbers are smaller.
    varint_tail : bool
        Whether the last block, unless it is full, has numbers of variable length.
    name : str
        What error messages call it.

    Returns
    -------
    numpy.ndarray of int64, shape (length,)
        Numbers of the documents, ascending.
    numpy.ndarray of int64, shape (length,)
        How often the token is in each.

    Raises
    ------
    CorruptDataError
        The bytes are no posting list.
    """
    full, tail = divmod(length, BLOCK)
    if len(blocks) != full + (tail > 0):
        raise CorruptDataError(
            f"{name} has {len(blocks)} blocks for {length} documents; build the index again"
        )
    found = np.empty(length, np.int64)
    counts = np.empty(length, np.int64)
    try:
        _decode_full(blocks[:full], found[: full * BLOCK], counts[: full * BLOCK])
        if tail:
            numbers = _decode_tail(blocks[-1][_SCORE_BYTES:], 2 * tail, varint=varint_tail)
            found[-tail:] = np.cumsum(numbers[:tail]) if varint_tail else numbers[:tail]
            counts[-tail:] = numbers[tail:]
        if length and not 0 <= found.min() <= found.max() < documents:
            raise ValueError(f"it names document {found.max()} of {documents}")
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptDataError(f"{name} cannot be read: {error}; build the index again") from error
    return found, counts


def _decode_full(blocks: Sequence[bytes | memoryview], documents: Numbers, counts: Numbers) -> None:
    """Decode full blocks; those with the same bit width are unpacked together."""
    firsts = np.empty(len(blocks), np.int64)
    gaps: dict[int, list[tuple[int, bytes | memoryview]]] = {}
    often: dict[int, list[tuple[int, bytes | memoryview]]] = {}
    for number, block in enumerate(blocks):
        first, width = struct.unpack_from("<IB", block, _SCORE_BYTES)
        firsts[number] = first
        start = _SCORE_BYTES + 5
        stop = start + width * BLOCK // 8
        gaps.setdefault(width, []).append((number, block[start:stop]))
        width = block[stop]
        often.setdefault(width, []).append((number, block[stop + 1 :]))
    by_block = documents.reshape(-1, BLOCK)
    _unpack_into(by_block, gaps)
    if len(blocks):
        by_block[:, 0] += firsts
        np.cumsum(by_block, axis=1, out=by_block)
    _unpack_into(counts.reshape(-1, BLOCK), often)


def _unpack_into(target: Numbers, packed: dict[int, list[tuple[int, bytes | memoryview]]]) -> None:
    for width, parts in packed.items():
        rows = [number for number, _ in parts]
        target[rows] = _unpack([data for _, data in parts], width)


def _unpack(parts: Sequence[bytes | memoryview], width: int) -> Numbers:
    """Unpack 128 numbers of ``width`` bits from each part.

    Numbers stand in four lanes in turn; the words of a lane are every fourth of the part.
    """
    if not width:
        return np.zeros((len(parts), BLOCK), np.int64)
    if width > _WIDEST:
        raise ValueError(f"numbers of {width} bits")
    size = width * BLOCK // 8
    words = np.frombuffer(b"".join(part[:size] for part in parts), "<u4")
    lanes = words.reshape(len(parts), width, _LANES).astype(np.uint64)
    bits = np.arange(_STEPS) * width
    word, shift = bits // 32, (bits % 32).astype(np.uint64)[None, :, None]
    both = lanes[:, word] | (lanes[:, np.minimum(word + 1, width - 1)] << np.uint64(32))
    values = (both >> shift) & np.uint64((1 << width) - 1)
    return values.reshape(len(parts), BLOCK).astype(np.int64)


def _decode_tail(data: bytes | memoryview, count: int, *, varint: bool) -> Numbers:
    if not varint:
        return np.frombuffer(data, "<u4", count).astype(np.int64)
    raw = np.frombuffer(data, np.uint8).astype(np.int64)
    ends = np.flatnonzero(raw < 0x80)[:count]
    if len(ends) < count:
        raise ValueError(f"{count} numbers were expected and {len(ends)} are there")
    used = int(ends[-1]) + 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (ends - starts >= _VARINT_BYTES).any():
        raise ValueError("a number is too long")
    which = np.repeat(np.arange(count), ends - starts + 1)
    shifts = 7 * (np.arange(used) - starts[which])
    numbers: Numbers = np.bincount(
        which, weights=((raw[:used] & 0x7F) << shifts).astype(np.float64), minlength=count
    ).astype(np.int64)
    return numbers
