"""Durations in seconds, and a clock that keeps running while the machine sleeps.

``CLOCK_BOOTTIME`` where the system has it: it counts suspended time and is never adjusted.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from memwal.errors import InvalidInputError

# It goes on while the machine sleeps, and is never put forward or back.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Seconds since some moment, the time included that the machine was asleep."""
    return time.clock_gettime(_CLOCK)


MOST_SECONDS: Final = 100 * 366 * 86_400
"""A hundred years. From a moment of our time, so much can be taken, and to it be added."""


def duration(seconds: float, what: str) -> timedelta:
    """A length of time.

    Parameters
    ----------
    seconds : float
    what : str
        Whose it is, for the message: ``"--grace-seconds"``.

    Raises
    ------
    InvalidInputError
        It is no number from 0 to :data:`MOST_SECONDS`.
    """
    if not 0 <= seconds <= MOST_SECONDS:
        raise InvalidInputError(
            f"{what} is no length of time; give a number from 0 to {MOST_SECONDS} seconds, which "
            "is a hundred years"
        )
    return timedelta(seconds=seconds)
