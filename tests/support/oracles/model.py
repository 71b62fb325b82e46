"""What a table must show: a dictionary, and writes of which nobody knows whether they happened."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Value = TypeVar("Value")
Change = Mapping[int, "Value | None"]
"""Key to new value; None deletes."""


class Model(Generic[Value]):
    """A dictionary of acknowledged rows, with an ordered tail of writes in doubt.

    A write is one entry per region: in each region it is there as a whole or not at all.

    Parameters
    ----------
    region_of : callable
        The region of a key; by default there is one.
    """

    def __init__(self, region_of: Callable[[int], Hashable] = lambda key: None) -> None:
        self.values: dict[int, Value] = {}
        self._region_of = region_of
        # What was begun since everything was known, and whether it was acknowledged.
        self._tail: list[tuple[Change[Value], bool]] = []

    def begin(self, change: Change[Value]) -> None:
        """A write starts; until it is acknowledged nobody knows whether it happened."""
        self._tail.append((dict(change), False))

    def refuse(self) -> None:
        """The newest write was refused: it did not happen and never will."""
        self._tail.pop()

    def acknowledge(self) -> None:
        """The newest write is durable."""
        change, _ = self._tail.pop()
        self._tail.append((change, True))
        if all(sure for _, sure in self._tail):
            self.acknowledge_all()

    def acknowledge_all(self) -> None:
        """Everything that was begun is durable."""
        self.values = self.expected()
        self._tail.clear()

    def expected(self) -> dict[int, Value]:
        """The rows when everything that was begun happened."""
        return _applied(self.values, [change for change, _ in self._tail])

    def settle(self, found: Mapping[int, Value], *, in_order: bool = False) -> None:
        """Compare with what is there after a crash, which from now on is the truth.

        Parameters
        ----------
        in_order : bool
            Whether no write of a region can be there without those before it.
        """
        for region in {self._region_of(key) for key in (*found, *self._keys())}:
            here = self._in_region(found, region)
            possible = self._possible(region, in_order=in_order)
            assert here in possible, f"region {region} shows {here}; possible is\n" + "\n".join(
                f"  {state}" for state in possible
            )
        self.values = dict(found)
        self._tail.clear()

    def copy(self) -> Model[Value]:
        """The same model, which goes its own way from now on."""
        twin: Model[Value] = Model(self._region_of)
        twin.values, twin._tail = dict(self.values), list(self._tail)
        return twin

    def transform(self, change: Callable[[Value], Value]) -> None:
        """Change every value, as a change of the schema does."""
        self.values = {key: change(value) for key, value in self.values.items()}
        self._tail = [
            ({key: value and change(value) for key, value in changed.items()}, sure)
            for changed, sure in self._tail
        ]

    def __repr__(self) -> str:
        return f"Model({self.values}, in doubt: {self._tail})"

    def _keys(self) -> set[int]:
        return {*self.values, *(key for change, _ in self._tail for key in change)}

    def _in_region(self, values: Change[Value], region: Hashable) -> dict[int, Value | None]:
        return {key: value for key, value in values.items() if self._region_of(key) == region}

    def _possible(self, region: Hashable, *, in_order: bool) -> list[dict[int, Value]]:
        start = {k: v for k, v in self.values.items() if self._region_of(k) == region}
        tail = [(self._in_region(change, region), sure) for change, sure in self._tail]
        tail = [(change, sure) for change, sure in tail if change]
        choices = itertools.product(*((True,) if sure else (False, True) for _, sure in tail))
        states: list[dict[int, Value]] = []
        for happened in choices:
            if in_order and list(happened) != sorted(happened, reverse=True):
                continue
            chosen = [change for (change, _), yes in zip(tail, happened, strict=True) if yes]
            states.append(_applied(start, chosen))
        return states


def _applied(values: Mapping[int, Value], changes: list[Change[Value]]) -> dict[int, Value]:
    result = dict(values)
    for change in changes:
        for key, value in change.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = value
    return result
