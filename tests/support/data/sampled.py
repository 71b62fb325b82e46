"""Parameters of which only some are tried by default, more by ``slow``, and all by ``soak``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
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
