"""What was asked for last, kept up to a limit, and until it is outdated."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from memwal.reader.kept_names import Name, names_in

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Keeps values by key and forgets those that were not asked for longest.

    Any thread may call it; two that miss the same key at once both make the value.

    Parameters
    ----------
    limit : int
        Of the weights of all values together; the newest value is kept however heavy it is.
    weigh : callable, optional
        Weight of a value, 1 by default.
    lasting : bool, default False
        Whether values are of use when what their keys name is outdated.
    """

    def __init__(
        self,
        limit: int,
        weigh: Callable[[Value], int] = lambda value: 1,
        *,
        lasting: bool = False,
    ) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Hashable, tuple[Value, int, frozenset[Name]]] = OrderedDict()
        self._named: dict[Name, set[Hashable]] = {}
        self._lock = threading.Lock()
        self._lasting = lasting
        _all.add(self)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made when it is not there."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found[0]
        value = make()
        with self._lock:
            if key not in self._values:
                self._add(key, value)
            while self._weight > self._limit and len(self._values) > 1:
                self._drop(next(iter(self._values)))
        return value

    def put(self, key: Hashable, value: Value) -> None:
        """Set the value of a key, whatever it was."""
        with self._lock:
            if key in self._values:
                self._drop(key)
        self.get(key, lambda: value)

    def peek(self, key: Hashable) -> Value | None:
        """The value of a key if it is there."""
        with self._lock:
            found = self._values.get(key)
        return None if found is None else found[0]

    def values(self) -> list[Value]:
        """All that is there."""
        with self._lock:
            return [value for value, _, _ in self._values.values()]

    def names(self) -> frozenset[Name]:
        """What the keys name."""
        with self._lock:
            return frozenset(self._named)

    def forget(self, names: Collection[Name]) -> None:
        """Forget the values whose keys name any of these."""
        with self._lock:
            for key in {key for name in names for key in self._named.get(name, ())}:
                self._drop(key)

    def _add(self, key: Hashable, value: Value) -> None:
        names = frozenset() if self._lasting else names_in(key)
        weight = self._weigh(value)
        self._values[key] = (value, weight, names)
        self._weight += weight
        for name in names:
            self._named.setdefault(name, set()).add(key)

    def _drop(self, key: Hashable) -> None:
        _, weight, names = self._values.pop(key)
        self._weight -= weight
        for name in names:
            keys = self._named[name]
            keys.remove(key)
            if not keys:
                del self._named[name]


_all: WeakSet[Recent[Any]] = WeakSet()


def all_kept() -> list[Recent[Any]]:
    """Whatever keeps values in this process."""
    return list(_all)
