"""Calls that several threads share."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from memwal.util.concurrency import SharedCall


class Slow:
    """A call that waits until it may go on."""

    def __init__(self) -> None:
        self.calls = 0
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.calls += 1
        self.begun.set()
        assert self.may_end.wait(240)


def test_threads_that_ask_while_a_call_runs_share_the_next_one() -> None:
    slow = Slow()
    shared = SharedCall(slow)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(shared)
        assert slow.begun.wait(240)
        asked = [pool.submit(shared) for _ in range(7)]
        while shared._asked < 8:
            time.sleep(0.01)
        assert not any(one.done() for one in asked)
        slow.may_end.set()
        wait([first, *asked])
    assert slow.calls == 2


def test_one_after_another_each_calls() -> None:
    slow = Slow()
    slow.may_end.set()
    shared = SharedCall(slow)
    shared()
    shared()
    assert slow.calls == 2


def test_after_a_failure_the_next_one_calls_again() -> None:
    outcomes = [ValueError("no space"), None]

    def call() -> None:
        error = outcomes.pop(0)
        if error is not None:
            raise error

    shared = SharedCall(call)
    with pytest.raises(ValueError, match="no space"):
        shared()
    shared()
    assert outcomes == []
