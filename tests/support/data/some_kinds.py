"""A few of many kinds by default, and all of them among the slow tests."""

from collections.abc import Collection
from typing import Any

import pytest


def some(kinds: Collection[str], *default: str) -> list[Any]:
    """Parameters of a test that is run for every kind, of which the others are slow.

    For kinds that share most of their code, next to a test that tries each of them by default.
    """
    assert set(default) <= set(kinds)
    slow = pytest.mark.slow
    return [kind if kind in default else pytest.param(kind, marks=slow) for kind in kinds]
