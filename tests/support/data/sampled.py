"""Parameters of which only some are tried by default, more by ``slow``, and all by ``soak``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(
    values: Iterable[Any], default: Callable[[Any], bool], ids: Callable[[Any], str] = str
) -> list[Any]:
    """Every value as a parameter; those that are not for the default run are marked slow."""
    return [
        pytest.param(value, id=ids(value), marks=() if default(value) else pytest.mark.slow)
        for value in values
    ]


def drawn(
    count: int, values: Iterable[Any], *, seed: str, ids: Callable[[Any], str] = str
) -> list[Any]:
    """Parameters for slow tests: ``count`` values, drawn by ``seed``, and the rest by ``soak``."""
    listed = list(values)
    chosen = set(random.Random(seed).sample(range(len(listed)), count))
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=pytest.mark.slow if number in chosen else pytest.mark.soak,
            id="-".join(map(ids, value)) if isinstance(value, tuple) else ids(value),
        )
        for number, value in enumerate(listed)
    ]


def every(step: int, values: Iterable[Any], ids: Callable[[Any], str] = str) -> list[Any]:
    """The same, with each ``step``-th value in the default run, from the first on."""
    listed = list(values)
    chosen = {id(value) for value in listed[::step]}
    return sampled(listed, lambda value: id(value) in chosen, ids)
