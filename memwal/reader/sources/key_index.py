"""Key lookup in a flushed generation through its Bloom filter and key index.

The writer stores two files beside a generation: a Bloom filter, which rules out most keys that the
generation does not have, and a sidecar with the keys in order, in pages. Both never change and are
cached, so a lookup does not read all keys.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.bloom import FILTER_BYTES, BloomFilter, which_might_contain
from memwal.format.paths import BLOOM_FILTER_NAME, PK_INDEX_DIR, SIZED_FILTER_NAME
from memwal.format.values import single_array
from memwal.lsm.indexes.btree_pages import (
    PageRanges,
    damaged,
    pages_in_range,
    read_pages,
    read_ranges,
)
from memwal.lsm.key_matches import match_keys
from memwal.reader.sources.cache import LruCache
from memwal.storage.location import TableLocation
from memwal.util.arrays import Hashes, Mask, Positions, nbytes_of

logger = logging.getLogger(__name__)

# If a filter has a larger share of its bits set, eight set bits are too likely by chance. Some
# 75,000 keys set this many.
_SATURATED = 0.9
# With as many keys as the smallest generation that has a sized filter, 0.46 of the bits are set.
_FULL = 0.44
_FOLDERS = 1 << 14
_FOLDER_BYTES = 200
# More keys are found faster by their hashes.
_FEW_KEYS = 1_000
# Pages that are searched together, which bounds the memory of their copy.
_JOINED_PAGES: Final = 64
_MAX_FORGOTTEN = 64
_PAGE_BYTES = 128 << 20
MAX_KEPT_BYTES = 64 << 20
"""Largest B-tree whose pages lookups keep in memory, in bytes."""
_WORTH_OF_PAGE = 8

_NEXT_STEP = "memwal verify --repair writes it anew"


class _RegionFilters:
    """Bloom filters of generations of a region that lookups have read, by folder."""

    def __init__(self) -> None:
        # None: no filter, so that every key is possible.
        self.read: dict[str, BloomFilter | None] = {}
        self.nbytes = 0  # Memory.

    def add(self, name: str, bloom: BloomFilter | None) -> None:
        """Keep the filter of a generation."""
        if name in self.read:
            return
        self.read[name] = bloom
        self.nbytes += _FOLDER_BYTES + (0 if bloom is None else len(bloom.data))

    def keep_only(self, folders: Sequence[str]) -> None:
        """Forget the filters of other generations, once there are many."""
        if len(self.read) > len(folders) + _MAX_FORGOTTEN:
            kept = {name: self.read[name] for name in folders if name in self.read}
            self.read, self.nbytes = {}, 0
            for name, bloom in kept.items():
                self.add(name, bloom)


_filters: LruCache[_RegionFilters] = LruCache(512 << 20, lambda filters: filters.nbytes)
_ranges: LruCache[PageRanges] = LruCache(_FOLDERS)
_pages: LruCache[pa.Table] = LruCache(_PAGE_BYTES, lambda page: int(page.nbytes))


def might_hold(base: BaseTable, folder: str, hashes: Hashes) -> Mask:
    """Return for each key hash whether the generation in ``folder`` may have it."""
    might = might_hold_if_read(base, folder, hashes)
    if might is not None:
        return might
    region, _, name = folder.rpartition("/")
    key = _filters_key(base, region)
    filters = _filters.get(key, _RegionFilters)
    bloom = _read_filter(base.location, folder)
    filters.add(name, bloom)
    # With its new weight.
    _filters.put(key, filters)
    return _test(bloom, hashes)


def might_hold_if_read(base: BaseTable, folder: str, hashes: Hashes) -> Mask | None:
    """Return the same as :func:`might_hold`, or None if the filter has not been read yet."""
    region, _, name = folder.rpartition("/")
    filters = _filters.use(_filters_key(base, region))
    if filters is None or name not in filters.read:
        return None
    return _test(filters.read[name], hashes)


def _test(bloom: BloomFilter | None, hashes: Hashes) -> Mask:
    return np.ones(len(hashes), np.bool_) if bloom is None else bloom.might_contain_hashes(hashes)


def which_might_hold(base: BaseTable, region: str, names: Sequence[str], hashes: Hashes) -> Mask:
    """Return for each generation of a region whether it may have any of the keys; reads nothing."""
    filters = _filters.use(_filters_key(base, region))
    if filters is None:
        return np.ones(len(names), np.bool_)
    filters.keep_only(names)
    read = filters.read.get
    return which_might_contain([read(name) for name in names], hashes)


def _filters_key(base: BaseTable, region: str) -> Hashable:
    # The same key has another hash in other types.
    types = tuple(str(base.schema.field(name)) for name in base.primary_key)
    return base.location.uri, region, types


def key_positions(location: TableLocation, folder: str, keys: pa.Array) -> Positions | None:
    """Return the newest row of each distinct key in a generation, or -1; None without a sidecar."""
    sidecar = f"{folder}/{PK_INDEX_DIR}"
    try:
        hits = page_hits(location, sidecar, keys)
        if hits is None:
            return None
        rows = hits.ids.astype(np.int64)
        if (rows < 0).any():
            raise damaged(f"{sidecar}/page_data.lance", "a row has no number")
    except CorruptDataError as error:
        raise CorruptDataError(f"{error}; {_NEXT_STEP}") from error
    newest = np.full(len(keys), -1, np.int64)
    np.maximum.at(newest, hits.positions, rows)
    return newest


@dataclass(frozen=True, slots=True, eq=False)
class PageHits:
    """Values of a B-tree that are among some keys."""

    ids: npt.NDArray[np.uint64]  # their rows in the B-tree
    positions: Positions  # of the key of each
    bytes_read: int  # size in memory of the pages that no cache had


@dataclass(frozen=True, slots=True, eq=False)
class _SortedKeys:
    """Values of a B-tree, or of some of its pages, that are integers, in order, without nulls."""

    values: npt.NDArray[np.integer]
    ids: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, pages: pa.Table) -> Self:
        """Return the integers of pages."""
        if pages.column("values").null_count:  # no key is null
            pages = pages.filter(pc.is_valid(pages.column("values")))
        values = single_array(pages.column("values")).to_numpy()
        ids = pages.column("ids").to_numpy()
        # Lance writes pages by ascending values, and finds them in any order.
        if (values[1:] < values[:-1]).any():
            order = np.argsort(values, kind="stable")
            values, ids = values[order], ids[order]
        return cls(values, ids)

    def find(self, wanted: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.uint64], Positions]:
        """Return the ids of the values that are among some integers, and the position of each."""
        first = np.searchsorted(self.values, wanted, "left")
        counts = np.searchsorted(self.values, wanted, "right") - first
        at = np.repeat(np.arange(len(wanted)), counts)
        within = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.ids[first[at] + within], at


_sorted: LruCache[_SortedKeys] = LruCache(_PAGE_BYTES, nbytes_of)
_asked_pages: LruCache[list[int]] = LruCache(_FOLDERS)


def page_hits(
    location: TableLocation, folder: str, keys: pa.Array, *, most_rows: int | None = None
) -> PageHits | None:
    """Find keys in a stored B-tree; None if it has others, or ``most_rows`` is exceeded."""
    uri = location.child(folder)
    ranges = _ranges_of(location, folder)
    if not ranges.holds(keys.type):
        return None
    is_sorted = len(keys) <= _FEW_KEYS and pa.types.is_integer(keys.type)
    if is_sorted and (whole := _sorted.use(uri)) is not None:
        return PageHits(*whole.find(keys.to_numpy()), 0)
    numbers = pages_in_range(ranges, keys)
    if most_rows is not None and len(numbers) * ranges.page_rows > most_rows:
        return None
    if is_sorted and most_rows is None and _pays_to_keep_whole(uri, ranges, len(numbers)):
        runs = read_pages(location, folder, ranges.numbers, ranges.page_rows)
        whole = _SortedKeys.of(pa.concat_tables([rows for _, rows in runs]))
        _sorted.put(uri, whole)
        return PageHits(*whole.find(keys.to_numpy()), nbytes_of(whole))
    loaded = {n: page for n in numbers if (page := _pages.use((uri, n))) is not None}
    missing = [number for number in numbers if number not in loaded]
    read_bytes = 0
    for run, rows in read_pages(location, folder, missing, ranges.page_rows) if missing else ():
        read_bytes += int(rows.nbytes)
        for at, number in enumerate(run):
            loaded[number] = rows.slice(at * ranges.page_rows, ranges.page_rows)
            _pages.put((uri, number), loaded[number])
    if is_sorted and numbers:
        hits = []
        for at in range(0, len(numbers), _JOINED_PAGES):
            joined = [loaded[n] for n in numbers[at : at + _JOINED_PAGES]]
            hits.append(_SortedKeys.of(pa.concat_tables(joined)).find(keys.to_numpy()))
        ids, positions = (np.concatenate(each) for each in zip(*hits, strict=True))
    else:
        columns = (
            (single_array(loaded[n].column("values")), loaded[n].column("ids").to_numpy())
            for n in numbers
        )
        ids, positions = match_keys(keys, columns)
    return PageHits(ids, positions, read_bytes)


def kept_bytes(location: TableLocation, folder: str) -> int:
    """Return the memory of a B-tree of which lookups have read all pages, in bytes."""
    return _ranges_of(location, folder).all_bytes


def _ranges_of(location: TableLocation, folder: str) -> PageRanges:
    return _ranges.get(location.child(folder), lambda: read_ranges(location, folder))


def _pays_to_keep_whole(uri: str, ranges: PageRanges, asked: int) -> bool:
    """Return whether lookups have asked for enough pages to keep all as one array.

    Reading all takes as long as reading an eighth of them one by one; after that, a lookup takes a
    tenth of the time.
    """
    if ranges.pages is None:
        return False
    # Counts of two threads may be lost: they only choose the cheaper way.
    count = _asked_pages.get(uri, lambda: [0])
    count[0] += asked
    if count[0] * _WORTH_OF_PAGE < ranges.pages.num_rows:
        return False
    if not 0 < ranges.all_bytes <= MAX_KEPT_BYTES:
        return False
    # If the cache has no room for it, lookups ask for as many pages again before all are read.
    count[0] = 0
    return True


def _read_filter(location: TableLocation, folder: str) -> BloomFilter | None:
    """Read the Bloom filter of a generation, or its sized one; None if both are too full."""
    try:
        bloom = BloomFilter.from_bytes(location.store.get(f"{folder}/{BLOOM_FILTER_NAME}"))
    except ObjectNotFoundError:
        return None
    except CorruptDataError as error:
        logger.warning("%s: %s; every key counts as possible", folder, error)
        return None
    share_set = bloom.bits_set / (8 * FILTER_BYTES)
    if share_set < _FULL:
        return bloom
    try:
        return BloomFilter.from_sized(location.store.get(f"{folder}/{SIZED_FILTER_NAME}"))
    except ObjectNotFoundError:
        # Of another client, or of an earlier version.
        pass
    except CorruptDataError as error:
        logger.warning("%s: %s", folder, error)
    return None if share_set > _SATURATED else bloom
