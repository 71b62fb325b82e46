"""Lazy values, a shared thread pool for blocking reads, and a guard against use after a fork.

Writers do not survive a fork. The child of ``os.fork`` has copies of the writer's locks, some of
them held by threads that the child does not have, and no thread that would flush. Two processes
with one claim would also write to one log. An object that was opened before a fork therefore
refuses to work after it, and raises before it touches a lock.

A new writer in the child may not work either: the threads of Lance and of the object store's client
do not survive a fork, and whatever used them before it can hang or crash after it. Hence the advice
to fork before anything is opened, or not at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from memwal.errors import WriterClosedError

Value = TypeVar("Value")


class Lazy(Generic[Value]):
    """A value that is made once, by whichever thread asks first.

    A failure is not kept: the next one to ask tries again.

    Parameters
    ----------
    make : callable
        Makes the value.
    """

    __slots__ = ("_lock", "_made", "_make")

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._made: list[Value] = []
        self._lock = threading.Lock()

    @classmethod
    def of(cls, value: Value) -> Lazy[Value]:
        """A value that is there already."""
        return cls(lambda: value)

    def __call__(self) -> Value:
        """The value."""
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]


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


# Counts the forks between the first process and this one. Unlike a process id, no descendant has
# the number of an ancestor again.
_generation = 0


def _in_child() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_in_child)


class ForkGuard:
    """Remembers the process in which something was opened.

    Parameters
    ----------
    what : str
        What is guarded, for the message: "the writer of s3://lake/flights".
    """

    __slots__ = ("_generation", "_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._generation = _generation

    @property
    def inherited(self) -> bool:
        """Whether this process got it by a fork. Then nothing of it may be used or cleaned up."""
        return self._generation != _generation

    def check(self) -> None:
        """Make sure that this is the process; before taking any lock.

        Raises
        ------
        WriterClosedError
            It is a child of that process.
        """
        if self._generation != _generation:
            raise WriterClosedError(
                f"{self._what} was opened in process {self._pid} and does not work in process "
                f"{os.getpid()}, its fork: start processes that write with multiprocessing's "
                '"spawn" or "forkserver", or before anything was opened, and open a writer in each'
            )
