"""Read objects in order, prefetching later ones up to a size."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from memwal.errors import ObjectNotFoundError
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import ThreadPool
from memwal.util.retry import retry_unavailable

# Concurrent reads hide the latency of an object store; one at a time keeps a local disk busy.
_REMOTE_READS = 16
_LOCAL_READS = 1
# A local file is read in less time than a thread takes to hand it over: several go together.
_LOCAL_GROUP = 64
# Far fewer than this keep every read busy, even of the smallest objects.
_MAX_AHEAD = 256
_MAX_BYTES = 8 << 20


def read_ahead(
    store: ObjectStore, objects: Iterable[tuple[str, int]], *, max_bytes: int = _MAX_BYTES
) -> Generator[bytes | None, None, None]:
    """Yield the contents of objects in order; None for an object that does not exist.

    ``objects`` are keys with estimated sizes, consumed lazily. Up to ``max_bytes`` are prefetched;
    a larger object is read alone. Raises StoreError if an object cannot be read after several
    attempts.
    """
    group = _LOCAL_GROUP if store.is_local else 1
    reads: deque[tuple[int, Future[list[bytes | None]]]] = deque()
    total = 0
    pool = ThreadPool(_LOCAL_READS if store.is_local else _REMOTE_READS)
    try:
        for keys, size in _grouped(objects, group, max_bytes // 4):
            while reads and (total + size > max_bytes or len(reads) * group >= _MAX_AHEAD):
                first_size, contents = reads.popleft()
                yield from contents.result()
                total -= first_size
            reads.append((size, pool.submit(_read_objects, store, keys)))
            total += size
        while reads:
            yield from reads.popleft()[1].result()
    finally:
        # Without waiting: Python may close a generator that its caller dropped in the middle of
        # starting a thread, when it holds a lock that joining the pool's threads would need.
        pool.shutdown(wait=False, cancel_futures=True)


def _grouped(
    objects: Iterable[tuple[str, int]], most: int, max_bytes: int
) -> Iterator[tuple[list[str], int]]:
    """Group objects that follow each other, up to a number and a size; an object is not divided."""
    keys: list[str] = []
    total = 0
    for key, size in objects:
        if keys and total + size > max_bytes:
            yield keys, total
            keys, total = [], 0
        keys.append(key)
        total += size
        if len(keys) == most:
            yield keys, total
            keys, total = [], 0
    if keys:
        yield keys, total


def _read_objects(store: ObjectStore, keys: Sequence[str]) -> list[bytes | None]:
    return [retry_unavailable(partial(_get, store, key)) for key in keys]


def _get(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectNotFoundError:
        return None
