"""The primary-key bloom filters of a flushed generation.

Split-block filters with Parquet's salts, over SipHash-1-3 of the key columns as Lance hashes them.
That of Lance always has 32,768 bytes: 1,024 blocks of eight 32-bit words. With 8,192 keys its
false-positive rate is 0.06 %; beyond some ten thousand keys it fills up, and with 100,000 it rules
out one key in three. So generations of more keys have a sized filter as well, a file of our own
that other clients do not read: with 16 bits for each key, and a checksum, since a reader that
believed a damaged one would not find its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import siphash24
import xxhash

from memwal.errors import CorruptDataError
from memwal.format import keys
from memwal.format.keys import Fixed, Piece
from memwal.util.arrays import Hashes, Mask

FILTER_BYTES = 32_768

SIZED_FILTER_KEYS: Final = 20_000
"""Generations of more keys have a sized filter: Lance's has fewer than 13 bits for each of them."""

_BITS_PER_KEY: Final = 16
# A sized filter: this, the blocks, and the xxh64 of both.
_SIZED_START: Final = b"memwal bloom 1\n\0"
_CHECKSUM_BYTES: Final = 8

# The filter spans this many disk pages. That 200 keys all leave one page empty happens less than
# once in ten billion cases, so an empty page of a filter with more keys was never written.
_PAGES = 8
_MANY_BITS = 200 * 8

_BLOCK_BYTES = 32
_BLOCK_BITS = 8 * _BLOCK_BYTES
_SALTS = np.array(
    [
        *(0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D),
        *(0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31),
    ],
    np.uint32,
)[:, np.newaxis]
_SALTS_OF_ONE: Final[list[int]] = _SALTS.ravel().tolist()
_WORDS = np.arange(8, dtype=np.int64)[:, np.newaxis] * 32
# A longer row, or any of so few rows, is hashed faster by the library than by steps of numpy.
_LONG_WORDS = 32
_FEW_ROWS = 64
_SIP_KEY = bytes(16)
# The state of SipHash with the key (0, 0).
_SIP_STATE = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


