"""LRU caches that share one memory budget and are invalidated by the tags of their keys.

When all caches together exceed the budget of the process, the values that were used least recently
are evicted first, from any cache. Values of a table's earlier versions, and of generations that
were merged and collected, are removed once a read sees the newest version. A read that uses such a
value at that time continues with its own reference, or starts over if it needs more of a generation
that is collected by then.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar
from uuid import UUID
from weakref import WeakSet

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import InvalidInputError, MemWalError
from memwal.format.paths import MEM_WAL_DIR, parse_generation_name, parse_region_name
from memwal.util.concurrency import Lazy
from memwal.util.memory import release_free_memory

_GENERATION: Final = re.compile(rf"(.+)/{MEM_WAL_DIR}/([^/]+)/([^/]+)(?:/.*)?", re.DOTALL)
_SEGMENT: Final = re.compile(r"(.+)/_indices/([^/]+)(?:/.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class VersionTag:
    """A version of a base table, told by its digest from one of another table in its place.

    A table that was created again, or restored from a backup, starts to count its versions again.
    """

    uri: str
    number: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class GenerationTag:
    """A flushed generation."""

    uri: str
    region_id: UUID
    number: int


@dataclass(frozen=True, slots=True)
class SegmentTag:
    """A segment of an index of the base table."""

    uri: str
    uuid: str


CacheTag = VersionTag | GenerationTag | SegmentTag


def version_key(base: BaseTable) -> VersionTag:
    """Return the tag of a version, which is part of the cache keys of its values."""
    return VersionTag(base.location.uri, base.version, base.digest)


def tags_in(key: Hashable) -> frozenset[CacheTag]:
    """Return the tags in a key, at any depth: its versions, or without a version all others.

    A value of a version and of generations beside it is stale as soon as the version is: each
    merge makes a new version.
    """
    parts = list(_flatten(key))
    versions = frozenset(part for part in parts if isinstance(part, VersionTag))
    if versions:
        return versions
    tags = (_tag_of_path(part) for part in parts if isinstance(part, str))
    return frozenset(tag for tag in tags if tag is not None)


def _flatten(key: Hashable) -> Iterator[Hashable]:
    if isinstance(key, tuple):
        for part in key:
            yield from _flatten(part)
    else:
        yield key


# Of a generation, each of its columns and files has a key.
@lru_cache(maxsize=1 << 14)
def _tag_of_path(path: str) -> CacheTag | None:
    """Return the tag of the generation or the segment that has this folder or file."""
    match = _GENERATION.fullmatch(path)
    if match is not None:
        region_id, number = parse_region_name(match[2]), parse_generation_name(match[3])
        return GenerationTag(match[1], region_id, number) if region_id and number else None
    match = _SEGMENT.fullmatch(path)
    return SegmentTag(match[1], match[2]) if match is not None else None


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
        """Return the value of a key; a miss makes it. A value without a key is not kept."""
        cached = self.use(key)
        if cached is not None:
            return cached
        value = make()
        if key is None:
            return value
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
                self._entries[key] = entry
                self._weight += entry.weight
                for tag in entry.tags:
                    self._keys_by_tag.setdefault(tag, set()).add(key)
            while self._weight > self._limit and len(self._entries) > 1:
                evicted.append(self._remove(next(iter(self._entries))))
        if self._weigh is not None:
            _evict_to_budget(entry)
        return value

    def use(self, key: Hashable) -> Value | None:
        """Return the value of a key if it is cached, which counts as a use."""
        with self._lock:
            cached = self._entries.get(key)
            if cached is None:
                return None
            self._entries.move_to_end(key)
            cached.last_use = next(_use_counter)
        return cached.value

    def put(self, key: Hashable, value: Value) -> None:
        """Set the value of a key, also if it has one."""
        with self._lock:
            evicted = self._remove(key) if key in self._entries else None
        del evicted
        self.get(key, lambda: value)

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


@dataclass(slots=True)
class _Room:
    """Bytes that fit into the budget until all caches are added up again; at least as many do."""

    budget: int = 0
    nbytes: int = 0


_room = _Room()
_room_lock = threading.Lock()


def _evict_to_budget(newest: _Entry[Any]) -> None:
    """Evict the least recently used values, of all caches, until the rest fits the budget.

    The value that was just cached, and values that were used later, stay even if they are heavy.
    """
    budget = cache_budget()
    with _room_lock:
        _room.nbytes -= newest.weight + _ENTRY_BYTES
        if _room.budget == budget and _room.nbytes >= 0:
            return
    caches = all_caches()
    while _add_up(caches, budget) < 0:
        candidates = [
            (last_use, cache)
            for cache in caches
            if cache.nbytes
            and (last_use := cache.oldest_use()) is not None
            and last_use < newest.last_use
        ]
        if not candidates:
            return
        min(candidates, key=lambda candidate: candidate[0])[1].evict_oldest()


def _add_up(caches: Collection[LruCache[Any]], budget: int) -> int:
    """Return how many bytes the caches leave of a budget, and note it.

    A value that another thread caches at the same time counts, perhaps twice: its thread subtracts
    it after it is cached, and waits for the lock.
    """
    with _room_lock:
        _room.budget, _room.nbytes = budget, budget - sum(cache.nbytes for cache in caches)
        return _room.nbytes


def invalidate_stale(newest: BaseTable, others: Collection[BaseTable]) -> None:
    """Remove the cached values that no read of the newest version of a table needs.

    These are the values of other versions, of generations that are merged and in every maintained
    index of the base table, and of index segments that no longer exist. ``others`` are versions, of
    any table, that are read as well.
    """
    uri, details = newest.location.uri, newest.details
    every = {version_key(base): base for base in (newest, *others)}
    versions = {key: base for key, base in every.items() if key.uri == uri}
    # Read only if a cache has a value of an index segment.
    segments = Lazy(lambda: set().union(*map(_segments, versions.values())))
    names = details.catchup if details.maintain_all_indexes else details.maintained_indexes
    progress = (details.merged, *(details.catchup.get(name, {}) for name in names))

    def is_stale(tag: CacheTag) -> bool:
        if tag.uri != uri:
            return False
        if isinstance(tag, VersionTag):
            return tag not in versions
        if isinstance(tag, SegmentTag):
            return tag.uuid not in segments()
        return tag.number <= min(covered.get(tag.region_id, 0) for covered in progress)

    removed = [cache.invalidate([*filter(is_stale, cache.tags())]) for cache in all_caches()]
    if any(removed):
        release_free_memory()


def _segments(base: BaseTable) -> set[str]:
    """Return the index segments of a version; none if it was cleaned up and cannot be read."""
    try:
        with lance_errors(f"reading the indexes of {base.location}"):
            indexes = base.dataset.describe_indices()
    except MemWalError:
        return set()
    return {segment.uuid for index in indexes for segment in index.segments}
