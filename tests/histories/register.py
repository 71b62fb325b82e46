"""Whether what was done to one key can have happened one after the other.

Written values are unique, deletes are not. A value that is over never comes again, so that in any
order a write stands right before the reads that saw it. Where such a group can come next, to place
it later is never better: it only stands in the way of others. So there is nothing to choose, but
for deletes: which of them a read saw that found no row, nobody knows. These are tried, one after
another, and what was tried is remembered.

A write of unknown outcome that nobody saw need not have happened. One that somebody saw has. Of a
delete of unknown outcome both are tried, as soon as something is placed that it had to come before.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from histories.events import Level, Value


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One operation and what has to come before it.

    Attributes
    ----------
    is_read : bool
    value : int or None
    begin, end : float
    level : Level
        As what it counts for those that come after it.
    after : tuple of float, one for each level
        All operations of a level come before this one that had ended before that moment.
    sure : bool
        Whether it took place for certain.
    """

    is_read: bool
    value: Value
    begin: float
    end: float
    level: Level
    after: tuple[float, float, float]
    sure: bool = True


def can_be_ordered(steps: Iterable[Step]) -> bool:
    """Whether some order explains every read; there is no row before the first write.

    Each value must be written once at most, and be written if it is read.
    """
    return _Search(steps).run()


class _State(NamedTuple):
    """How far an order is.

    Attributes
    ----------
    placed : tuple of int
        For each level a bit for each step that is placed.
    is_absent : bool
        Whether there is no row now.
    decided, wanted : int
        Bits of deletes of unknown outcome: those that are placed or never took place, and those
        that took place and are not placed yet.
    """

    placed: tuple[int, int, int]
    is_absent: bool
    decided: int
    wanted: int


class _Search:
    def __init__(self, steps: Iterable[Step]) -> None:
        groups: dict[Value, list[Step]] = {}
        self._absent: list[Step] = []
        self._deletes: list[Step] = []
        self._unsure: dict[int, Step] = {}
        for step in sorted(steps, key=lambda step: (step.begin, step.is_read)):
            if step.value is not None:
                # A read may begin before the write that it saw; the write comes first all the same.
                group = groups.setdefault(step.value, [])
                group.insert(len(group) if step.is_read else 0, step)
            elif step.is_read:
                self._absent.append(step)
            elif step.sure:
                self._deletes.append(step)
            else:
                self._unsure[1 << len(self._unsure)] = step
        self._groups = sorted(
            (group for group in groups.values() if len(group) > 1 or group[0].sure),
            key=lambda group: group[0].begin,
        )
        self._number([*itertools.chain(*self._groups), *self._absent, *self._deletes])

    def _number(self, steps: Sequence[Step]) -> None:
        """Give each step that must be placed a bit among those of its level, in order of ends."""
        self._bits: dict[Step, int] = {}
        self._ends: list[list[float]] = []
        for level in Level:
            here = sorted((s for s in steps if s.level == level), key=lambda step: step.end)
            self._bits |= {step: 1 << number for number, step in enumerate(here)}
            self._ends.append([*(step.end for step in here), math.inf])

    def run(self) -> bool:
        start = _State((0, 0, 0), True, 0, 0)
        stack, seen = [start], {start}
        while stack:
            state, branches = self._settled(stack.pop())
            if self._is_complete(state):
                return True
            for branch in branches:
                if branch not in seen:
                    seen.add(branch)
                    stack.append(branch)
        return False

    def _is_complete(self, state: _State) -> bool:
        return not state.wanted and all(
            placed == (1 << len(ends) - 1) - 1
            for placed, ends in zip(state.placed, self._ends, strict=True)
        )

    def _settled(self, state: _State) -> tuple[_State, list[_State]]:
        """Place whatever can come next and need not be chosen; also returns what may be chosen."""
        absent = [read for read in self._absent if not self._is_placed(state, read)]
        groups = [group for group in self._groups if not self._is_placed(state, group[0])]
        while True:
            group = self._next_absent(state, absent) or self._next_group(state, groups)
            if group is None:
                return state, self._after_a_delete(state, absent)
            doubtful = self._doubtful(state, group, absent)
            if doubtful:
                forgone = state._replace(decided=state.decided | doubtful)
                return state, [state._replace(wanted=state.wanted | doubtful), forgone]
            for step in group:
                state = self._with(state, step)
            (absent if group[0].value is None else groups).remove(
                group[0] if group[0].value is None else group
            )

    def _next_absent(self, state: _State, absent: Iterable[Step]) -> list[Step] | None:
        """A read that finds no row now."""
        if not state.is_absent:
            return None
        return next(([read] for read in absent if self._is_next(state, read)), None)

    def _next_group(self, state: _State, groups: Sequence[list[Step]]) -> list[Step] | None:
        """A write and all reads of it."""
        bound = min(self._first_open(state))
        for group in groups:
            if group[0].begin > bound:
                return None
            following = state
            for step in group:
                if not self._is_next(following, step):
                    break
                following = self._with(following, step)
            else:
                return group
        return None

    def _doubtful(self, state: _State, group: Sequence[Step], absent: Iterable[Step]) -> int:
        """The bit of an undecided delete that has to come before a group, if that would help."""
        latest = max(step.after[Level.STRONG] for step in group)
        for bit, delete in self._unsure.items():
            if (state.decided | state.wanted) & bit or delete.end >= latest:
                continue
            if any(read.end >= delete.begin for read in absent):
                return bit
        return 0

    def _after_a_delete(self, state: _State, absent: Sequence[Step]) -> list[_State]:
        """What may come next of deletes; what is to be tried first stands last."""
        found = []
        for bit, delete in self._unsure.items():
            if not state.decided & bit and self._is_next(state, delete):
                following = state._replace(
                    is_absent=True, decided=state.decided | bit, wanted=state.wanted & ~bit
                )
                if state.wanted & bit or self._next_absent(following, absent):
                    found.append(following)
        found += [
            self._with(state, delete)
            for delete in reversed(self._deletes)
            if not self._is_placed(state, delete) and self._is_next(state, delete)
        ]
        return found

    def _first_open(self, state: _State) -> tuple[float, float, float]:
        """For each level the end of what ends first of all that is not placed."""
        first, second, third = (
            ends[(~placed & placed + 1).bit_length() - 1]
            for placed, ends in zip(state.placed, self._ends, strict=True)
        )
        return first, second, third

    def _is_next(self, state: _State, step: Step) -> bool:
        """Whether all that must come before a step is placed."""
        first, second, third = self._first_open(state)
        after = step.after
        if first < after[0] or second < after[1] or third < after[2]:
            return False
        return not state.wanted or not any(
            state.wanted & bit and delete.end < after[0] and delete is not step
            for bit, delete in self._unsure.items()
        )

    def _is_placed(self, state: _State, step: Step) -> bool:
        return bool(state.placed[step.level] & self._bits[step])

    def _with(self, state: _State, step: Step) -> _State:
        placed = list(state.placed)
        placed[step.level] |= self._bits[step]
        first, second, third = placed
        return state._replace(placed=(first, second, third), is_absent=step.value is None)
