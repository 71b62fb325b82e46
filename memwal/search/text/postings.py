"""Posting lists of Lance's text indexes: many of them are decoded in one step.

A search reads one list for each of its terms from each partition of an index. Where there are many
small partitions, such as one for each unmerged generation, the calls for a list would take longer
than its documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import CorruptDataError
from memwal.format.values import single_array
from memwal.util.arrays import Numbers

POSTING_COLUMNS: Final = ["_posting", "_length"]
"""Columns of the file of posting lists; scores here do not depend on the others."""

# Documents of a block; the last one may have fewer.
BLOCK_DOCUMENTS: Final = 128

# A block begins with its best score, which depends on the statistics of the index alone.
_SCORE_BYTES: Final = 4
_FIRST_BYTES: Final = 4
_LANES: Final = 4
_STEPS: Final = BLOCK_DOCUMENTS // _LANES
_WIDEST: Final = 32
_VARINT_BYTES: Final = 5
_NUMBER_BYTES: Final = 4

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class PostingList:
    """An encoded posting list: its blocks, one after the other."""

    data: memoryview
    starts: Numbers  # Where each block begins in ``data``, and where the last one ends.
    length: int  # Documents in all blocks: 128 each, the last may have fewer.
    documents: int  # Documents of the index.
    # Whether the last block, unless it is full, has numbers of variable length.
    varint_tail: bool


class StoredPostingLists:
    """All posting lists of a partition in memory, still encoded."""

    def __init__(self, lists: pa.Table) -> None:
        postings = single_array(lists.column("_posting"))
        self._ends = postings.offsets.to_numpy()
        blocks = postings.values
        self._starts = pa.Array.from_buffers(
            pa.int64(), len(blocks) + 1, [None, blocks.buffers()[1]], offset=blocks.offset
        ).to_numpy()
        self._data = memoryview(blocks.buffers()[2] or b"")
        self._lengths = lists.column("_length").to_numpy()

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return int(self._ends.nbytes + self._starts.nbytes + len(self._data) + self._lengths.nbytes)

    def __len__(self) -> int:
        return len(self._lengths)

    def encoded(self, number: int, *, documents: int, varint_tail: bool) -> PostingList:
        """Return a list by its number; the options are those of :class:`PostingList`."""
        first, last = self._ends[number], self._ends[number + 1]
        starts = self._starts[first : last + 1]
        data = self._data[int(starts[0]) : int(starts[-1])]
        return PostingList(
            data, starts - starts[0], int(self._lengths[number]), documents, varint_tail
        )


def decode_postings(lists: Sequence[PostingList], *, name: str) -> tuple[Numbers, Numbers]:
    """Decode posting lists: numbers of documents, ascending in each list, and counts."""
    try:
        return _decode(lists)
    except (ValueError, IndexError) as error:
        raise CorruptDataError(f"{name} cannot be read: {error}; build the index again") from error


def _decode(lists: Sequence[PostingList]) -> tuple[Numbers, Numbers]:
    lengths = np.array([one.length for one in lists], np.int64)
    blocks = np.array([len(one.starts) - 1 for one in lists], np.int64)
    full, tails = np.divmod(lengths, BLOCK_DOCUMENTS)
    if (blocks != full + (tails > 0)).any():
        raise ValueError(f"it has {blocks.tolist()} blocks for {lengths.tolist()} documents")
    ids = np.empty(int(lengths.sum()), np.int64)
    counts = np.empty(len(ids), np.int64)
    if not len(ids):
        return ids, counts
    data = np.frombuffer(b"".join(one.data for one in lists), np.uint8)
    offsets = np.cumsum([0, *(len(one.data) for one in lists)])[:-1].tolist()
    starts, ends = (
        np.concatenate([one.starts[part] + at for one, at in zip(lists, offsets, strict=True)])
        for part in (slice(None, -1), slice(1, None))
    )
    # Of each block the place of its first document in the result.
    first_blocks = np.cumsum(blocks) - blocks
    places = np.repeat(np.cumsum(lengths) - lengths - BLOCK_DOCUMENTS * first_blocks, blocks)
    places += BLOCK_DOCUMENTS * np.arange(len(places))
    is_full = np.ones(len(places), np.bool_)
    is_full[(first_blocks + full)[tails > 0]] = False
    if is_full.any():
        at = places[is_full, None] + np.arange(BLOCK_DOCUMENTS)
        ids[at], counts[at] = _decode_full(data, starts[is_full], ends[is_full])
    is_varint = np.array([one.varint_tail for one in lists], np.bool_)[tails > 0]
    for varint in (True, False):
        chosen = np.flatnonzero(~is_full)[is_varint == varint]
        if len(chosen):
            sizes = tails[tails > 0][is_varint == varint]
            at = _ranges(places[chosen], sizes)
            decode = _decode_varint_tails if varint else _decode_plain_tails
            ids[at], counts[at] = decode(data, starts[chosen] + _SCORE_BYTES, ends[chosen], sizes)
    limits = np.repeat([one.documents for one in lists], lengths)
    if (ids < 0).any() or (ids >= limits).any():
        raise ValueError("it names a document that the index does not have")
    return ids, counts


def _decode_full(data: Bytes, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Decode full blocks: documents and counts, shape (blocks, 128)."""
    at = starts + _SCORE_BYTES
    firsts = _numbers_at(data, at, _FIRST_BYTES)[:, 0]
    at += _FIRST_BYTES
    ids, at = _unpack(data, at, ends)
    counts, _ = _unpack(data, at, ends)
    ids[:, 0] += firsts.astype(np.int64)
    return np.cumsum(ids, axis=1), counts


