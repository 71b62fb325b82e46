"""Memory pool for rows that Lance reads, and release of memory that allocators hold back."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from memwal.util import system

# pyarrow is imported inside the functions: a fleet loads nothing heavy before it needs it.
if TYPE_CHECKING:
    import pyarrow as pa

# To look for free memory takes milliseconds, about as long as to flush a few rows.
_RELEASED_AT_ONCE: Final = 16 << 20

# Parameters of mallopt, as malloc.h has them.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MALLOC_VARIABLES: Final = frozenset(
    {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}
)
# A larger block is mapped on its own, and unmapped when it is freed. A compaction of rows of 1 MB
# takes up to a tenth more processor time with it.
_KEPT_BLOCK: Final = 4 << 20

_freed = 0


def native_memory_pool() -> pa.MemoryPool:
    """Return the pool for rows that are made for Lance: memory of the C library.

    Lance reads a stream of batches on one of its many threads, and frees them on another. Arrow's
    default allocator keeps such memory for the thread that allocated it, which may never use it
    again: for a writer that flushes 20,000 rows a second, with 30 MiB in its MemTables, it held
    600 MiB after two minutes.
    """
    import pyarrow as pa

    return pa.system_memory_pool()


def release_free_memory() -> None:
    """Return freed memory that the allocators of Arrow and of the C library still hold.

    Index builds allocate and free much memory on many threads, and glibc keeps the free parts of
    every thread's arena: without this call a writer's memory grows to several times its MemTables.
    Values that a reader's cache evicts are scattered over as many arenas.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = system.malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def bound_free_memory() -> None:
    """Let the C library keep less freed memory, from now on and in the whole process.

    With each large block that is freed, glibc raises the size up to which it keeps such blocks, to
    32 MiB, and keeps twice as much at the end of each of its arenas, of which there are eight for a
    processor, in spite of :func:`release_free_memory`. A compaction of rows of 1 MB, which needs
    300 MiB, came to 600 MiB so. Limits that the environment sets are kept.
    """
    mallopt = system.mallopt()
    if mallopt is None or not _MALLOC_VARIABLES.isdisjoint(os.environ):
        return
    mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK)
    mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BLOCK)


class MemoryLimit:
    """Releases memory that allocators retain after tasks, above a limit.

    Allocators and libraries hold some memory back after each task, and more with each task that
    runs on other threads. To return all of it after every task would take a quarter of its time, so
    it is returned when there is more than the limit.
    """

    def __init__(self) -> None:
        self._lowest: int | None = None

    @contextmanager
    def hold(self, limit: int) -> Iterator[None]:
        """Release free memory after the block if there are ``limit`` bytes more than at the lowest.

        The remaining memory is in use, and counts as the lowest from there on.
        """
        self._excess()
        try:
            yield
        finally:
            if self._excess() > limit:
                release_free_memory()
                self._lowest = None
                self._excess()

    def _excess(self) -> int:
        """Return how much more memory the process has than at the lowest; 0 if nothing tells."""
        resident = system.resident_bytes() or 0
        self._lowest = resident if self._lowest is None else min(self._lowest, resident)
        return resident - self._lowest


def release_after(freed: int) -> None:
    """Return free memory as :func:`release_free_memory` does, once enough bytes were freed.

    ``freed`` is the number of bytes that the caller has just freed. Two threads at once may count
    too little, and release it later.
    """
    global _freed
    _freed += freed
    if _freed >= _RELEASED_AT_ONCE:
        _freed = 0
        release_free_memory()
