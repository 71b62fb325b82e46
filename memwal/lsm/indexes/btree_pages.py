"""Pages of a B-tree that Lance stored: an index of the base table, or the keys of a generation.

Two Lance files: ``page_data.lance`` has the values in order, and the row of each, in pages of equal
length; ``page_lookup.lance`` has the first and the last value of each page. A read of a few values
needs the pages in whose range they lie, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileReader

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.storage.location import TableLocation

_COLUMNS = ["min", "max", "null_count", "page_idx"]
_ROW_BYTES = 8  # Where the row of a value is.
# Lance hands over each batch from another thread, and has 1,024 rows in it unless told otherwise.
_BATCH_ROWS = 1 << 16
_ROWS = re.compile(rb"[0-9]{1,9}")


@dataclass(frozen=True, slots=True, eq=False)
class PageRanges:
    """Ranges of the pages of a B-tree."""

    # First and last value of each page and its number; None if it is not stored in pages.
    pages: pa.Table | None
    page_rows: int  # rows of every page but the last

    @property
    def numbers(self) -> list[int]:
        """Numbers of the pages, ascending."""
        if self.pages is None:
            return []
        return sorted(self.pages.column("page_idx").to_pylist())

    @property
    def all_bytes(self) -> int:
        """Memory that all pages take, in bytes: estimated from the first and last values."""
        if self.pages is None or not self.pages.num_rows:
            return 0
        ends = self.pages.select(["min", "max"]).nbytes / (2 * self.pages.num_rows)
        return int(self.pages.num_rows * self.page_rows * (ends + _ROW_BYTES))

    def holds(self, data_type: pa.DataType) -> bool:
        """Return whether it has pages of values of this type."""
        return self.pages is not None and self.pages.schema.field("min").type == data_type


def read_ranges(location: TableLocation, folder: str) -> PageRanges:
    """Read the ranges of the B-tree in a folder of the table; without pages if there is none.

    Raises CorruptDataError if the file has other contents.
    """
    path = f"{folder}/page_lookup.lance"
    reader = _open_file(location, path)
    if reader is None:
        return PageRanges(None, 0)
    with lance_errors(f"reading {path}"):
        pages = reader.read_all().to_table()
    metadata = pages.schema.metadata or {}
    stored = metadata.get(b"batch_size", b"0")
    if _ROWS.fullmatch(stored) is None or pages.schema.names != _COLUMNS:
        raise damaged(path, pages.schema.names)
    is_divided = metadata.get(b"range_partitioned", b"false") != b"false"
    if int(stored) == 0 or is_divided:
        return PageRanges(None, 0)
    # A page of nulls alone has no range.
    return PageRanges(pages.filter(pages.column("min").is_valid()).combine_chunks(), int(stored))


def pages_in_range(ranges: PageRanges, values: pa.Array) -> list[int]:
    """Return the numbers of the pages in whose range any of the values lies, ascending."""
    pages = ranges.pages
    if pages is None or not pages.num_rows or not len(values):
        return []
    first, last = pages.column("min"), pages.column("max")
    everything = pa.concat_arrays([values, *first.chunks, *last.chunks])
    if pa.types.is_boolean(everything.type):
        everything = everything.cast(pa.uint8())
    # Numbers that compare as the values do, of whatever type these are.
    ranks = pc.rank(everything, sort_keys="ascending", tiebreaker="dense").to_numpy()
    wanted = np.sort(ranks[: len(values)])
    starts, ends = np.split(ranks[len(values) :], 2)
    is_hit = np.searchsorted(wanted, starts, "left") < np.searchsorted(wanted, ends, "right")
    return sorted(pages.column("page_idx").to_numpy()[is_hit].tolist())


def read_pages(
    location: TableLocation, folder: str, numbers: Sequence[int], page_rows: int
) -> Iterator[tuple[list[int], pa.Table]]:
    """Read some pages, neighbours with one request: yield their numbers and their rows.

    The rows have the columns ``values`` and ``ids``, in one chunk each.

    Raises ObjectNotFoundError without the file, and CorruptDataError if it has other contents.
    """
    path = f"{folder}/page_data.lance"
    reader = _open_file(location, path)
    if reader is None:
        raise ObjectNotFoundError(f"reading {path}: not found")
    rows = reader.num_rows()
    order = np.asarray(sorted(numbers))
    for run in np.split(order, np.flatnonzero(np.diff(order) != 1) + 1):
        start = int(run[0]) * page_rows
        count = min((int(run[-1]) + 1) * page_rows, rows) - start
        if count <= 0:
            raise damaged(path, f"it has {rows} rows, and page {run[-1]} is asked for")
        with lance_errors(f"reading {path}"):
            read = reader.read_range(start, count, batch_size=_BATCH_ROWS).to_table()
        if read.schema.types[1:] != [pa.uint64()]:
            raise damaged(path, f"its columns are {read.schema.types}")
        yield run.tolist(), read.combine_chunks()


def damaged(path: str, reason: object) -> CorruptDataError:
    """Return the error of a file that is no file of a B-tree."""
    return CorruptDataError(f"{path} has no values in pages: {reason}")


def _open_file(location: TableLocation, path: str) -> LanceFileReader | None:
    try:
        with lance_errors(f"reading {path}"):
            return LanceFileReader(location.child(path), **location.lance_arguments())
    except ObjectNotFoundError:
        return None
