"""Waiting for what another thread or process does."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


def until(holds: Callable[[], object], *, seconds: float = 240) -> None:
    """Fail unless something comes true within so long, which is never meant to be needed."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail("it never came true")
        time.sleep(0.02)


@contextmanager
def caught_elsewhere(number: int, handle: Callable[[], None]) -> Iterator[None]:
    """Call ``handle`` for a signal in the block, which a thread that is not the main one catches.

    The system may choose any thread, and Python runs handlers in the main one. Fails if it runs the
    handler only when a minute is over.
    """
    told: list[str] = []

    def take(name: str) -> None:
        told.append(name)
        handle()

    before = signal.signal(number, lambda *_: take("signal"))
    timers = [
        threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), number)),
        threading.Timer(60, take, ["time"]),
    ]
    try:
        for timer in timers:
            timer.start()
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
        signal.signal(number, before)
    assert told == ["signal"]
