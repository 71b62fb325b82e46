"""Tables in HTML, as notebooks show an object that has ``_repr_html_``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_MAX_ROWS = 50


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    notes: Iterable[str] = (),
) -> str:
    """Format a table with a title above and notes below; rows beyond fifty are counted."""
    cells = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = [
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>"
        for row in rows[:_MAX_ROWS]
    ]
    more = len(rows) - _MAX_ROWS
    below = [*notes, *([f"and {more} more"] if more > 0 else [])]
    return (
        f"<p>{escape(title)}</p><table><thead><tr>{cells}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
        + "".join(f"<p>{escape(note)}</p>" for note in below)
    )


def _cell(value: object) -> str:
    return "" if value is None else escape(str(value))
