"""Something happens right before one call of the system, in the middle of what is tested."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass
class Calls:
    """How often the function was called."""

    count: int = 0


@contextmanager
def before_call(name: str, number: int, act: Callable[[], object]) -> Iterator[Calls]:
    """Call ``act`` before the call with this number, from 0, of a function of ``os``."""
    calls = Calls()
    real = getattr(os, name)

    def acting(*arguments: Any, **options: Any) -> Any:
        if calls.count == number:
            act()
        calls.count += 1
        return real(*arguments, **options)

    with mock.patch.object(os, name, acting):
        yield calls
