"""Lazy values, thread pools that outlast the main thread, and a guard against use after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar

from memwal.errors import WriterClosedError
from memwal.util import system

Value = TypeVar("Value")
Item = TypeVar("Item")
Result = TypeVar("Result")
Params = ParamSpec("Params")


def interpreter_is_ending() -> bool:
    """Return whether the main thread has ended: thread pools take no more calls.

    From then on only ``atexit`` handlers run, and threads that the main thread did not wait for.
    """
    return not threading.main_thread().is_alive()


class ThreadPool(ThreadPoolExecutor):
    """Thread pool that runs a call in the thread that submits it if it can have no thread.

    Python shuts all pools down before it calls the ``atexit`` handlers, in which a program may
    still write or close its writer; and a process may be at its limit of threads. A caller that
    submits must therefore not hold a lock that the call needs, unless the lock is reentrant. With
    fewer threads than it may have, the pool makes do.
    """

    _closed = False

    def submit(
        self, call: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs
    ) -> Future[Result]:
        """Submit a call. Raises RuntimeError after :meth:`shutdown`."""
        try:
            return super().submit(call, *args, **kwargs)
        except RuntimeError:
            if self._closed:
                raise
        return _run_now(call, *args, **kwargs)

    def _adjust_thread_count(self) -> None:
        # Called by submit(), which holds the pool's lock, after it queued the call.
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_queue.get_nowait()  # that call: no thread takes it
                raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls."""
        self._closed = True
        super().shutdown(wait, cancel_futures=cancel_futures)


def _run_now(
    call: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs
) -> Future[Result]:
    done: Future[Any] = Future()
    try:
        done.set_result(call(*args, **kwargs))
    except BaseException as error:
        done.set_exception(error)
    return done


class Lazy(Generic[Value]):
    """A value that is computed once, by the first thread that calls the object.

    A failure is not stored: the next call computes again.
    """

    __slots__ = ("_compute", "_lock", "_value")

    def __init__(self, compute: Callable[[], Value]) -> None:
        self._compute = compute
        self._value: list[Value] = []
        self._lock = threading.Lock()

    @classmethod
    def of(cls, value: Value) -> Lazy[Value]:
        """Wrap a value that needs no computation."""
        return cls(lambda: value)

    def __call__(self) -> Value:
        """Return the value, computing it on the first call."""
        if not self._value:
            with self._lock:
                if not self._value:
                    self._value.append(self._compute())
        return self._value[0]


def run_all(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run tasks concurrently and return their results in order.

    A task must not call this function. The threads are kept for later calls, since starting them
    takes longer than a small task.
    """
    if len(tasks) <= 1:
        return [task() for task in tasks]
    return list(_process_pool().map(lambda task: task(), tasks))


def map_parallel(
    call: Callable[[Item], Result], items: Iterable[Item], *, threads: int = 16
) -> list[Result]:
    """Call a function with each item, in threads of this call, and return the results in order."""
    with ThreadPool(threads) as pool:
        return list(pool.map(call, items))


class SharedCall:
    """A call without a result that serves every thread which asked for it before it began.

    Of many threads that ask at once, one calls and the rest wait, so that a slow call is not
    repeated for each of them. The actions of a thread before it asked happened before the call that
    it waits for begins: that call sees them. If a call fails, its thread gets the error, and the
    next one that waits calls again.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._asking, self._calling = threading.Lock(), threading.Lock()
        self._asked = self._served = 0  # how many asked, and how many of them were served

    def __call__(self) -> None:
        """Return when a call that began after this one was asked for has ended."""
        with self._asking:
            self._asked += 1
            number = self._asked
        with self._calling:
            if self._served >= number:
                return
            with self._asking:
                served = self._asked
            self._call()
            self._served = served


class ForkGuard:
    """Check that an object is used in the process that opened it.

    Writers do not survive a fork. The child of ``os.fork`` has copies of the writer's locks, some
    of them held by threads that the child does not have, and no thread that would flush. Two
    processes with one claim would also write to one log. An object that was opened before a fork
    therefore refuses to work after it, and raises before it touches a lock.

    A new writer in the child may not work either: the threads of Lance and of the object store's
    client do not survive a fork, and code that used them before it can hang or crash after it.
    Hence the advice to fork before anything is opened, or not at all.

    The message names the ``subject``, for example "the writer of s3://lake/flights".
    """

    __slots__ = ("_fork_count", "_pid", "_subject")

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._pid = os.getpid()
        self._fork_count = _fork_count

    @property
    def inherited(self) -> bool:
        """True in a forked child, which may neither use nor clean up the object."""
        return self._fork_count != _fork_count

    def check(self) -> None:
        """Raise WriterClosedError in a forked child. To be called before any lock is acquired."""
        if self._fork_count != _fork_count:
            raise WriterClosedError(
                f"{self._subject} was opened in process {self._pid} and does not work in process "
                f"{os.getpid()}, its fork: start processes that write with multiprocessing's "
                '"spawn" or "forkserver", or before anything was opened, and open a writer in each'
            )


_POOL_THREADS = 8
_pools_lock = threading.Lock()
_pools: dict[int, ThreadPool] = {}

# Counts the forks between the first process and this one. Unlike a process id, no descendant has
# the number of an ancestor again.
_fork_count = 0


def _process_pool() -> ThreadPool:
    process = os.getpid()
    with _pools_lock:
        if process not in _pools:
            # A forked process does not have the threads of its parent.
            _pools.clear()
            _pools[process] = ThreadPool(_POOL_THREADS, thread_name_prefix="memwal-read")
        return _pools[process]


def _count_fork() -> None:
    global _fork_count
    _fork_count += 1


system.after_fork_in_child(_count_fork)
