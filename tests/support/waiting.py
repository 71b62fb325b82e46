"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def until(holds: Callable[[], object], *, seconds: float = 240) -> None:
    """Fail unless something comes true within so long, which is never meant to be needed."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail("it never came true")
        time.sleep(0.02)
