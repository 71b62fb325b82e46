"""Something happens right before one call of the system, in the middle of what is tested."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
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
def away_between(
    root: Path, first: int, last: int, *, instead: Sequence[str] | None = None
) -> Iterator[Calls]:
    """Have a folder be elsewhere from one look at files to another one, both from 0.

    Looks are calls of ``os`` that open, list or look at something, of all threads. With
    ``instead``, a folder with these files alone is in its place then.
    """
    calls, lock = Calls(), threading.Lock()
    place = root.with_name("away")
    other = root.with_name("instead")
    if instead is not None:
        other.mkdir(exist_ok=True)
        for name in instead:
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            (other / name).write_bytes(b"")

    def come_back() -> None:
        if instead is not None:
            root.rename(other)
        place.rename(root)

    def acting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with lock:
                if calls.count == first:
                    root.rename(place)
                    if instead is not None:
                        other.rename(root)
                if calls.count == last:
                    come_back()
                calls.count += 1
            return real(*arguments, **options)

        return call

    with ExitStack() as patches:
        for name in ("open", "stat", "lstat", "scandir", "readlink"):
            patches.enter_context(mock.patch.object(os, name, acting(getattr(os, name))))
        yield calls
    if first < calls.count <= last:
        come_back()


def moments_away(folder: Path, look: Callable[[], object]) -> Iterator[tuple[int, int]]:
    """Yield each time for which a folder can be away during a look, for :func:`away_between`.

    A look that misses something looks again, which adds moments.
    """
    with away_between(folder, -1, -1) as calls:
        look()
    for first in range(calls.count):
        for last in range(first + 1, calls.count + 4):
            yield first, last
