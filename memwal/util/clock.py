"""A monotonic clock that counts suspended time, and durations as seconds or ``timedelta``."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final, TypeAlias

from memwal.errors import InvalidInputError

MAX_SECONDS: Final = 100 * 366 * 86_400
"""A hundred years: a present-day time plus or minus this much is still a valid ``datetime``."""

Duration: TypeAlias = float | timedelta
"""A number of seconds, or a timedelta."""

# CLOCK_BOOTTIME counts the time that the machine is suspended, and is never adjusted. Where it is
# missing, CLOCK_MONOTONIC may count it too, and time.monotonic need not.
_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def boot_seconds() -> float:
    """Return monotonic seconds since an arbitrary start.

    The time of suspension counts where the system has a clock that counts it, as Linux has.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def duration(value: Duration, name: str) -> timedelta:
    """Return a duration from 0 to :data:`MAX_SECONDS`; errors show the ``name`` of the option."""
    seconds = in_seconds(value)
    if not 0 <= seconds <= MAX_SECONDS:
        raise InvalidInputError(
            f"{name} is not a valid duration; give a number from 0 to {MAX_SECONDS} seconds (a "
            "hundred years)"
        )
    return timedelta(seconds=seconds)


def in_seconds(value: Duration) -> float:
    """Return a duration as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value
