"""Files of Lance's text indexes: documents, their lengths, tokens, and posting lists.

:class:`LanceTextIndex` opens them and is the one place that checks the version of the format. The
posting lists of small partitions are kept in memory; others are read from their file.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.file import LanceFileReader

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError
from memwal.reader.cache.lru import LruCache
from memwal.reader.row_set import RowIds
from memwal.reader.unreadable_indexes import is_index_damage, leave_out
from memwal.search.text.fst import TokenMap
from memwal.storage.location import TableLocation
from memwal.util.concurrency import Lazy
from memwal.util.safe_json import read_json

# Scores here do not depend on the other columns of the posting file.
_POSTING_COLUMNS = ["_posting", "_length"]
Numbers = npt.NDArray[np.int64]
Blocks = Sequence[bytes | memoryview]
_FORMATS: Final = ("1", "2")
_INDEX_BYTES = 512 << 20
_POSTING_BYTES = 256 << 20
# The posting lists of so many tokens take a few MiB, and few generations have more. They are read
# at once: there are many generations, and one request per generation and term would add up.
_IN_MEMORY_TOKENS = 4 << 20
# Expected types: the buffers of these columns are read without conversion.
_COLUMN_TYPES: Final = {
    "_rowid": pa.uint64(),
    "_num_tokens": pa.uint32(),
    "_token_fst_bytes": pa.large_binary(),
    "_posting": pa.list_(pa.large_binary()),
    "_length": pa.uint32(),
}


class _FilePostingLists:
    """Posting lists that are read one at a time, by a reader of ``_POSTING_COLUMNS``."""

    nbytes = 0
    in_memory = False

    def __init__(self, reader: LanceFileReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self.count = int(reader.metadata().num_rows)

    def read(self, number: int) -> tuple[Blocks, int]:
        """Return the blocks of a list, by token number, and the number of documents in them."""
        with self._lock:
            row = self._reader.take_rows([number]).to_table()
        return row.column("_posting")[0].as_py(), row.column("_length")[0].as_py()


class _MemoryPostingLists:
    """Posting lists in memory, still encoded: a table with ``_POSTING_COLUMNS``."""

    in_memory = True

    def __init__(self, lists: pa.Table) -> None:
        self.count = lists.num_rows
        postings = pa.concat_arrays(lists.column("_posting").chunks)
        self._ends = postings.offsets.to_numpy()
        blocks = postings.values
        self._starts = pa.Array.from_buffers(
            pa.int64(), len(blocks) + 1, [None, blocks.buffers()[1]], offset=blocks.offset
        ).to_numpy()
        self._data = memoryview(blocks.buffers()[2] or b"")
        self._lengths = lists.column("_length").to_numpy()

    @property
    def nbytes(self) -> int:
        return int(self._ends.nbytes + self._starts.nbytes + len(self._data) + self._lengths.nbytes)

    def read(self, number: int) -> tuple[Blocks, int]:
        first, last = self._ends[number], self._ends[number + 1]
        starts = self._starts[first : last + 1].tolist()
        blocks = [self._data[a:b] for a, b in pairwise(starts)]
        return blocks, int(self._lengths[number])


class TextPartition:
    """Partition of a segment of a text index; its files never change.

    ``rows`` has the row id of each document, in the order of the index, and ``lengths`` the number
    of its tokens. Documents without a token are not in them. ``uri`` identifies the partition.
    """

    def __init__(self, location: TableLocation, uri: str, metadata: Mapping[str, str]) -> None:
        self.uri = uri
        documents = _read_table(_open_file(location, f"{uri}_docs.lance"), uri)
        self.rows: RowIds = documents.column("_rowid").to_numpy()
        self.lengths = documents.column("_num_tokens").to_numpy()
        tokens = _read_table(_open_file(location, f"{uri}_tokens.lance"), uri)
        name = f"{uri}_tokens.lance"
        if tokens.schema.names[0] != "_token_fst_bytes" or tokens.num_rows != 1:
            raise CorruptDataError(f"{name} holds no map of tokens; build the index again")
        lists = _open_file(location, f"{uri}_invert.lance", columns=_POSTING_COLUMNS)
        self._posting_lists: _MemoryPostingLists | _FilePostingLists = (
            _MemoryPostingLists(_read_table(lists, uri))
            if 0 < int(self.lengths.sum(dtype=np.int64)) <= _IN_MEMORY_TOKENS
            else _FilePostingLists(lists)
        )
        self._tokens = TokenMap(
            tokens.column(0)[0].as_py() or b"", lists=self._posting_lists.count, name=name
        )
        self._varint = metadata.get("posting_tail_codec") == "varint_delta_v1"
        self._order: Lazy[Numbers] = Lazy(partial(np.argsort, self.rows, kind="stable"))

    @property
    def nbytes(self) -> int:
        """Memory in bytes, without decoded posting lists, which another cache holds."""
        # The sort order of the rows is made at its first use, and takes as much again.
        documents = 2 * self.rows.nbytes + self.lengths.nbytes
        return int(documents + self._tokens.nbytes + self._posting_lists.nbytes)

    def is_in_memory(self, terms: Sequence[str]) -> bool:
        """Return whether :meth:`postings` of these terms needs no request to storage."""
        return self._posting_lists.in_memory or all(
            _postings_cache.peek((self.uri, term)) is not None for term in terms
        )

    def postings(self, term: str) -> tuple[Numbers, Numbers]:
        """Return the documents with a term (positions in ``rows``, ascending), and how often."""
        return _postings_cache.get((self.uri, term), lambda: self._read_postings(term))

    def fuzzy_terms(self, term: str, *, distance: int, prefix: int) -> Iterator[str]:
        """Iterate over the terms within an edit distance, in byte order."""
        for token, _ in self._tokens.fuzzy_terms(term, distance=distance, prefix=prefix):
            yield token

    def positions_of(self, rows: RowIds) -> Numbers:
        """Return the positions of those ``rows`` that are documents here."""
        if not len(self.rows) or not len(rows):
            return np.empty(0, np.int64)
        order = self._order()
        at = np.searchsorted(self.rows, rows, sorter=order)
        slots = order[np.minimum(at, len(self.rows) - 1)]
        positions: Numbers = slots[self.rows[slots] == rows]
        return positions

    def _read_postings(self, term: str) -> tuple[Numbers, Numbers]:
        number = self._tokens.get(term)
        if number is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        root, _, file = self.uri.partition("/_indices/")
        with _left_out_if_damaged(root, file.partition("/")[0]):
            blocks, length = self._posting_lists.read(number)
            return decode_postings(
                blocks,
                length,
                documents=len(self.rows),
                varint_tail=self._varint,
                name=f"the list of {term!r} in {self.uri}",
            )


class LanceTextIndex:
    """Text index of one segment, read from the files that Lance wrote.

    ``parameters`` are those of the tokenizer and of the build. ``partitions`` is None if the
    version of the format is not supported; texts must then be tokenized again.
    """

    parameters: Mapping[str, object]
    partitions: tuple[TextPartition, ...] | None

    def __init__(self, location: TableLocation, uri: str) -> None:
        with lance_errors(f"reading {uri}"):
            raw = _open_file(location, f"{uri}/metadata.lance").metadata().schema.metadata or {}
            metadata, self.parameters, parts = _parse_metadata(raw, uri)
            supported = (
                metadata.get("format_version") in _FORMATS
                and metadata.get("token_set_format") == "fst"
                and self.parameters.get("block_size", _BLOCK) == _BLOCK
            )
            self.partitions = (
                tuple(TextPartition(location, f"{uri}/part_{n}", metadata) for n in parts)
                if supported
                else None
            )

    @classmethod
    def open(cls, location: TableLocation, root: str, segment: str) -> LanceTextIndex:
        """Open a segment by its UUID, cached, of an index of the dataset at ``root``.

        Raises UnreadableIndexError if a file is gone, or they are not those of a text index.
        """
        uri = f"{root}/_indices/{segment}"
        # A cached segment keeps files open with the credentials it was opened with.
        options = tuple(sorted(location.storage_options.items()))
        with _left_out_if_damaged(root, segment):
            return _index_cache.get((uri, options), lambda: cls(location, uri))

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(partition.nbytes for partition in self.partitions or ())


@contextmanager
def _left_out_if_damaged(root: str, segment: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if not is_index_damage(error):
            raise
        raise leave_out(root, [segment], error) from error


def _parse_metadata(
    raw: Mapping[bytes, bytes], uri: str
) -> tuple[Mapping[str, str], Mapping[str, object], Sequence[int]]:
    """Parse a segment's metadata: all entries, build parameters, and partition numbers."""
    try:
        metadata = {key.decode(): value.decode() for key, value in raw.items()}
        parameters = read_json(metadata["params"])
        parts = read_json(metadata.get("partitions", "[]"))
    except (KeyError, ValueError) as error:
        raise _corrupt_index(uri, error) from error
    if not isinstance(parameters, dict):
        raise _corrupt_index(uri, "its parameters are no object")
    if not isinstance(parts, list) or any(type(n) is not int or n < 0 for n in parts):
        raise _corrupt_index(uri, "its parts are no numbers")
    return metadata, parameters, parts


