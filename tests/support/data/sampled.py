"""Parameters of which only some are tried by default, more by ``slow``, and all by ``soak``."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def sampled(
    values: Iterable[Any], default: Callable[[Any], bool], ids: Callable[[Any], str] = str
) -> list[Any]:
    """Every value as a parameter: of those that are not for the default run, a third are slow."""
    listed = list(values)
    return drawn((len(listed) + 2) // 3, listed, seed="third", ids=ids, default=default)


def drawn(
    count: int,
    values: Iterable[Any],
    *,
    seed: str,
    ids: Callable[[Any], str] = str,
    default: Callable[[Any], bool] = lambda value: False,
) -> list[Any]:
    """Every value as a parameter: ``count`` of them, drawn by ``seed``, are slow, the rest soak.

    Those that are for the default run are neither.
    """
    listed = list(values)
    chosen = set(random.Random(seed).sample(range(len(listed)), count))

    def marks(number: int) -> Any:
        if default(listed[number]):
            return ()
        return pytest.mark.slow if number in chosen else pytest.mark.soak

    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=marks(number),
            id="-".join(map(ids, value)) if isinstance(value, tuple) else ids(value),
        )
        for number, value in enumerate(listed)
    ]


def every(step: int, values: Iterable[Any], ids: Callable[[Any], str] = str) -> list[Any]:
    """The same, with each ``step``-th value in the default run, from the first on."""
    listed = list(values)
    chosen = {id(value) for value in listed[::step]}
    return sampled(listed, lambda value: id(value) in chosen, ids)


def keep_few(items: Iterable[pytest.Item]) -> None:
    """Of each test that is marked ``few(count)``, leave so many cases in the default run.

    The others become slow. Cases that are slow or soak already do not count.
    """
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        # A test without parameters has no ``callspec``: it is its only case, and stays.
        if item.get_closest_marker("few") is None or not hasattr(item, "callspec"):
            continue
        assert isinstance(item, pytest.Function)
        if item.get_closest_marker("slow") is None and item.get_closest_marker("soak") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for name, listed in cases.items():
        mark = listed[0].get_closest_marker("few")
        assert mark is not None
        # Not the indices: of two decorators, pytest counts the values of the inner one anew for
        # each value of the outer one. The values are the same objects.
        values = [
            {parameter: id(value) for parameter, value in case.callspec.params.items()}
            for case in listed
        ]
        kept = few_of(values, *mark.args, seed=name)
        for number, case in enumerate(listed):
            if number not in kept:
                case.add_marker(pytest.mark.slow)


def few_of(cases: Sequence[dict[str, int]], count: int, *, seed: str) -> set[int]:
    """Numbers of so many cases: the first, the last, and those with most values not yet there.

    A single one is any of them, so that it is not the same value in all tests.
    """
    order = random.Random(seed).sample(range(len(cases)), len(cases))
    kept = {0, len(cases) - 1} if count > 1 else {order[0]}
    while len(kept) < min(count, len(cases)):
        there = {value for number in kept for value in cases[number].items()}
        rest = (number for number in order if number not in kept)
        kept.add(max(rest, key=lambda number: len(cases[number].items() - there)))
    return kept
