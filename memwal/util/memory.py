"""Memory pool for rows that Lance reads, and release of memory that allocators hold back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwal.util import system

# pyarrow is imported inside the functions: a fleet loads nothing heavy before it needs it.
if TYPE_CHECKING:
    import pyarrow as pa


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
