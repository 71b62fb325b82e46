"""Reading again what was collected while it was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from memwal.errors import ObjectNotFoundError

_ATTEMPTS = 5

Result = TypeVar("Result")


def while_collected(read: Callable[[], Result]) -> Result:
    """Run a read again when something that it needs is gone.

    A generation that was collected in between is in the base table by then, so that a read which
    starts over finds its rows there.

    Parameters
    ----------
    read : callable
        Collects the sources anew each time.

    Raises
    ------
    ObjectNotFoundError
        It is gone each time: the table is damaged.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(ObjectNotFoundError),
        stop=stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    return retrying(read)