class FilterBuilder:
    """Builds the fixed and the sized bloom filter of ``keys`` keys, batch by batch."""

    def __init__(self, keys: int) -> None:
        self._fixed = _empty_bits(FILTER_BYTES // _BLOCK_BYTES)
        self._sized = None
        if keys > SIZED_FILTER_KEYS:
            self._sized = _empty_bits(-(-keys * _BITS_PER_KEY // _BLOCK_BITS))

    def add(self, key_columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Add keys, whose columns are in key order; the empty key of every row without columns.

        Raises InvalidInputError if the lengths differ.
        """
        for columns in _slices(key_columns):
            hashes = _hash_slice(columns)
            within = _bits_within(hashes) + _WORDS
            for bits in (self._fixed, self._sized):
                if bits is None:
                    continue
                first = _block_numbers(hashes, len(bits) // _BLOCK_BITS) * _BLOCK_BITS
                for word in within:
                    bits[word + first] = True

    def bloom_filter(self) -> bytes:
        """Return the content of ``bloom_filter.bin``."""
        return np.packbits(self._fixed, bitorder="little").tobytes()

    def sized_filter(self) -> bytes | None:
        """Return the content of the file of the sized filter; None for few keys."""
        if self._sized is None:
            return None
        content = _SIZED_START + np.packbits(self._sized, bitorder="little").tobytes()
        return content + xxhash.xxh64_digest(content)


def _empty_bits(blocks: int) -> Mask:
    return np.zeros(blocks * _BLOCK_BITS, np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class BloomFilter:
    """A bloom filter: its blocks, as they are stored."""

    data: bytes

    @classmethod
    def from_bytes(cls, data: bytes) -> BloomFilter:
        """Check the content of a ``bloom_filter.bin``.

        Raises CorruptDataError if it does not have :data:`FILTER_BYTES` bytes, or some were never
        written.
        """
        if len(data) != FILTER_BYTES:
            raise CorruptDataError(
                f"a bloom filter has {len(data)} bytes instead of {FILTER_BYTES}; memwal verify "
                "--repair writes it anew"
            )
        bloom = cls(data)
        pages = bloom._bytes.reshape(_PAGES, -1).any(axis=1)
        if not pages.any() or (not pages.all() and bloom.bits_set > _MANY_BITS):
            raise CorruptDataError(
                "parts of a bloom filter were never written: keys would seem to be absent; memwal "
                "verify --repair writes it anew"
            )
        return bloom

    @classmethod
    def from_sized(cls, content: bytes) -> BloomFilter:
        """Read the file of a sized filter; raises CorruptDataError if it is damaged."""
        body, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
        blocks = body.removeprefix(_SIZED_START)
        if (
            len(blocks) != len(body) - len(_SIZED_START)
            or xxhash.xxh64_digest(body) != checksum
            or not blocks
            or len(blocks) % _BLOCK_BYTES
        ):
            raise CorruptDataError(
                "a sized bloom filter is damaged, and is not used; memwal verify --repair writes "
                "it anew"
            )
        return cls(blocks)

    @property
    def bits_set(self) -> int:
        """Number of bits that are set."""
        return int(np.bitwise_count(self._bytes).sum(dtype=np.int64))

    def might_contain(self, key_columns: Sequence[pa.Array | pa.ChunkedArray]) -> Mask:
        """Return for each key whether the generation may contain it. False is certain.

        The columns are in key order, with exactly the types of the table: an int32 and an int64 of
        the same value hash differently. Without columns there is one key, the empty one. Raises
        InvalidInputError if the lengths differ.
        """
        return self.might_contain_hashes(hash_keys(key_columns))

    def might_contain_hashes(self, hashes: Hashes) -> Mask:
        """Return the same for keys by their :func:`hash_keys`."""
        blocks = np.frombuffer(self.data, "<u4").reshape(-1, _BLOCK_BYTES // 4)
        hits = np.empty(len(hashes), np.bool_)
        for start in range(0, len(hashes), keys.SLICE_ROWS):
            part = hashes[start : start + keys.SLICE_ROWS]
            words = blocks[_block_numbers(part, len(blocks))].T
            hits[start : start + keys.SLICE_ROWS] = _are_set(part, words)
        return hits

    @property
    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.data, np.uint8)


def which_might_contain(filters: Sequence[BloomFilter | None], hashes: Hashes) -> Mask:
    """Return for each filter whether any of a few keys may be in it; of None, every key may.

    The eight bits of a key are compared as one integer: that takes a third of the time of the calls
    of numpy for a few filters, and half as long again for a thousand. Many keys are tested faster
    by :meth:`BloomFilter.might_contain_hashes` of one filter after the other.
    """
    keys_bits = [(key >> 32, _bits_of(key & 0xFFFFFFFF)) for key in hashes.tolist()]
    might = np.zeros(len(filters), np.bool_)
    for at, bloom in enumerate(filters):
        if bloom is None:
            might[at] = len(hashes) > 0
            continue
        data = bloom.data
        blocks = len(data) // _BLOCK_BYTES
        for upper, bits in keys_bits:
            start = (upper * blocks >> 32) * _BLOCK_BYTES
            block = int.from_bytes(data[start : start + _BLOCK_BYTES], "little")
            if block & bits == bits:
                might[at] = True
                break
    return might


def _bits_of(lower: int) -> int:
    """Return the bits of a key, by the lower half of its hash, in a block as one integer."""
    bits = 0
    for word, salt in enumerate(_SALTS_OF_ONE):
        bits |= 1 << (32 * word + ((lower * salt & 0xFFFFFFFF) >> 27))
    return bits


def hash_keys(key_columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """Return the hash of each key, which is the same for the filters of all generations.

    The columns are those of :meth:`BloomFilter.might_contain`.
    """
    hashes = [_hash_slice(columns) for columns in _slices(key_columns)]
    return np.concatenate(hashes) if hashes else np.empty(0, np.uint64)


def _slices(key_columns: Sequence[pa.Array | pa.ChunkedArray]) -> Iterable[list[pa.Array]]:
    """Cut key columns; a table without a primary key has one key, which is empty."""
    return keys.slices(key_columns) if key_columns else [[]]


def _are_set(hashes: Hashes, words: npt.NDArray[np.uint32]) -> Mask:
    """Return whether all bits of each hash are set in the words of its block, shape (8, blocks)."""
    wanted = np.uint32(1) << _bits_within(hashes)
    are_set: Mask = ((words & wanted) == wanted).all(axis=0)
    return are_set


def _bits_within(hashes: Hashes) -> npt.NDArray[np.uint32]:
    """Return the bit of each hash in each word of its block, shape (8, hashes)."""
    bits: npt.NDArray[np.uint32] = (hashes.astype(np.uint32) * _SALTS) >> np.uint32(27)
    return bits


def _block_numbers(hashes: Hashes, blocks: int) -> npt.NDArray[np.int64]:
    """Return the block of each hash."""
    return (((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)).view(np.int64)


def _hash_slice(columns: Sequence[pa.Array]) -> Hashes:
    if not columns:
        # The rows of a table without a primary key all have the empty key in Lance's filter.
        return np.frombuffer(siphash24.siphash13(b"", key=_SIP_KEY).digest(), "<u8")
    pieces = [piece for column in columns for piece in _pieces(column)]
    # SipHash reads words of 8 bytes; the last word has the rest, and the length as its top byte.
    if all(isinstance(piece, Fixed) and piece.present is None for piece in pieces):
        return _hash_full([piece.values for piece in pieces if isinstance(piece, Fixed)])
    lengths = keys.row_lengths(pieces)
    words = lengths // 8 + 1
    ends = np.cumsum(words)
    starts = ends - words
    data = np.zeros(int(ends[-1]) * 8, np.uint8)
    keys.write_rows(pieces, out=data, starts=starts * 8)
    many = len(words) > _FEW_ROWS
    is_short = (words <= _LONG_WORDS) & many
    hashes = np.empty(len(words), np.uint64)
    for row in np.flatnonzero(~is_short).tolist():
        start = int(starts[row]) * 8
        key = data[start : start + int(lengths[row])]
        hashes[row] = int.from_bytes(siphash24.siphash13(key, key=_SIP_KEY).digest(), "little")
    if many:
        data[ends * 8 - 1] = lengths.astype(np.uint8)
        starts, words = starts[is_short], words[is_short]
        order = np.argsort(-words, kind="stable")
        short = np.empty(len(order), np.uint64)
        short[order] = _siphash(len(order), _by_word(data.view("<u8"), starts[order], words[order]))
        hashes[is_short] = short
    return hashes


def _hash_full(values: Sequence[keys.Bytes]) -> Hashes:
    """Hash rows of the same number of bytes, which stand side by side in some arrays."""
    joined = np.concatenate(values, axis=1)
    rows, width = joined.shape
    if rows <= _FEW_ROWS:
        digests = [siphash24.siphash13(row, key=_SIP_KEY).digest() for row in joined]
        return np.frombuffer(b"".join(digests), "<u8")
    data = np.zeros((rows, (width // 8 + 1) * 8), np.uint8)
    data[:, :width] = joined
    data[:, -1] = width & 0xFF
    return _siphash(rows, np.ascontiguousarray(data.view("<u8").T))


def _by_word(data: Hashes, starts: keys.Counts, words: keys.Counts) -> Iterator[Hashes]:
    """Yield the first words of the rows, the second ones, and so on, of rows that have them.

    Rows are sorted by falling number of words, so that those with more words are a prefix.
    """
    for step in range(int(words.max(initial=0))):
        active = int(np.searchsorted(-words, -step, side="left"))
        yield data[starts[:active] + step]


def _pieces(column: pa.Array) -> list[Piece]:
    valid = keys.validity(column)
    flags = np.zeros(len(column), np.uint8) if valid is None else (~valid).astype(np.uint8)
    return [Fixed(flags[:, np.newaxis]), *_value_pieces(column, valid)]


def _value_pieces(column: pa.Array, valid: Mask | None) -> list[Piece]:
    if column.type in (pa.int32(), pa.int64()):
        return [Fixed(_little_endian(keys.integers(column)), valid)]
    if column.type == pa.string():
        end = np.full((len(column), 1), 0xFF, np.uint8)
        return [keys.byte_runs(column), Fixed(end, valid)]
    if column.type == pa.binary():
        runs = keys.byte_runs(column)
        return [Fixed(_little_endian(runs.counts), valid), runs]
    # For every other type Lance hashes only the null flag.
    return []


def _little_endian(values: npt.NDArray[np.integer]) -> keys.Bytes:
    width = values.dtype.itemsize
    return values.astype(f"<i{width}").view(np.uint8).reshape(-1, width)


def _siphash(rows: int, words: Iterable[Hashes]) -> Hashes:
    """Return SipHash-1-3 with the key (0, 0) of rows, all side by side.

    ``words`` are the first words of the rows, the second ones, and so on, each of a prefix of rows.
    """
    state = tuple(np.full(rows, value, np.uint64) for value in _SIP_STATE)
    for word in words:
        v0, v1, v2, v3 = (part[: len(word)] for part in state)
        v3 ^= word
        _sip_round(v0, v1, v2, v3)
        v0 ^= word
    v0, v1, v2, v3 = state
    v2 ^= np.uint64(0xFF)
    for _ in range(3):
        _sip_round(v0, v1, v2, v3)
    hashes: Hashes = v0 ^ v1 ^ v2 ^ v3
    return hashes


def _sip_round(v0: Hashes, v1: Hashes, v2: Hashes, v3: Hashes) -> None:
    v0 += v1
    _rotate(v1, 13)
    v1 ^= v0
    _rotate(v0, 32)
    v2 += v3
    _rotate(v3, 16)
    v3 ^= v2
    v0 += v3
    _rotate(v3, 21)
    v3 ^= v0
    v2 += v1
    _rotate(v1, 17)
    v1 ^= v2
    _rotate(v2, 32)


def _rotate(values: Hashes, count: int) -> None:
    high = values >> np.uint64(64 - count)
    values <<= np.uint64(count)
    values |= high
