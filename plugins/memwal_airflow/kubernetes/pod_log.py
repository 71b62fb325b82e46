"""Read the log of a container in steps, without losing or repeating a line.

The API server returns a log from a whole second on; the timestamp of each line, in nanoseconds,
tells the lines that were read before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

_LOG_LINE = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ?(.*)", re.DOTALL
)

Timestamp = tuple[int, int]
"""Seconds since the epoch, and nanoseconds."""


class LogPosition:
    """How far a log was read."""

    def __init__(self) -> None:
        self._last: Timestamp | None = None
        # Lines read with the timestamp ``_last``: several lines can have the same one.
        self._lines_at_last = 0

    @property
    def since(self) -> str | None:
        """The second to read from; None for the whole log."""
        if self._last is None:
            return None
        return f"{datetime.fromtimestamp(self._last[0], UTC):%Y-%m-%dT%H:%M:%SZ}"

    def new_lines(self, text: str, *, ended: bool = False) -> Iterator[str]:
        """Yield the lines of an answer that were not read before, without their timestamps.

        An incomplete last line is left for the next answer, unless the log has ``ended``.
        """
        first, lines_at_first, repeated = self._last, self._lines_at_last, 0
        *whole_lines, partial_line = text.split("\n")
        for line in [*whole_lines, partial_line] if ended and partial_line else whole_lines:
            match = _LOG_LINE.fullmatch(line)
            if match is None:
                # Not written by the container, for example a note on a log that was rotated.
                continue
            timestamp = _timestamp(match)
            if first is not None and timestamp < first:
                continue
            if timestamp == first:
                repeated += 1
                if repeated <= lines_at_first:
                    continue
            self._lines_at_last = self._lines_at_last + 1 if timestamp == self._last else 1
            self._last = timestamp
            yield match[4]


def _timestamp(match: re.Match[str]) -> Timestamp:
    second = datetime.fromisoformat(f"{match[1]}{match[3].replace('Z', '+00:00')}")
    return int(second.timestamp()), int((match[2] or "0")[:9].ljust(9, "0"))
