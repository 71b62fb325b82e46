"""Read objects in order, prefetching later ones up to a size."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import ObjectNotFoundError, StoreUnavailableError
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import ThreadPool

_MAX_ATTEMPTS = 5
# Concurrent reads hide the latency of an object store; one at a time keeps a local disk busy.
_REMOTE_READS = 16
_LOCAL_READS = 1
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
    reads: deque[tuple[int, Future[bytes | None]]] = deque()
    total = 0
    pool = ThreadPool(_LOCAL_READS if store.is_local else _REMOTE_READS)
    try:
        for key, size in objects:
            while reads and (total + size > max_bytes or len(reads) >= _MAX_AHEAD):
                first_size, data = reads.popleft()
                yield data.result()
                total -= first_size
            reads.append((size, pool.submit(_read_object, store, key)))
            total += size
        while reads:
            yield reads.popleft()[1].result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_object(store: ObjectStore, key: str) -> bytes | None:
    retrying = Retrying(
        retry=retry_if_exception_type(StoreUnavailableError),
        stop=stop_after_attempt(_MAX_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    try:
        return retrying(store.get, key)
    except ObjectNotFoundError:
        return None
