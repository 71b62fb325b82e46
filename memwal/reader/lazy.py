"""What is made when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Lazy(Generic[Value]):
    """A value that is made once, by whichever thread asks first.

    A failure is not kept: the next one to ask tries again.

    Parameters
    ----------
    make : callable
        Makes the value.
    """

    __slots__ = ("_lock", "_made", "_make")

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._made: list[Value] = []
        self._lock = threading.Lock()

    @classmethod
    def of(cls, value: Value) -> Lazy[Value]:
        """A value that is there already."""
        return cls(lambda: value)

    def __call__(self) -> Value:
        """The value."""
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]
