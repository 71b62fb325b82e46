"""Every order of steps that a small model allows, looked at one after another.

A model is a few processes that share a store. A state is everything that they and the store hold; a
step is one request of one process, or its death. The search goes through all states that can be
reached, breadth first, so that the first broken one is found by the shortest way there.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    """What is searched."""

    def initial(self) -> S:
        """The state before the first step."""

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        """Each step that some process may take now: what it is called, and the state after it."""

    def broken(self, state: S) -> str | None:
        """Which promise a state breaks, if any."""


@dataclass(frozen=True, slots=True)
class Explored:
    """What a search saw.

    Attributes
    ----------
    states, steps : int
        How many there were.
    names : frozenset of str
        The kinds of steps that were taken, so that a model whose processes are stuck is noticed.
    broken : str or None
        The promise that did not hold.
    way : tuple of str
        The steps to the state that broke it.
    """

    states: int
    steps: int
    names: frozenset[str]
    broken: str | None = None
    way: tuple[str, ...] = ()


def explore(model: Model[S], *, most: int = 3_000_000) -> Explored:
    """Go through all states of a model, up to the first broken one.

    Raises OverflowError when there are more than ``most``: a search that is cut short proves
    nothing.
    """
    # Each of the states stays until the end, and none is part of a cycle: no garbage to look for.
    gc.disable()
    try:
        return _explore(model, most)
    finally:
        gc.enable()


def _explore(model: Model[S], most: int) -> Explored:
    first = model.initial()
    came_by: dict[S, tuple[str, S] | None] = {first: None}
    reached, next_reached = [first], []
    steps = 0
    names: set[str] = set()
    while reached:
        for state in reached:
            if broken := model.broken(state):
                way = tuple(_way(came_by, state))
                return Explored(len(came_by), steps, frozenset(names), broken, way)
            for name, after in model.steps(state):
                steps += 1
                names.add(name.partition(":")[2] or name)
                if after not in came_by:
                    came_by[after] = (name, state)
                    next_reached.append(after)
        if len(came_by) > most:
            raise OverflowError(f"more than {most} states: make the model smaller")
        reached, next_reached = next_reached, []
    return Explored(len(came_by), steps, frozenset(names))


def _way(came_by: dict[S, tuple[str, S] | None], state: S) -> list[str]:
    way: list[str] = []
    while (step := came_by[state]) is not None:
        way.append(step[0])
        state = step[1]
    return way[::-1]
