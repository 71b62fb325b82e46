"""Something happens right before one call of the system, in the middle of what is tested."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
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


@contextmanager
def away_between(root: Path, first: int, last: int) -> Iterator[Calls]:
    """Have a table be elsewhere from one look at files to another one, both from 0.

    Looks are calls of ``os`` that open, list or look at something, of all threads.
    """
    calls, lock = Calls(), threading.Lock()
    place = root.with_name("away")

    def acting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with lock:
                if calls.count == first:
                    root.rename(place)
                if calls.count == last:
                    place.rename(root)
                calls.count += 1
            return real(*arguments, **options)

        return call

    with ExitStack() as patches:
        for name in ("open", "stat", "lstat", "scandir", "readlink"):
            patches.enter_context(mock.patch.object(os, name, acting(getattr(os, name))))
        yield calls
    if first < calls.count <= last:
        place.rename(root)
