"""What was asked for last, kept up to a limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from memwal.table_index.base_table import BaseTable

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
    """

    def __init__(self, limit: int, weigh: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

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
                weight = self._weigh(value)
                self._values[key] = (value, weight)
                self._weight += weight
            while self._weight > self._limit and len(self._values) > 1:
                _, (_, weight) = self._values.popitem(last=False)
                self._weight -= weight
        return value

    def put(self, key: Hashable, value: Value) -> None:
        """Set the value of a key, whatever it was."""
        with self._lock:
            _, weight = self._values.pop(key, (value, 0))
            self._weight -= weight
        self.get(key, lambda: value)

    def peek(self, key: Hashable) -> Value | None:
        """The value of a key if it is there."""
        with self._lock:
            found = self._values.get(key)
        return None if found is None else found[0]


def version_key(base: BaseTable) -> tuple[Hashable, ...]:
    """What names the rows of a version for ever, also when another table comes into its place.

    A table that was made anew, or taken back from a backup, counts its versions anew as well.
    """
    return base.location.uri, base.version, base.digest
