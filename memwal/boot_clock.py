"""A clock for what must end in time, also on a machine that was asleep meanwhile."""

from __future__ import annotations

import time

# It goes on while the machine sleeps, and is never put forward or back.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Seconds since some moment, the time included that the machine was asleep."""
    return time.clock_gettime(_CLOCK)
