"""Retry a step that loses a race or a write, or whose store does not answer."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from memwal.errors import ConflictError, StoreUnavailableError

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

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

    The step begins each time with the newest state of the object that it changes. For the wait
    between attempts in ``seconds``, see :func:`conflict_delay`. A step that raises LostWriteError
    is repeated too; the :data:`MAX_LOST_WRITES`-th is raised.
    """
    attempt = lost_writes = 0
    while True:
        attempt += 1
        try:
            return step()
        except LostWriteError as error:
            lost_writes += 1
            if lost_writes == MAX_LOST_WRITES or attempt == attempts:
                raise
            logger.warning("%s; trying again", error)
        except LostRaceError as error:
            if attempt == attempts:
                raise exhausted from error.__cause__
            logger.info("%s; trying again", error)
        time.sleep(conflict_delay(attempt, seconds))


def retry_unavailable(step: Callable[[], Result], *, attempts: int = 5) -> Result:
    """Run a step again while it raises StoreUnavailableError; the last attempt's error is raised.

    Between attempts it waits for a random time, at first of up to 0.05 s and at most of 2 s.
    """
    return retry_errors(step, (StoreUnavailableError,), attempts, first_wait=0.05, longest_wait=2)


def retry_errors(
    step: Callable[[], Result],
    errors: tuple[type[Exception], ...],
    attempts: int,
    *,
    first_wait: float,
    longest_wait: float,
    seconds: float = math.inf,
    passes: Callable[[Exception], bool] = lambda error: True,
) -> Result:
    """Run a step again while it raises one of ``errors``; the last attempt's error is raised.

    Between attempts it waits for a random time, at first of up to ``first_wait`` seconds, which
    double with each attempt up to ``longest_wait``. No attempt follows one that failed more than
    ``seconds`` after the first began, or whose error does not pass by itself: ``passes`` tells.
    """
    begun = time.monotonic()
    limit = first_wait
    attempt = 0
    while True:
        attempt += 1
        try:
            return step()
        except errors as error:
            is_late = time.monotonic() - begun >= seconds
            if attempt == attempts or is_late or not passes(error):
                raise
            logger.info("%s; trying again", error)
        time.sleep(conflict_delay(1, limit))
        limit = min(limit * 2, longest_wait)