def _corrupt_index(uri: str, reason: object) -> CorruptDataError:
    return CorruptDataError(f"{uri} is not a text index: {reason}; build it again")


def _read_table(reader: LanceFileReader, uri: str) -> pa.Table:
    rows = reader.read_all().to_table()
    for field in rows.schema:
        kind = field.type
        if pa.types.is_list(kind):
            # The name of the item field does not matter.
            kind = pa.list_(kind.value_type)
        if kind != _COLUMN_TYPES.get(field.name, kind):
            raise _corrupt_index(uri, f"{field.name} is {kind}")
    return rows


def _open_file(
    location: TableLocation, uri: str, *, columns: list[str] | None = None
) -> LanceFileReader:
    return LanceFileReader(uri, columns=columns, **location.lance_arguments())


_index_cache: LruCache[LanceTextIndex] = LruCache(_INDEX_BYTES, lambda index: index.nbytes)
_postings_cache: LruCache[tuple[Numbers, Numbers]] = LruCache(
    _POSTING_BYTES, lambda postings: postings[0].nbytes + postings[1].nbytes
)


# Documents of a block; the last one may have fewer.
_BLOCK = 128

# A block begins with its best score, which depends on the statistics of the index alone.
_SCORE_BYTES = 4
_LANES = 4
_STEPS = _BLOCK // _LANES
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
    """Decode a posting list: numbers of documents, ascending, and how often the token is in each.

    ``length`` is the number of documents in all blocks (128 each, the last may have fewer), and
    ``documents`` the number of those in the index. With ``varint_tail``, the last block, unless it
    is full, has numbers of variable length. CorruptDataError calls the list ``name``.
    """
    full, tail = divmod(length, _BLOCK)
    if len(blocks) != full + (tail > 0):
        raise CorruptDataError(
            f"{name} has {len(blocks)} blocks for {length} documents; build the index again"
        )
    ids = np.empty(length, np.int64)
    counts = np.empty(length, np.int64)
    try:
        _decode_full(blocks[:full], ids[: full * _BLOCK], counts[: full * _BLOCK])
        if tail:
            numbers = _decode_tail(blocks[-1][_SCORE_BYTES:], 2 * tail, varint=varint_tail)
            ids[-tail:] = np.cumsum(numbers[:tail]) if varint_tail else numbers[:tail]
            counts[-tail:] = numbers[tail:]
        if length and not 0 <= ids.min() <= ids.max() < documents:
            raise ValueError(f"it names document {ids.max()} of {documents}")
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptDataError(f"{name} cannot be read: {error}; build the index again") from error
    return ids, counts


