"""Numbers and times as people read them: in the terminal, in notebooks, in messages."""

from __future__ import annotations

from datetime import datetime

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def timestamp(time: datetime | None) -> str | None:
    """Format a time to the second."""
    return None if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def size(number: int) -> str:
    """Format a number of bytes."""
    if number < 1024:
        return f"{number} B"
    power = min((number.bit_length() - 1) // 10, len(_UNITS))
    return f"{number / 1024**power:.1f} {_UNITS[power - 1]}"


def age(seconds: float | None) -> str:
    """Format a duration in one unit."""
    if seconds is None:
        return "-"
    for limit, length, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def plural(number: int, noun: str) -> str:
    """Format a number of things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
