"""Files of text indexes: documents, their lengths, tokens, and posting lists.

Short posting lists are kept in memory; others are read from their file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError
from memwal.reader.cache.lru import LruCache
from memwal.reader.row_set import RowIds
from memwal.search.text.fst import TokenMap
from memwal.search.text.postings import BLOCK, Numbers, decode_postings
from memwal.storage.location import TableLocation
from memwal.util.safe_json import read_json

POSTING_COLUMNS = ["_posting", "_length"]
"""What has to be read of the file; the others hold what scores of ours do not depend on."""

Blocks = Sequence[bytes | memoryview]


class PostingLists(Protocol):
    """Posting lists by the number of their token."""

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""

    @property
    def held(self) -> bool:
        """Whether a list is read without asking storage."""

    @property
    def count(self) -> int:
        """How many there are."""

    def read(self, number: int) -> tuple[Blocks, int]:
        """Blocks of a list, and how many documents they hold."""


class StoredLists:
    """Lists that are read when they are asked for.

    Parameters
    ----------
    reader : LanceFileReader
        Of the file, with :data:`POSTING_COLUMNS`.
    """

    nbytes = 0
    held = False

    def __init__(self, reader: LanceFileReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self.count = int(reader.metadata().num_rows)

    def read(self, number: int) -> tuple[Blocks, int]:
        """Blocks of a list, and how many documents they hold."""
        with self._lock:
            row = self._reader.take_rows([number]).to_table()
        return row.column("_posting")[0].as_py(), row.column("_length")[0].as_py()


class HeldLists:
    """Lists that are in memory as they are in the file.

    Parameters
    ----------
    lists : pyarrow.Table
        All of them, with :data:`POSTING_COLUMNS`.
    """

    held = True

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
        """Memory, in bytes."""
        return int(self._ends.nbytes + self._starts.nbytes + len(self._data) + self._lengths.nbytes)

    def read(self, number: int) -> tuple[Blocks, int]:
        """Blocks of a list, and how many documents they hold."""
        first, last = self._ends[number], self._ends[number + 1]
        starts = self._starts[first : last + 1].tolist()
        blocks = [self._data[a:b] for a, b in pairwise(starts)]
        return blocks, int(self._lengths[number])


_FORMATS: Final = ("1", "2")
_PART_BYTES = 512 << 20
_POSTING_BYTES = 256 << 20
# So many tokens take a few MiB, and a generation has seldom more: all of them are read at once,
# since there are many generations, and one request of each for every term would add up.
_HELD_TOKENS = 4 << 20

# Buffers of these columns are read as they are.
_TYPES: Final = {
    "_rowid": pa.uint64(),
    "_num_tokens": pa.uint32(),
    "_token_fst_bytes": pa.large_binary(),
    "_posting": pa.list_(pa.large_binary()),
    "_length": pa.uint32(),
}


class TextPart:
    """One partition of a segment of a text index; its files never change.

    Documents without a token are in none of the arrays.

    Attributes
    ----------
    rows : numpy.ndarray of uint64, shape (documents,)
        Row id of each document, in the order of the index.
    lengths : numpy.ndarray of uint32, shape (documents,)
        Number of tokens of each.
    """

    def __init__(self, location: TableLocation, uri: str, metadata: Any) -> None:
        self._uri = uri
        documents = _read_all(_open(location, f"{uri}_docs.lance"), uri)
        self.rows: RowIds = documents.column("_rowid").to_numpy()
        self.lengths = documents.column("_num_tokens").to_numpy()
        tokens = _read_all(_open(location, f"{uri}_tokens.lance"), uri)
        name = f"{uri}_tokens.lance"
        if tokens.schema.names[0] != "_token_fst_bytes" or tokens.num_rows != 1:
            raise CorruptDataError(f"{name} holds no map of tokens; build the index again")
        lists = _open(location, f"{uri}_invert.lance", columns=POSTING_COLUMNS)
        self._lists: PostingLists = (
            HeldLists(_read_all(lists, uri))
            if 0 < int(self.lengths.sum(dtype=np.int64)) <= _HELD_TOKENS
            else StoredLists(lists)
        )
        self._tokens = TokenMap(
            tokens.column(0)[0].as_py() or b"", lists=self._lists.count, name=name
        )
        self._varint = metadata.get("posting_tail_codec") == "varint_delta_v1"
        self._order: Numbers | None = None

    @property
    def nbytes(self) -> int:
        """Memory, in bytes; what is decoded of posting lists is kept elsewhere."""
        # The rows in order are made when they are first looked for, and take as much again.
        documents = 2 * self.rows.nbytes + self.lengths.nbytes
        return int(documents + self._tokens.nbytes + self._lists.nbytes)

    def ready(self, terms: Sequence[str]) -> bool:
        """Whether storage need not be asked for the documents that hold some terms."""
        return self._lists.held or all(
            _postings.peek((self._uri, term)) is not None for term in terms
        )

    def postings(self, term: str) -> tuple[Numbers, Numbers]:
        """Documents that hold a term, and how often.

        Returns
        -------
        numpy.ndarray of int64
            Positions in :attr:`rows`, ascending.
        numpy.ndarray of int64
        """
        return _postings.get((self._uri, term), lambda: self._read(term))

    def near(self, term: str, *, distance: int, prefix: int) -> Iterator[str]:
        """Terms within some edits of one, in the order of their bytes."""
        for token, _ in self._tokens.near(term, distance=distance, prefix=prefix):
            yield token

    def find(self, rows: RowIds) -> Numbers:
        """Positions of those of some rows that are documents here."""
        if not len(self.rows) or not len(rows):
            return np.empty(0, np.int64)
        order = self._sorted()
        at = np.searchsorted(self.rows, rows, sorter=order)
        slots = order[np.minimum(at, len(self.rows) - 1)]
        found: Numbers = slots[self.rows[slots] == rows]
        return found

    def _sorted(self) -> Numbers:
        if self._order is None:
            self._order = np.argsort(self.rows, kind="stable")
        return self._order

    def _read(self, term: str) -> tuple[Numbers, Numbers]:
        number = self._tokens.get(term)
        if number is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        blocks, length = self._lists.read(number)
        return decode_postings(
            blocks,
            length,
            documents=len(self.rows),
            varint_tail=self._varint,
            name=f"the list of {term!r} in {self._uri}",
        )


@dataclass(frozen=True, slots=True)
class TextSegment:
    """A segment of a text index.

    Attributes
    ----------
    parameters : mapping of str to Any
        Of its tokenizer, and what else it was built with.
    parts : tuple of TextPart or None
        None when the files have a form that is not known here.
    """

    parameters: Mapping[str, Any]
    parts: tuple[TextPart, ...] | None

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(part.nbytes for part in self.parts or ())


def open_segment(location: TableLocation, root: str, segment: str) -> TextSegment:
    """Open a segment, and keep it for later calls.

    Parameters
    ----------
    location : TableLocation
        Of the base table, for its storage options.
    root : str
        URI of the data set that has the index.
    segment : str
        UUID of the segment.

    Raises
    ------
    ObjectNotFoundError
        Its files are gone.
    CorruptDataError
        They are not those of a text index.
    """
    uri = f"{root}/_indices/{segment}"
    # Its files stay open with the credentials of now.
    options = tuple(sorted(location.storage_options.items()))
    return _segments.get((uri, options), lambda: _open_segment(location, uri))


def _open_segment(location: TableLocation, uri: str) -> TextSegment:
    with lance_errors(f"reading {uri}"):
        raw = _open(location, f"{uri}/metadata.lance").metadata().schema.metadata or {}
        metadata, parameters, parts = _described(raw, uri)
        if (
            metadata.get("format_version") not in _FORMATS
            or metadata.get("token_set_format") != "fst"
            or parameters.get("block_size", BLOCK) != BLOCK
        ):
            return TextSegment(parameters, None)
        return TextSegment(
            parameters, tuple(TextPart(location, f"{uri}/part_{n}", metadata) for n in parts)
        )


def _described(
    raw: Mapping[bytes, bytes], uri: str
) -> tuple[Mapping[str, str], Mapping[str, Any], Sequence[int]]:
    """What a segment says of itself: as text, how it was built, and the numbers of its parts."""
    try:
        metadata = {key.decode(): value.decode() for key, value in raw.items()}
        parameters = read_json(metadata["params"])
        parts = read_json(metadata.get("partitions", "[]"))
    except (KeyError, ValueError) as error:
        raise _no_index(uri, error) from error
    if not isinstance(parameters, dict):
        raise _no_index(uri, "its parameters are no object")
    if not isinstance(parts, list) or any(type(n) is not int or n < 0 for n in parts):
        raise _no_index(uri, "its parts are no numbers")
    return metadata, parameters, parts


def _no_index(uri: str, reason: object) -> CorruptDataError:
    return CorruptDataError(f"{uri} is no text index: {reason}; build it again")


def _read_all(reader: LanceFileReader, uri: str) -> pa.Table:
    rows = reader.read_all().to_table()
    for field in rows.schema:
        kind = field.type
        if pa.types.is_list(kind):
            # Whatever its items are called.
            kind = pa.list_(kind.value_type)
        if kind != _TYPES.get(field.name, kind):
            raise _no_index(uri, f"{field.name} is {kind}")
    return rows


def _open(
    location: TableLocation, uri: str, *, columns: list[str] | None = None
) -> LanceFileReader:
    return LanceFileReader(uri, columns=columns, **location.lance_arguments())


_segments: LruCache[TextSegment] = LruCache(_PART_BYTES, lambda segment: segment.nbytes)
_postings: LruCache[tuple[Numbers, Numbers]] = LruCache(
    _POSTING_BYTES, lambda found: found[0].nbytes + found[1].nbytes
)
