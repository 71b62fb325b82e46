"""Put-if-absent whose ambiguous answers are settled by reading back."""

from __future__ import annotations

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memwal.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from memwal.storage.base import Data, ObjectStore

_ATTEMPTS = 5


def create_settled(store: ObjectStore, key: str, data: Data) -> bytes | None:
    """Create an object, and find out what stands under the key when the store does not say.

    "Already exists" after a retry, a timeout, a 500 after the write: none of them tells whose
    object it is. The bytes do, when they are ones that nobody else can have written. Trying again
    with the same bytes is safe, also when an earlier request is still on its way.

    Returns
    -------
    bytes or None
        None when the object is there with ``data`` in it; otherwise the bytes of somebody else.

    Raises
    ------
    OutcomeUnknownError
        The store kept failing; the object may appear, now or later.
    StoreAccessError, StoreFullError
        The store refused the first try; nothing was written.
    """
    try:
        # On the hot path of every write: the machinery of retries costs more than the rest here.
        # Anything but a store that is unavailable is a refusal, before anything could happen.
        return _create_or_read(store, key, data)
    except StoreUnavailableError as error:
        return _retry(store, key, data, first=error)


def _retry(store: ObjectStore, key: str, data: Data, *, first: StoreError) -> bytes | None:
    failures = [first]

    def attempt() -> bytes | None:
        if failures:
            raise failures.pop()
        return _create_or_read(store, key, data)

    retrying = Retrying(
        retry=retry_if_exception_type(StoreUnavailableError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    try:
        return retrying(attempt)
    except StoreError as error:
        raise OutcomeUnknownError(
            f"the store did not say whether {key} was written; it may or may not be there"
        ) from error


def _create_or_read(store: ObjectStore, key: str, data: Data) -> bytes | None:
    try:
        store.create(key, data)
    except ObjectExistsError:
        try:
            stored = store.get(key)
        except ObjectNotFoundError as error:
            # Taken a moment ago and gone now: a collector was here, which ends our claim to it.
            raise StoreUnavailableError(f"{key} was there and then it was not") from error
        # Compared as bytes: buffers of Arrow call their bytes signed.
        return None if memoryview(data).cast("B") == stored else stored
    return None
