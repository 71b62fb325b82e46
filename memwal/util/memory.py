"""Memory pool for rows handed to Lance, and release of memory that the allocators hold back."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# A fleet loads nothing heavy before it has something to do.


def handed_on() -> pa.MemoryPool:
    """Where rows are put that are made for Lance: in the memory of the C library.

    Lance reads a stream of batches on one of many threads of its own, and frees them on another.
    Arrow's usual allocator keeps what a thread has freed of another's for that one, which may never
    come back for it: of a writer that flushes 20,000 rows a second, with 30 MiB in its MemTables,
    it held 600 MiB after two minutes.
    """
    import pyarrow as pa

    return pa.system_memory_pool()


def release_free_memory() -> None:
    """Return what was freed but is still held by the allocators of Arrow and of the C library.

    Building indexes takes and frees much memory on many threads, and glibc keeps the free parts of
    every thread's arena: without this a writer's memory grows to several times its MemTables. What
    a reader forgets is scattered over as many.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        function = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        # Not glibc.
        return None
    function.argtypes = [ctypes.c_size_t]
    function.restype = ctypes.c_int
    return function
