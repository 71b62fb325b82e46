"""Retry a step that loses a race against the commits of other processes, or a write of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from memwal.errors import ConflictError, StoreUnavailableError

# tenacity is imported inside the functions: most steps succeed at once.
if TYPE_CHECKING:
    from tenacity import RetryCallState

Result = TypeVar("Result")

MAX_LOST_WRITES: Final = 3
"""Attempts that may lose a write; more of them would fill a full disk further."""

# Longer waits would not separate the processes better.
_MAX_GROWTH = 20


class LostRaceError(ConflictError):
    """Another process committed first; nothing of this attempt was stored."""


class LostWriteError(StoreUnavailableError):
    """A file that a commit would have named was not written whole; nothing was committed."""


def conflict_delay(conflicts: int, seconds: float) -> float:
    """Return a random number of seconds to wait after the last of some conflicts in a row.

    Between 0 and ``seconds`` for each conflict: processes that lost to each other must not start
    again at the same moment.
    """
    return random.uniform(0, seconds * min(conflicts, _MAX_GROWTH))  # noqa: S311


def retry_lost_races(
    step: Callable[[], Result], *, exhausted: Exception, attempts: int = 50, seconds: float = 0.05
) -> Result:
    """Run a step again while it raises LostRaceError; raise ``exhausted`` if every attempt lost.

    The step begins each time with the newest state of what it changes. For the wait between
    attempts in ``seconds``, see :func:`conflict_delay`. A step that raises LostWriteError is
    repeated too; the :data:`MAX_LOST_WRITES`-th is raised.
    """
    try:
        # Most steps succeed at once, and to set up the retries takes longer than some of them.
        return step()
    except (LostRaceError, LostWriteError) as error:
        failures = [error]
    from tenacity import Retrying, retry_if_exception, stop_after_attempt

    lost_writes = 0

    def attempt() -> Result:
        if failures:
            raise failures.pop()
        return step()

    def is_lost(error: BaseException) -> bool:
        nonlocal lost_writes
        if isinstance(error, LostWriteError):
            lost_writes += 1
            return lost_writes < MAX_LOST_WRITES
        return isinstance(error, LostRaceError)

    def wait(state: RetryCallState) -> float:
        return conflict_delay(state.attempt_number, seconds)

    retrying = Retrying(
        retry=retry_if_exception(is_lost),
        stop=stop_after_attempt(attempts),
        wait=wait,
        reraise=True,
    )
    try:
        return retrying(attempt)
    except LostRaceError as error:
        raise exhausted from error.__cause__


def retry_unavailable(step: Callable[[], Result], *, attempts: int = 5) -> Result:
    """Run a step again while it raises StoreUnavailableError; the last attempt's error is raised.

    Between attempts it waits for a random time, at first of up to 0.05 s and at most of 2 s.
    """
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        wait_random_exponential,
    )

    retrying = Retrying(
        retry=retry_if_exception_type(StoreUnavailableError),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        reraise=True,
    )
    return retrying(step)
