"""Where the posting lists of a text index are: in memory when they are few, else in their file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import pyarrow as pa
from lance.file import LanceFileReader

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
