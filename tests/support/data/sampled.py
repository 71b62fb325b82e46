"""Parameters of which only some are tried by default, and all with ``slow``."""

from __future__ import annotations

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


def every(step: int, values: Iterable[Any], ids: Callable[[Any], str] = str) -> list[Any]:
    """The same, with each ``step``-th value in the default run, from the first on."""
    listed = list(values)
    chosen = {id(value) for value in listed[::step]}
    return sampled(listed, lambda value: id(value) in chosen, ids)
