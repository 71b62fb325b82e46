"""Read objects in order, some of them ahead of their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import ObjectNotFoundError, StoreUnavailableError
from memwal.storage.object_store import ObjectStore

_ATTEMPTS = 5
# Reads from an object store wait for it; from a local disk, one at a time keeps it busy.
_REMOTE_READS = 16
_LOCAL_READS = 1
# Of the smallest objects, far fewer than this are needed to keep every read busy.
_MAX_AHEAD = 256


def read_ahead(
    store: ObjectStore, objects: Iterable[tuple[str, int]], *, max_bytes: int
) -> Generator[bytes | None, None, None]:
    """Contents of objects, in the order given.

    Parameters
    ----------
    objects : iterable of (str, int)
        Key of each object and how large it is, as far as known. Taken from lazily.
    max_bytes : int
        Up to which size, in sum, objects are read that were not asked for yet. A larger one is
        read alone.

    Yields
    ------
    bytes or None
        None for an object that is not there.

    Raises
    ------
    StoreError
        An object cannot be read, after several attempts.
    """
    waiting: deque[tuple[int, Future[bytes | None]]] = deque()
    total = 0
    pool = ThreadPoolExecutor(_LOCAL_READS if store.is_local else _REMOTE_READS)
    try:
        for key, size in objects:
            while waiting and (total + size > max_bytes or len(waiting) >= _MAX_AHEAD):
                done, data = waiting.popleft()
                yield data.result()
                total -= done
            waiting.append((size, pool.submit(_read, store, key)))
            total += size
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read(store: ObjectStore, key: str) -> bytes | None:
    retrying = Retrying(
        retry=retry_if_exception_type(StoreUnavailableError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    try:
        return retrying(store.get, key)
    except ObjectNotFoundError:
        return None
