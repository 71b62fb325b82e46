"""Threads for what waits for storage or for Lance."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

_THREADS = 8
_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def run_all(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run tasks at once and return their results in order; none of them may call this again.

    The threads stay for the next call, since starting them takes longer than a small task.
    """
    if len(tasks) <= 1:
        return [task() for task in tasks]
    return list(_pool().map(lambda task: task(), tasks))


def _pool() -> ThreadPoolExecutor:
    process = os.getpid()
    with _lock:
        if process not in _pools:
            # The threads of a parent are not there in a forked process.
            _pools.clear()
            _pools[process] = ThreadPoolExecutor(_THREADS, thread_name_prefix="memwal-read")
        return _pools[process]
