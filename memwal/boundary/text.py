"""Numbers, times and tables as people read them: in the terminal, in notebooks, in messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

_MAX_ROWS = 50
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


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    notes: Iterable[str] = (),
) -> str:
    """Format a table for ``_repr_html_``, with a title and notes; rows beyond fifty are counted."""
    # Only notebooks need it.
    from html import escape

    cells = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = [
        "<tr>"
        + "".join(f"<td>{'' if value is None else escape(str(value))}</td>" for value in row)
        + "</tr>"
        for row in rows[:_MAX_ROWS]
    ]
    more = len(rows) - _MAX_ROWS
    below = [*notes, *([f"and {more} more"] if more > 0 else [])]
    return (
        f"<p>{escape(title)}</p><table><thead><tr>{cells}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
        + "".join(f"<p>{escape(note)}</p>" for note in below)
    )