def _unpack(data: Bytes, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Unpack 128 numbers from each start: a byte with their width in bits, then the numbers.

    Numbers stand in four lanes in turn; the words of a lane are every fourth. Returns the numbers,
    shape (starts, 128), and where they end.
    """
    widths = data[starts].astype(np.int64)
    stops = starts + 1 + widths * (BLOCK_DOCUMENTS // 8)
    if (widths > _WIDEST).any() or (stops > ends).any():
        raise ValueError("a block has numbers that are too wide or too few")
    values = np.zeros((len(starts), BLOCK_DOCUMENTS), np.int64)
    for width in np.unique(widths[widths > 0]).tolist():
        rows = np.flatnonzero(widths == width)
        words = _numbers_at(data, starts[rows] + 1, width * BLOCK_DOCUMENTS // 8)
        lanes = words.reshape(len(rows), width, _LANES)
        bits = np.arange(_STEPS) * width
        word, shift = bits // 32, (bits % 32).astype(np.uint64)[None, :, None]
        both = lanes[:, word] | (lanes[:, np.minimum(word + 1, width - 1)] << np.uint64(32))
        numbers = (both >> shift) & np.uint64((1 << width) - 1)
        values[rows] = numbers.reshape(len(rows), BLOCK_DOCUMENTS)
    return values, stops


def _numbers_at(data: Bytes, starts: Numbers, size: int) -> npt.NDArray[np.uint64]:
    """Return the 32-bit numbers in ``size`` bytes from each start, one row for each."""
    numbers: npt.NDArray[np.uint64] = (
        data[starts[:, None] + np.arange(size)].view("<u4").astype(np.uint64)
    )
    return numbers


def _decode_varint_tails(
    data: Bytes, starts: Numbers, ends: Numbers, counts: Numbers
) -> tuple[Numbers, Numbers]:
    """Decode tails in numbers of variable length: the gaps between documents, then the counts."""
    sizes = ends - starts
    if (sizes < 0).any():
        raise ValueError("a block is too short")
    raw = data[_ranges(starts, sizes)]
    last_bytes = np.flatnonzero(raw < 0x80)
    tail_ends = np.cumsum(sizes)
    tail_starts = tail_ends - sizes
    tail = np.searchsorted(tail_ends, last_bytes, side="right")
    rank = np.arange(len(last_bytes)) - np.searchsorted(last_bytes, tail_starts)[tail]
    first_bytes = np.concatenate([[0], last_bytes[:-1] + 1])[: len(last_bytes)]
    first_bytes = np.maximum(first_bytes, tail_starts[tail])
    used = rank < 2 * counts[tail]
    if np.count_nonzero(used) < 2 * counts.sum():
        raise ValueError("a block has too few numbers")
    first_bytes, lengths = first_bytes[used], (last_bytes - first_bytes)[used] + 1
    if lengths.max() > _VARINT_BYTES:
        raise ValueError("a number is too long")
    numbers = np.zeros(len(lengths), np.int64)
    for byte in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > byte)
        part = raw[first_bytes[longer] + byte].astype(np.int64) & 0x7F
        numbers[longer] |= part << (7 * byte)
    gaps, often = _halves(numbers, counts)
    summed = np.cumsum(gaps)
    firsts = np.cumsum(counts) - counts
    return summed - np.repeat((summed - gaps)[firsts], counts), often


def _decode_plain_tails(
    data: Bytes, starts: Numbers, ends: Numbers, counts: Numbers
) -> tuple[Numbers, Numbers]:
    sizes = 2 * _NUMBER_BYTES * counts
    if (starts + sizes > ends).any():
        raise ValueError("a block has too few numbers")
    numbers = data[_ranges(starts, sizes)].view("<u4").astype(np.int64)
    return _halves(numbers, counts)


def _halves(numbers: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Divide the numbers of tails, twice as many as ``counts`` each, into their halves."""
    starts = 2 * (np.cumsum(counts) - counts)
    return (
        numbers[_ranges(starts, counts)],
        numbers[_ranges(starts + counts, counts)],
    )


def _ranges(starts: Numbers, counts: Numbers) -> Numbers:
    """Concatenate ranges of numbers: of each the first, and how many it has."""
    before = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum()), dtype=np.int64)
    numbers += np.repeat(starts - before, counts)
    return numbers
