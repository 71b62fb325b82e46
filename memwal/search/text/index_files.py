"""Files of Lance's text indexes: documents, their lengths, tokens, and posting lists.

:class:`LanceTextIndex` opens them and is the one place that checks the version of the format. The
posting lists of small partitions are kept in memory; others are read from their file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError
from memwal.reader.sources.cache import LruCache
from memwal.reader.unreadable_indexes import is_index_damage, leave_out
from memwal.search.text.fst import TokenMap
from memwal.search.text.postings import (
    BLOCK_DOCUMENTS,
    POSTING_COLUMNS,
    PostingList,
    StoredPostingLists,
    decode_postings,
)
from memwal.storage.location import TableLocation
from memwal.util.arrays import Numbers, RowIds, nbytes_of
from memwal.util.concurrency import Lazy
from memwal.util.safe_json import read_json

_FORMATS: Final = ("1", "2")
# The posting lists of this many tokens take a few MiB, and few generations have more. They are read
# at once: there are many generations, and one request per generation and term would add up.
_IN_MEMORY_TOKENS = 4 << 20
# With Lance's default of 1,024, to start a batch takes longer than to read its rows.
_BATCH_ROWS: Final = 1 << 16
# Expected types: the buffers of these columns are read without conversion.
_COLUMN_TYPES: Final = {
    "_rowid": pa.uint64(),
    "_num_tokens": pa.uint32(),
    "_token_fst_bytes": pa.large_binary(),
    "_posting": pa.list_(pa.large_binary()),
    "_length": pa.uint32(),
}


class _FilePostingLists:
    """Posting lists that are read one at a time, by a reader of ``POSTING_COLUMNS``."""

    nbytes = 0

    def __init__(self, reader: LanceFileReader, uri: str) -> None:
        self._reader = reader
        self._uri = uri
        self._lock = threading.Lock()
        self._count = int(reader.metadata().num_rows)

    def __len__(self) -> int:
        return self._count

    def encoded(self, number: int, *, documents: int, varint_tail: bool) -> PostingList:
        """Read a list by its number; the options are those of :class:`PostingList`."""
        with self._lock:
            row = self._reader.take_rows([number]).to_table()
        lists = StoredPostingLists(_check_types(row, self._uri))
        return lists.encoded(0, documents=documents, varint_tail=varint_tail)


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
        lists = _open_file(location, f"{uri}_invert.lance", columns=POSTING_COLUMNS)
        self._posting_lists: StoredPostingLists | _FilePostingLists = (
            StoredPostingLists(_read_table(lists, uri))
            if 0 < int(self.lengths.sum(dtype=np.int64)) <= _IN_MEMORY_TOKENS
            else _FilePostingLists(lists, uri)
        )
        self._tokens = TokenMap(
            tokens.column(0)[0].as_py() or b"", lists=len(self._posting_lists), name=name
        )
        self._varint_tail = metadata.get("posting_tail_codec") == "varint_delta_v1"
        self._order: Lazy[Numbers] = Lazy(partial(np.argsort, self.rows, kind="stable"))

    @property
    def nbytes(self) -> int:
        """Memory in bytes, without decoded posting lists, which another cache holds."""
        # The sort order of the rows is made at its first use, and takes as much again.
        documents = 2 * self.rows.nbytes + self.lengths.nbytes
        return int(documents + self._tokens.nbytes + self._posting_lists.nbytes)

    @property
    def has_lists_in_memory(self) -> bool:
        """True if all posting lists are in memory."""
        return isinstance(self._posting_lists, StoredPostingLists)

    def is_in_memory(self, terms: Sequence[str]) -> bool:
        """Return whether :meth:`postings` of these terms needs no request to storage."""
        return self.has_lists_in_memory or all(
            _postings_cache.use((self.uri, term)) is not None for term in terms
        )

    def postings(self, term: str) -> tuple[Numbers, Numbers]:
        """Return the documents with a term (positions in ``rows``, ascending), and how often."""
        return _postings_cache.get((self.uri, term), lambda: self._read_postings(term))

    def encoded(self, term: str) -> PostingList | None:
        """Return the posting list of a term; None if no document has it."""
        number = self._tokens.get(term)
        if number is None:
            return None
        return self._posting_lists.encoded(
            number, documents=len(self.rows), varint_tail=self._varint_tail
        )

    def fuzzy_terms(self, term: str, *, distance: int, prefix: int) -> Iterator[str]:
        """Iterate over the terms within an edit distance, in byte order."""
        for token, _ in self._tokens.fuzzy_terms(term, distance=distance, prefix=prefix):
            yield token

    def positions_of(self, rows: RowIds) -> Numbers:
        """Return the positions of the ``rows`` that are documents here."""
        if not len(self.rows) or not len(rows):
            return np.empty(0, np.int64)
        order = self._order()
        at = np.searchsorted(self.rows, rows, sorter=order)
        slots = order[np.minimum(at, len(self.rows) - 1)]
        positions: Numbers = slots[self.rows[slots] == rows]
        return positions

    def _read_postings(self, term: str) -> tuple[Numbers, Numbers]:
        root, _, file = self.uri.partition("/_indices/")
        with _left_out_if_damaged(root, file.partition("/")[0]):
            one = self.encoded(term)
            name = f"the list of {term!r} in {self.uri}"
            return decode_postings([] if one is None else [one], name=name)


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
                and self.parameters.get("block_size", BLOCK_DOCUMENTS) == BLOCK_DOCUMENTS
            )
            self.partitions = (
                tuple(TextPartition(location, f"{uri}/part_{n}", metadata) for n in parts)
                if supported
                else None
            )

    @classmethod
    def open(cls, location: TableLocation, root: str, segment: str) -> LanceTextIndex:
        """Open a segment by its UUID, cached; UnreadableIndexError if its files are damaged."""
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
    return _check_types(reader.read_all(batch_size=_BATCH_ROWS).to_table(), uri)


def _check_types(rows: pa.Table, uri: str) -> pa.Table:
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


_index_cache: LruCache[LanceTextIndex] = LruCache(512 << 20, lambda index: index.nbytes)
_postings_cache: LruCache[tuple[Numbers, Numbers]] = LruCache(256 << 20, nbytes_of)
