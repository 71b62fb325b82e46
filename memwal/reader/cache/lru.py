"""LRU caches that share one memory budget and can be invalidated by table version.

When all caches together exceed the budget of the process, the values that were used least recently
are dropped first, whichever cache holds them.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from memwal.errors import InvalidInputError
from memwal.reader.cache.keys import CacheTag, tags_in

CACHE_VARIABLE = "MEMWAL_READ_CACHE_BYTES"
"""Environment variable with the bytes; :data:`DEFAULT_BYTES` unless it is set."""

DEFAULT_BYTES: Final = 3 << 30
"""As much as the limits of the single kinds add up to."""


def cache_budget() -> int:
    """Bytes that this process may keep for later reads.

    Raises
    ------
    InvalidInputError
        The environment variable is no number of bytes.
    """
    told = os.environ.get(CACHE_VARIABLE)
    if not told:
        return DEFAULT_BYTES
    if not told.isdecimal():
        raise InvalidInputError(
            f"{CACHE_VARIABLE} is {told!r}; set it to a number of bytes, such as 1073741824"
        )
    return int(told)


Value = TypeVar("Value")

# What an entry takes beside its value: the key with what it names, and its place.
_ENTRY_BYTES: Final = 1 << 10

_turns = itertools.count()


@dataclass(slots=True)
class _Entry(Generic[Value]):
    """A value, what it weighs, what its key names, and in whose turn it was asked for last."""

    value: Value
    weight: int
    names: frozenset[CacheTag]
    turn: int


class LruCache(Generic[Value]):
    """Keeps values by key and forgets those that were not asked for longest.

    Any thread may call it; two that miss the same key at once both make the value.

    Parameters
    ----------
    limit : int
        Of the weights of all values together; the newest value is kept however heavy it is.
    weigh : callable, optional
        Memory of a value with what nobody else keeps of it, in bytes: it counts in the budget of
        the process as well. By default values are counted.
    lasting : bool, default False
        Whether values are of use when what their keys name is outdated.
    """

    def __init__(
        self,
        limit: int,
        weigh: Callable[[Value], int] | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self._named: dict[CacheTag, set[Hashable]] = {}
        self._lock = threading.Lock()
        self._lasting = lasting
        with _all_lock:
            _all.add(self)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made when it is not there."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                found.turn = next(_turns)
                return found.value
        value = make()
        kept = _Entry(
            value,
            1 if self._weigh is None else self._weigh(value),
            frozenset() if self._lasting else tags_in(key),
            next(_turns),
        )
        # Freed when the lock is free again, here as below.
        gone: list[_Entry[Value]] = []
        with self._lock:
            if key not in self._values:
                self._add(key, kept)
            while self._weight > self._limit and len(self._values) > 1:
                gone.append(self._drop(next(iter(self._values))))
        if self._weigh is not None:
            _keep_to_budget(kept.turn)
        return value

    def put(self, key: Hashable, value: Value) -> None:
        """Set the value of a key, whatever it was."""
        with self._lock:
            gone = self._drop(key) if key in self._values else None
        del gone
        self.get(key, lambda: value)

    def peek(self, key: Hashable) -> Value | None:
        """The value of a key if it is there."""
        with self._lock:
            found = self._values.get(key)
        return None if found is None else found.value

    def values(self) -> list[Value]:
        """All that is there."""
        with self._lock:
            return [kept.value for kept in self._values.values()]

    @property
    def nbytes(self) -> int:
        """Memory of all that is kept, in bytes; 0 where values are only counted."""
        return 0 if self._weigh is None else self._weight + _ENTRY_BYTES * len(self._values)

    def oldest(self) -> int | None:
        """The turn in which the value was asked for that goes next; None when there is none."""
        with self._lock:
            return next((kept.turn for kept in self._values.values()), None)

    def drop_oldest(self) -> None:
        """Forget the value that was not asked for longest."""
        with self._lock:
            gone = self._drop(next(iter(self._values))) if self._values else None
        del gone

    def names(self) -> frozenset[CacheTag]:
        """What the keys name."""
        with self._lock:
            return frozenset(self._named)

    def forget(self, names: Collection[CacheTag]) -> int:
        """Forget the values whose keys name any of these, and tell how many those were."""
        with self._lock:
            keys = {key for name in names for key in self._named.get(name, ())}
            gone = [self._drop(key) for key in keys]
        return len(gone)

    def _add(self, key: Hashable, kept: _Entry[Value]) -> None:
        self._values[key] = kept
        self._weight += kept.weight
        for name in kept.names:
            self._named.setdefault(name, set()).add(key)

    def _drop(self, key: Hashable) -> _Entry[Value]:
        kept = self._values.pop(key)
        self._weight -= kept.weight
        for name in kept.names:
            keys = self._named[name]
            keys.remove(key)
            if not keys:
                del self._named[name]
        return kept


_all: WeakSet[LruCache[Any]] = WeakSet()
_all_lock = threading.Lock()


def all_caches() -> list[LruCache[Any]]:
    """Whatever keeps values in this process."""
    with _all_lock:
        return list(_all)


def _keep_to_budget(newest: int) -> None:
    """Forget what was not asked for longest, of whatever kind, until the rest fits.

    What was asked for in the turn ``newest`` or later stays however heavy it is.
    """
    budget = cache_budget()
    weighed = all_caches()
    while sum(recent.nbytes for recent in weighed) > budget:
        oldest = [
            (turn, recent)
            for recent in weighed
            if recent.nbytes and (turn := recent.oldest()) is not None and turn < newest
        ]
        if not oldest:
            return
        min(oldest, key=lambda one: one[0])[1].drop_oldest()