def _decode_full(blocks: Sequence[bytes | memoryview], documents: Numbers, counts: Numbers) -> None:
    """Decode full blocks; those with the same bit width are unpacked together."""
    firsts = np.empty(len(blocks), np.int64)
    gaps: dict[int, list[tuple[int, bytes | memoryview]]] = {}
    often: dict[int, list[tuple[int, bytes | memoryview]]] = {}
    for number, block in enumerate(blocks):
        first, width = struct.unpack_from("<IB", block, _SCORE_BYTES)
        firsts[number] = first
        start = _SCORE_BYTES + 5
        stop = start + width * _BLOCK // 8
        gaps.setdefault(width, []).append((number, block[start:stop]))
        width = block[stop]
        often.setdefault(width, []).append((number, block[stop + 1 :]))
    by_block = documents.reshape(-1, _BLOCK)
    _unpack_into(by_block, gaps)
    if len(blocks):
        by_block[:, 0] += firsts
        np.cumsum(by_block, axis=1, out=by_block)
    _unpack_into(counts.reshape(-1, _BLOCK), often)


def _unpack_into(target: Numbers, packed: dict[int, list[tuple[int, bytes | memoryview]]]) -> None:
    for width, parts in packed.items():
        rows = [number for number, _ in parts]
        target[rows] = _unpack([data for _, data in parts], width)


def _unpack(parts: Sequence[bytes | memoryview], width: int) -> Numbers:
    """Unpack 128 numbers of ``width`` bits from each part.

    Numbers stand in four lanes in turn; the words of a lane are every fourth of the part.
    """
    if not width:
        return np.zeros((len(parts), _BLOCK), np.int64)
    if width > _WIDEST:
        raise ValueError(f"numbers of {width} bits")
    size = width * _BLOCK // 8
    words = np.frombuffer(b"".join(part[:size] for part in parts), "<u4")
    lanes = words.reshape(len(parts), width, _LANES).astype(np.uint64)
    bits = np.arange(_STEPS) * width
    word, shift = bits // 32, (bits % 32).astype(np.uint64)[None, :, None]
    both = lanes[:, word] | (lanes[:, np.minimum(word + 1, width - 1)] << np.uint64(32))
    values = (both >> shift) & np.uint64((1 << width) - 1)
    return values.reshape(len(parts), _BLOCK).astype(np.int64)


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
