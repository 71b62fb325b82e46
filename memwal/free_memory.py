"""Giving memory back to the system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import pyarrow as pa


def release_free_memory() -> None:
    """Return what was freed but is still held by the allocators of Arrow and of the C library.

    Building indexes takes and frees much memory on many threads, and glibc keeps the free parts of
    every thread's arena: without this a writer's memory grows to several times its MemTables. What
    a reader forgets is scattered over as many.
    """
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
