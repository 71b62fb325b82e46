"""Key lookup in a flushed generation through its Bloom filter and key index.

The writer stores two files beside a generation: a Bloom filter, which rules out most keys that the
generation does not have, and a sidecar with the keys in order, in pages. Both never change and are
cached, so a lookup does not read all keys.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.bloom import BloomFilter
from memwal.format.paths import BLOOM_FILTER_NAME, PK_INDEX_DIR
from memwal.lsm.indexes.btree_pages import (
    PageRanges,
    damaged,
    pages_in_range,
    read_pages,
    read_ranges,
)
from memwal.reader.cache.lru import LruCache
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)

# If a filter has a larger share of its bits set, eight set bits are too likely by chance. Some
# 75,000 keys set so many.
_SATURATED = 0.9
_FILTER_BYTES = 64 << 20
_FOLDERS = 1024
_PAGE_BYTES = 128 << 20
_COMPARED_ROWS = 1 << 20

_NEXT_STEP = "memwal verify --repair writes it anew"

Positions = npt.NDArray[np.int64]


# None: no filter, so that every key is possible.
_filters: LruCache[BloomFilter | None] = LruCache(
    _FILTER_BYTES, lambda bloom: 1 if bloom is None else bloom.bits.nbytes
)
_ranges: LruCache[PageRanges] = LruCache(_FOLDERS)
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
    sidecar = f"{folder}/{PK_INDEX_DIR}"
    try:
        hits = page_hits(location, sidecar, keys)
        if hits is None:
            return None
        rows, positions = hits[0].astype(np.int64), hits[1]
        if (rows < 0).any():
            raise damaged(f"{sidecar}/page_data.lance", "a row has no number")
    except CorruptDataError as error:
        raise CorruptDataError(f"{error}; {_NEXT_STEP}") from error
    newest = np.full(len(keys), -1, np.int64)
    np.maximum.at(newest, positions, rows)
    return newest


def page_hits(
    location: TableLocation, folder: str, keys: pa.Array, *, most_rows: int | None = None
) -> tuple[npt.NDArray[np.uint64], Positions] | None:
    """Find keys in the B-tree that is stored in a folder of the table.

    Returns the ids that it has for these keys, and the position of each among ``keys``. Returns
    None if it is not stored in pages of such keys, or if pages with more than ``most_rows`` rows
    would have to be read.
    """
    uri = location.child(folder)
    ranges = _ranges.get(uri, lambda: read_ranges(location, folder))
    if not ranges.holds(keys.type):
        return None
    numbers = pages_in_range(ranges, keys)
    if most_rows is not None and len(numbers) * ranges.page_rows > most_rows:
        return None
    loaded = {n: page for n in numbers if (page := _pages.peek((uri, n))) is not None}
    missing = [number for number in numbers if number not in loaded]
    if missing:
        read = read_pages(location, folder, missing, ranges.page_rows)
        for number, page in read.items():
            _pages.put((uri, number), page)
        loaded |= read
    ids, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    # Each comparison hashes all keys, and more pages at once share that cost.
    at_once = max(_COMPARED_ROWS // max(ranges.page_rows, 1), 1)
    ordered = [loaded[number] for number in numbers]
    for start in range(0, len(ordered), at_once):
        pages = pa.concat_tables(ordered[start : start + at_once])
        at = pc.index_in(pages.column("values"), value_set=keys).combine_chunks()
        ids.append(pages.column("ids").filter(at.is_valid()).to_numpy())
        positions.append(at.drop_null().to_numpy().astype(np.int64))
    return np.concatenate(ids), np.concatenate(positions)


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
