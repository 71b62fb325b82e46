"""Read objects in order, prefetching later ones up to a size."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from functools import partial

from memwal.errors import ObjectNotFoundError
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import ThreadPool
from memwal.util.retry import retry_unavailable

# Concurrent reads hide the latency of an object store.
_REMOTE_READS = 16
# Far fewer than this keep every read busy, even of the smallest objects.
_MAX_AHEAD = 256
_MAX_BYTES = 8 << 20


def read_ahead(
    store: ObjectStore, objects: Iterable[tuple[str, int]], *, max_bytes: int = _MAX_BYTES
) -> Generator[bytes | None, None, None]:
    """Yield the contents of objects in order; None for an object that does not exist.

    ``objects`` are keys with estimated sizes, consumed lazily. Up to ``max_bytes`` are prefetched;
    a larger object is read alone, and so is each object of a local disk. Raises StoreError if an
    object cannot be read after several attempts.
    """
    if store.is_local:
        # A thread that reads ahead waits longer for its turn to run Python than for the disk.
        for key, _ in objects:
            yield _content_of(store, key)
        return
    reads: deque[tuple[int, Future[bytes | None]]] = deque()
    total = 0
    pool = ThreadPool(_REMOTE_READS)
    try:
        for key, size in objects:
            while reads and (total + size > max_bytes or len(reads) >= _MAX_AHEAD):
                first_size, content = reads.popleft()
                yield content.result()
                total -= first_size
            reads.append((size, pool.submit(_content_of, store, key)))
            total += size
        while reads:
            yield reads.popleft()[1].result()
    finally:
        # Without waiting: Python may close a generator that its caller dropped in the middle of
        # starting a thread, when it holds a lock that joining the pool's threads would need.
        pool.shutdown(wait=False, cancel_futures=True)


def _content_of(store: ObjectStore, key: str) -> bytes | None:
    try:
        return retry_unavailable(partial(store.get, key))
    except ObjectNotFoundError:
        return None
