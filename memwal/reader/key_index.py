"""Key lookup in a flushed generation through its Bloom filter and key index.

The writer stores two files beside a generation: a Bloom filter, which rules out most keys that the
generation does not have, and a sidecar with the keys in order, in pages. Both never change and are
cached, so a lookup does not read all keys.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileReader

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.bloom import BloomFilter
from memwal.format.paths import BLOOM_FILTER_NAME, PK_INDEX_DIR
from memwal.reader.cache.lru import LruCache
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)

# If a filter has a larger share of its bits set, eight set bits are too likely by chance. Some
# 75,000 keys set so many.
_SATURATED = 0.9
_FILTER_BYTES = 64 << 20
_DIRECTORIES = 1024
_PAGE_BYTES = 128 << 20

_LOOKUP = ["min", "max", "null_count", "page_idx"]
_ROWS = re.compile(rb"[0-9]{1,9}")
_NEXT_STEP = "memwal verify --repair writes it anew"

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Directory:
    """Key ranges of the pages of a sidecar."""

    # First and last key of each page and its number; None without a sidecar.
    pages: pa.Table | None
    page_rows: int  # Rows of every page but the last.


# None: no filter, so that every key is possible.
_filters: LruCache[BloomFilter | None] = LruCache(
    _FILTER_BYTES, lambda bloom: 1 if bloom is None else bloom.bits.nbytes
)
_directories: LruCache[_Directory] = LruCache(_DIRECTORIES)
_pages: LruCache[pa.Table] = LruCache(_PAGE_BYTES, lambda page: int(page.nbytes))


def might_hold(location: TableLocation, folder: str, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each key whether the generation in ``folder`` may have it; False is certain.

    ``keys`` has the key columns in key order, in the exact types of the generation.
    """
    bloom = _filters.get(location.child(folder), lambda: _read_filter(location, folder))
    if bloom is None:
        return np.ones(keys.num_rows, np.bool_)
    return bloom.might_contain(keys.columns)


def key_positions(location: TableLocation, folder: str, keys: pa.Array) -> Positions | None:
    """Return the row of each key in a generation: the newest of several, -1 if there is none.

    ``keys`` are distinct, as :func:`memwal.region.rows.key_column` gives them. Returns None if the
    generation has no sidecar, or one with keys of another type.
    """
    uri = location.child(folder)
    directory = _directories.get(uri, lambda: _read_directory(location, folder))
    pages = directory.pages
    if pages is None or pages.schema.field("min").type != keys.type:
        return None
    newest = np.full(len(keys), -1, np.int64)
    numbers = _pages_in_range(pages, keys)
    loaded = {n: page for n in numbers if (page := _pages.peek((uri, n))) is not None}
    missing = [number for number in numbers if number not in loaded]
    if missing:
        read = _read_pages(location, folder, missing, directory.page_rows)
        for number, page in read.items():
            _pages.put((uri, number), page)
        loaded |= read
    for page in loaded.values():
        at = pc.index_in(page.column("values"), value_set=keys).combine_chunks()
        hits = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
        positions = at.drop_null().to_numpy().astype(np.int64)
        rows = page.column("ids").to_numpy()[hits].astype(np.int64)
        if (rows < 0).any():
            raise _damaged(f"{folder}/{PK_INDEX_DIR}/page_data.lance", "a row has no number")
        np.maximum.at(newest, positions, rows)
    return newest


def _read_filter(location: TableLocation, folder: str) -> BloomFilter | None:
    """Read a Bloom filter; None if it is missing or damaged, or rules out too few keys."""
    try:
        data = location.store.get(f"{folder}/{BLOOM_FILTER_NAME}")
    except ObjectNotFoundError:
        return None
    try:
        bloom = BloomFilter.from_bytes(data)
    except CorruptDataError as error:
        logger.warning("%s: %s; every key counts as possible", folder, error)
        return None
    return None if bloom.bits.mean() > _SATURATED else bloom


def _pages_in_range(pages: pa.Table, keys: pa.Array) -> list[int]:
    """Return the numbers of the pages in whose range any of the keys lies."""
    numbers = []
    for first, last, number in zip(
        pages.column("min"), pages.column("max"), pages.column("page_idx"), strict=True
    ):
        within = pc.and_(pc.greater_equal(keys, first), pc.less_equal(keys, last))
        if pc.any(within).as_py():
            numbers.append(int(number.as_py()))
    return numbers


def _read_directory(location: TableLocation, folder: str) -> _Directory:
    reader = _open_file(location, f"{folder}/{PK_INDEX_DIR}/page_lookup.lance")
    if reader is None:
        return _Directory(None, 0)
    with lance_errors(f"reading {folder}/{PK_INDEX_DIR}/page_lookup.lance"):
        pages = reader.read_all().to_table()
    metadata = pages.schema.metadata or {}
    stored = metadata.get(b"batch_size", b"0")
    if _ROWS.fullmatch(stored) is None or pages.schema.names != _LOOKUP:
        raise _damaged(f"{folder}/{PK_INDEX_DIR}/page_lookup.lance", pages.schema.names)
    return _Directory(pages.combine_chunks() if int(stored) else None, int(stored))


def _read_pages(
    location: TableLocation, folder: str, numbers: list[int], page_rows: int
) -> dict[int, pa.Table]:
    """Read some pages; neighbours with one request."""
    path = f"{folder}/{PK_INDEX_DIR}/page_data.lance"
    reader = _open_file(location, path)
    if reader is None:
        raise ObjectNotFoundError(f"reading {path}: not found")
    rows = int(reader.metadata().num_rows)
    pages = {}
    order = np.asarray(sorted(numbers))
    for run in np.split(order, np.flatnonzero(np.diff(order) != 1) + 1):
        start = int(run[0]) * page_rows
        count = min((int(run[-1]) + 1) * page_rows, rows) - start
        if count <= 0:
            raise _damaged(path, f"it has {rows} rows, and page {run[-1]} is asked for")
        with lance_errors(f"reading {path}"):
            table = reader.read_range(start, count).to_table().combine_chunks()
        if table.schema.types[1:] != [pa.uint64()]:
            raise _damaged(path, f"its columns are {table.schema.types}")
        for number in run.tolist():
            pages[number] = table.slice((number - int(run[0])) * page_rows, page_rows)
    return pages


def _open_file(location: TableLocation, path: str) -> LanceFileReader | None:
    try:
        with lance_errors(f"reading {path}"):
            return LanceFileReader(location.child(path), **location.lance_arguments())
    except ObjectNotFoundError:
        return None


def _damaged(path: str, reason: object) -> CorruptDataError:
    return CorruptDataError(f"{path} has no keys in pages: {reason}; {_NEXT_STEP}")
