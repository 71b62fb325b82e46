"""LRU caches that share one memory budget and can be invalidated by tag.

When all caches together exceed the budget of the process, the values that were used least recently
are evicted first, from whichever cache. Values of a table's earlier versions, and of generations
that were merged and collected, are removed once a read sees the newest version. A read that uses
such a value meanwhile continues with its own reference, or starts over if it needs more of a
generation that is collected by then.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from uuid import UUID
from weakref import WeakSet

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import InvalidInputError, MemWalError
from memwal.reader.cache.keys import CacheTag, SegmentTag, VersionTag, tags_in, version_key
from memwal.util.concurrency import Lazy
from memwal.util.memory import release_free_memory

CACHE_VARIABLE = "MEMWAL_READ_CACHE_BYTES"
"""Environment variable with the budget in bytes; :data:`DEFAULT_BYTES` unless it is set."""

DEFAULT_BYTES: Final = 3 << 30
"""Sum of the limits of the single caches."""


def cache_budget() -> int:
    """Return the memory that the caches of this process may use together, in bytes."""
    value = os.environ.get(CACHE_VARIABLE)
    if not value:
        return DEFAULT_BYTES
    if not value.isdecimal():
        raise InvalidInputError(
            f"{CACHE_VARIABLE} is {value!r}; set it to a number of bytes, such as 1073741824"
        )
    return int(value)


Value = TypeVar("Value")

# Memory of an entry besides its value: the key with its tags, and its place in the order.
_ENTRY_BYTES: Final = 1 << 10

_use_counter = itertools.count()


@dataclass(slots=True)
class _Entry(Generic[Value]):
    """A value with its weight, the tags of its key, and the number of its last use."""

    value: Value
    weight: int
    tags: frozenset[CacheTag]
    last_use: int


class LruCache(Generic[Value]):
    """Thread-safe LRU cache. Concurrent misses on a key may each build the value.

    The total weight of the values stays below ``limit``, but the newest value is cached however
    heavy it is. ``weigh`` returns the memory of a value that is not shared with others, in bytes:
    it counts in the budget of the process as well; without it, values are counted. Values of a
    cache that is ``never_stale`` are not tagged, so that they are never invalidated.
    """

    def __init__(
        self,
        limit: int,
        weigh: Callable[[Value], int] | None = None,
        *,
        never_stale: bool = False,
    ) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self._keys_by_tag: dict[CacheTag, set[Hashable]] = {}
        self._lock = threading.Lock()
        self._never_stale = never_stale
        with _caches_lock:
            _caches.add(self)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; a miss makes it."""
        cached = self._use(key)
        if cached is not None:
            return cached.value
        value = make()
        entry = _Entry(
            value,
            1 if self._weigh is None else self._weigh(value),
            frozenset() if self._never_stale else tags_in(key),
            next(_use_counter),
        )
        # Here and below: keep evicted values alive until the lock is released, so that no
        # destructor runs under it.
        evicted: list[_Entry[Value]] = []
        with self._lock:
            if key not in self._entries:
                self._add(key, entry)
            while self._weight > self._limit and len(self._entries) > 1:
                evicted.append(self._remove(next(iter(self._entries))))
        if self._weigh is not None:
            _evict_to_budget(entry.last_use)
        return value

    def use(self, key: Hashable) -> Value | None:
        """Return the value of a key if it is cached, which counts as a use."""
        cached = self._use(key)
        return None if cached is None else cached.value

    def put(self, key: Hashable, value: Value) -> None:
        """Set the value of a key, also if it has one."""
        with self._lock:
            evicted = self._remove(key) if key in self._entries else None
        del evicted
        self.get(key, lambda: value)

    def peek(self, key: Hashable) -> Value | None:
        """Return the value of a key if it is cached."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None else entry.value

    def values(self) -> list[Value]:
        """Return all cached values."""
        with self._lock:
            return [entry.value for entry in self._entries.values()]

    @property
    def nbytes(self) -> int:
        """Memory of all entries, in bytes; 0 if values are only counted."""
        return 0 if self._weigh is None else self._weight + _ENTRY_BYTES * len(self._entries)

    def oldest_use(self) -> int | None:
        """Return the number of the last use of the least recently used value; None if empty."""
        with self._lock:
            return next((entry.last_use for entry in self._entries.values()), None)

    def evict_oldest(self) -> None:
        """Evict the least recently used value."""
        with self._lock:
            evicted = self._remove(next(iter(self._entries))) if self._entries else None
        del evicted

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            removed = [self._remove(key) for key in list(self._entries)]
        del removed

    def tags(self) -> frozenset[CacheTag]:
        """Return the tags of all keys."""
        with self._lock:
            return frozenset(self._keys_by_tag)

    def invalidate(self, tags: Collection[CacheTag]) -> int:
        """Remove the values whose keys have any of these tags; return their number."""
        with self._lock:
            keys = {key for tag in tags for key in self._keys_by_tag.get(tag, ())}
            removed = [self._remove(key) for key in keys]
        return len(removed)

    def _use(self, key: Hashable) -> _Entry[Value] | None:
        with self._lock:
            cached = self._entries.get(key)
            if cached is not None:
                self._entries.move_to_end(key)
                cached.last_use = next(_use_counter)
        return cached

    def _add(self, key: Hashable, entry: _Entry[Value]) -> None:
        self._entries[key] = entry
        self._weight += entry.weight
        for tag in entry.tags:
            self._keys_by_tag.setdefault(tag, set()).add(key)

    def _remove(self, key: Hashable) -> _Entry[Value]:
        entry = self._entries.pop(key)
        self._weight -= entry.weight
        for tag in entry.tags:
            keys = self._keys_by_tag[tag]
            keys.remove(key)
            if not keys:
                del self._keys_by_tag[tag]
        return entry


_caches: WeakSet[LruCache[Any]] = WeakSet()
_caches_lock = threading.Lock()


def all_caches() -> list[LruCache[Any]]:
    """Return all caches of this process."""
    with _caches_lock:
        return list(_caches)


def cached_bytes() -> int:
    """Return the memory that all caches of this process use, in bytes."""
    return sum(cache.nbytes for cache in all_caches())


def _evict_to_budget(newest_use: int) -> None:
    """Evict the least recently used values, of all caches, until the rest fits the budget.

    Values that were used at ``newest_use`` or later stay however heavy they are.
    """
    budget = cache_budget()
    caches = all_caches()
    while sum(cache.nbytes for cache in caches) > budget:
        candidates = [
            (last_use, cache)
            for cache in caches
            if cache.nbytes
            and (last_use := cache.oldest_use()) is not None
            and last_use < newest_use
        ]
        if not candidates:
            return
        min(candidates, key=lambda candidate: candidate[0])[1].evict_oldest()


def invalidate_stale(newest: BaseTable, others: Collection[BaseTable]) -> None:
    """Remove the cached values that no read of the newest version of a table needs.

    These are the values of other versions, of generations that are merged and in every maintained
    index of the base table, and of index segments that no longer exist. ``others`` are versions, of
    any table, that are read as well.
    """
    stale = _StaleTags(newest, others)
    removed = [
        cache.invalidate([tag for tag in cache.tags() if tag in stale]) for cache in all_caches()
    ]
    if any(removed):
        release_free_memory()


class _StaleTags:
    """Tags of a table that no read needs any more."""

    def __init__(self, newest: BaseTable, others: Collection[BaseTable]) -> None:
        self._newest = newest
        uri = newest.location.uri
        versions = {version_key(base): base for base in (newest, *others)}
        self._versions = {key: base for key, base in versions.items() if key.uri == uri}
        # Read only if a cache has a value of an index segment.
        self._segments = Lazy(lambda: set().union(*map(_segments, self._versions.values())))

    def __contains__(self, tag: CacheTag) -> bool:
        if tag.uri != self._newest.location.uri:
            return False
        if isinstance(tag, VersionTag):
            return tag not in self._versions
        if isinstance(tag, SegmentTag):
            return tag.uuid not in self._segments()
        return tag.number <= self._settled(tag.region_id)

    def _settled(self, region_id: UUID) -> int:
        """Return the newest generation of a region that is merged and in every maintained index."""
        details = self._newest.details
        names = details.catchup if details.maintain_all_indexes else details.maintained_indexes
        progress = (details.merged, *(details.catchup.get(name, {}) for name in names))
        return min(covered.get(region_id, 0) for covered in progress)


def _segments(base: BaseTable) -> set[str]:
    """Return the index segments of a version; none if it was cleaned up and cannot be read."""
    try:
        with lance_errors(f"reading the indexes of {base.location}"):
            indexes = base.dataset.describe_indices()
    except MemWalError:
        return set()
    return {segment.uuid for index in indexes for segment in index.segments}
