"""The order of one register's operations, against a search that tries every order there is."""

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from histories.events import UNKNOWN, Level
from histories.register import Step, can_be_ordered


def _tries_everything(steps: Sequence[Step]) -> bool:
    unsure = [step for step in steps if not step.sure]
    sure = [step for step in steps if step.sure]
    return any(
        _explains(order)
        for count in range(len(unsure) + 1)
        for some in itertools.combinations(unsure, count)
        for order in itertools.permutations([*sure, *some])
    )


def _explains(order: Sequence[Step]) -> bool:
    value = None
    for number, step in enumerate(order):
        if any(later.end < step.after[later.level] for later in order[number + 1 :]):
            return False
        if not step.is_read:
            value = step.value
        elif step.value != value:
            return False
    return True


def _some_steps(dice: random.Random) -> Iterator[Step]:
    """A few operations that may or may not have an order."""
    values = [1, 2]
    for value in dice.choice([[1, None], [1, 2, None], [1, None, None], [1, 2]]):
        begin = dice.randint(0, 8)
        sure = dice.random() < 0.7
        end = begin + dice.randint(1, 5) if sure or dice.random() < 0.5 else UNKNOWN
        yield Step(False, value, begin, end, Level.STRONG, (begin,) * 3, sure)
        if value == 1:
            values = [1] if dice.random() < 0.5 else values
    for _ in range(dice.randint(1, 4)):
        begin = dice.randint(0, 10)
        level = Level(dice.randint(0, 2))
        stretched = sorted(begin - dice.choice([0, 0, 2, 4]) for _ in range(level))
        after = (*stretched, *[begin] * (3 - level))
        value = dice.choice([None, *values])
        yield Step(True, value, begin, begin + dice.randint(1, 4), level, after)


def _is_fit(steps: Sequence[Step]) -> bool:
    written = {step.value for step in steps if not step.is_read}
    return all(step.value is None or step.value in written for step in steps)


def test_it_says_what_trying_everything_says() -> None:
    dice = random.Random(1)
    answers = {True: 0, False: 0}
    while sum(answers.values()) < 800:
        steps = list(_some_steps(dice))
        if _is_fit(steps):
            expected = _tries_everything(steps)
            assert can_be_ordered(steps) == expected, steps
            answers[expected] += 1
    assert min(answers.values()) > 150


@pytest.mark.parametrize("count", [1_000])
def test_a_long_history_takes_no_search(count: int) -> None:
    """Many threads at once, and reads of long ago: whoever searched would never end."""
    steps = []
    for number in range(count):
        at = 10.0 * number
        value = None if number % 5 == 4 else number
        steps.append(Step(False, value, at - 30, at + 30, Level.STRONG, (at - 30,) * 3))
        after = (at - 2_000, at + 1, at + 1)
        steps.append(Step(True, value, at + 1, at + 50, Level.FLUSHED, after))

    assert can_be_ordered(steps)
