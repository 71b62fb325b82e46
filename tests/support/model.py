"""What a table must show: a dictionary, and the writes of which nobody knows whether they happened."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Value = TypeVar("Value")
Change = Mapping[int, "Value | None"]
"""Key to new value; None deletes."""


class Model(Generic[Value]):
    """A dictionary of acknowledged rows, with an ordered tail of writes in doubt.

    A write is one entry per region: in each region it is there as a whole or not at all, and not
    without those that were begun there before it.

    Parameters
    ----------
    region_of : callable
        The region of a key; by default there is one.
    """

    def __init__(self, region_of: Callable[[int], Hashable] = lambda key: None) -> None:
        self.values: dict[int, Value] = {}
        self._doubt: list[Change[Value]] = []
        self._region_of = region_of

    def begin(self, change: Change[Value]) -> None:
        """A write starts; until it is acknowledged nobody knows whether it happened."""
        self._doubt.append(dict(change))

    def refuse(self) -> None:
        """The newest write was refused: it did not happen and never will."""
        self._doubt.pop()

    def acknowledge(self) -> None:
        """Everything that was begun is durable."""
        self.values = self.expected()
        self._doubt.clear()

    def expected(self) -> dict[int, Value]:
        """The rows when everything that was begun happened."""
        values = dict(self.values)
        for change in self._doubt:
            _apply(values, change)
        return values

    def settle(self, found: Mapping[int, Value]) -> None:
        """Compare with what is there after a crash, which from now on is the truth."""
        regions = {self._region_of(key) for key in (*found, *self.values, *self.expected())}
        for region in regions:
            here = {key: value for key, value in found.items() if self._region_of(key) == region}
            possible = self._possible(region)
            assert here in possible, (
                f"region {region} shows {here} after a crash; possible is\n"
                + "\n".join(f"  {state}" for state in possible)
            )
        self.values = dict(found)
        self._doubt.clear()

    def copy(self) -> Model[Value]:
        """The same model, which goes its own way from now on."""
        twin: Model[Value] = Model(self._region_of)
        twin.values, twin._doubt = dict(self.values), list(self._doubt)
        return twin

    def transform(self, change: Callable[[Value], Value]) -> None:
        """Change every value, as a change of the schema does."""
        assert not self._doubt
        self.values = {key: change(value) for key, value in self.values.items()}

    def _possible(self, region: Hashable) -> list[dict[int, Value]]:
        values = {k: v for k, v in self.values.items() if self._region_of(k) == region}
        states = [dict(values)]
        for change in self._doubt:
            _apply(values, {k: v for k, v in change.items() if self._region_of(k) == region})
            if values != states[-1]:
                states.append(dict(values))
        return states


def _apply(values: dict[int, Value], change: Change[Value]) -> None:
    for key, value in change.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
