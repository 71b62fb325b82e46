"""Key lookup in a flushed generation through its Bloom filter and key index.

The writer leaves two files beside a generation: a Bloom filter, which rules out most keys that the
generation does not have, and a sidecar with the keys in order, in pages. Both never change and are
cached, so a lookup does not read all keys.
"""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.bloom import BloomFilter
from memwal.format.paths import BLOOM_FILTER_NAME, PK_INDEX_DIR
from memwal.reader.cache.lru import LruCache
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)

# Of a filter with more of its bits set, eight that are set by chance are too likely.
_SATURATED = 0.9
_FILTER_BYTES = 64 << 20
_DIRECTORIES = 1024
_PAGE_BYTES = 128 << 20

_LOOKUP = ["min", "max", "null_count", "page_idx"]
_ROWS = re.compile(rb"[0-9]{1,9}")
_MEND = "memwal verify --repair writes it anew"

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Directory:
    """Which page has which keys.

    Attributes
    ----------
    pages : pyarrow.Table or None
        First and last key of each page and its number; None without a sidecar.
    page_rows : int
        Rows of every page but the last.
    """

    pages: pa.Table | None
    page_rows: int


_filters: LruCache[BloomFilter | bool] = LruCache(
    _FILTER_BYTES, lambda found: 1 if isinstance(found, bool) else found.bits.nbytes
)
_directories: LruCache[_Directory] = LruCache(_DIRECTORIES)
_pages: LruCache[pa.Table] = LruCache(_PAGE_BYTES, lambda page: int(page.nbytes))


def might_hold(location: TableLocation, folder: str, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Of each key, whether a generation may hold it; False is certain.

    Parameters
    ----------
    folder : str
        Of the generation, below the table.
    keys : pyarrow.Table
        Key columns in key order, in the very types of the generation.
    """
    found = _filters.get(_name(location, folder), lambda: _read_filter(location, folder))
    if isinstance(found, bool):
        return np.ones(keys.num_rows, np.bool_)
    return found.might_contain(keys.columns)


def key_positions(location: TableLocation, folder: str, keys: pa.Array) -> Positions | None:
    """Row of each key in a generation, the newest if there are several; -1 where there is none.

    Parameters
    ----------
    keys : pyarrow.Array
        Distinct keys as :func:`memwal.region.rows.key_column` gives them.

    Returns
    -------
    numpy.ndarray of int64, shape (keys,), or None
        None when the generation has no sidecar, or one of other keys.
    """
    name = _name(location, folder)
    directory = _directories.get(name, lambda: _read_directory(location, folder))
    pages = directory.pages
    if pages is None or pages.schema.field("min").type != keys.type:
        return None
    found = np.full(len(keys), -1, np.int64)
    wanted = _wanted_pages(pages, keys)
    held: dict[int, Any] = {number: _pages.peek((name, number)) for number in wanted}
    missing = [number for number, page in held.items() if page is None]
    if missing:
        read = _read_pages(location, folder, missing, directory.page_rows)
        held |= {
            number: _pages.get((name, number), functools.partial(_as_it_is, page))
            for number, page in read.items()
        }
    for page in held.values():
        at = pc.index_in(page.column("values"), value_set=keys).combine_chunks()
        hit = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
        asked = at.drop_null().to_numpy().astype(np.int64)
        rows = page.column("ids").to_numpy()[hit].astype(np.int64)
        if (rows < 0).any():
            raise _damaged(f"{folder}/{PK_INDEX_DIR}/page_data.lance", "a row has no number")
        np.maximum.at(found, asked, rows)
    return found


def _name(location: TableLocation, folder: str) -> str:
    return location.child(folder)


def _as_it_is(page: Any) -> Any:
    return page


def _read_filter(location: TableLocation, folder: str) -> BloomFilter | bool:
    try:
        data = location.store.get(f"{folder}/{BLOOM_FILTER_NAME}")
    except ObjectNotFoundError:
        return True
    try:
        found = BloomFilter.from_bytes(data)
    except CorruptDataError as error:
        logger.warning("%s: %s; every key counts as possible", folder, error)
        return True
    return True if found.bits.mean() > _SATURATED else found


def _wanted_pages(pages: pa.Table, keys: pa.Array) -> list[int]:
    """Numbers of the pages in whose range any of the keys lies."""
    wanted = []
    for first, last, number in zip(
        pages.column("min"), pages.column("max"), pages.column("page_idx"), strict=True
    ):
        within = pc.and_(pc.greater_equal(keys, first), pc.less_equal(keys, last))
        if pc.any(within).as_py():
            wanted.append(int(number.as_py()))
    return wanted


def _read_directory(location: TableLocation, folder: str) -> _Directory:
    reader = _open(location, f"{folder}/{PK_INDEX_DIR}/page_lookup.lance")
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
    """Some pages, neighbours with one request."""
    path = f"{folder}/{PK_INDEX_DIR}/page_data.lance"
    reader = _open(location, path)
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


def _open(location: TableLocation, path: str) -> Any:
    from lance.file import LanceFileReader

    try:
        with lance_errors(f"reading {path}"):
            return LanceFileReader(location.child(path), **location.lance_arguments())
    except ObjectNotFoundError:
        return None


def _damaged(path: str, reason: object) -> CorruptDataError:
    return CorruptDataError(f"{path} has no keys in pages: {reason}; {_MEND}")
