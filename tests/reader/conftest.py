"""Fixtures of the tests of reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memwal.search.vector import in_memory as vector_memory


@pytest.fixture
def search_in_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that has generations searched in memory at once, or never."""

    def choose(in_memory: bool) -> None:
        monkeypatch.setattr(vector_memory, "_SEARCHES_BEFORE", 0 if in_memory else 1_000_000)

    return choose
