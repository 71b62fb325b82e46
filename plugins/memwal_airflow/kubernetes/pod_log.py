"""The log of a container, read bit by bit without losing or repeating a line.

The API server gives the lines of a log from a whole second on. Each line has its time in
nanoseconds, by which those are left out that were read before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

_STAMPED = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ?(.*)", re.DOTALL
)

Moment = tuple[int, int]
"""Seconds since the epoch, and nanoseconds."""


class LogPosition:
    """How far a log was read."""

    def __init__(self) -> None:
        self._last: Moment | None = None
        # Of the last moment, since several lines can have the same.
        self._seen = 0

    @property
    def since(self) -> str | None:
        """From which second on to read; None for all."""
        if self._last is None:
            return None
        return f"{datetime.fromtimestamp(self._last[0], UTC):%Y-%m-%dT%H:%M:%SZ}"

    def new_lines(self, text: str, *, over: bool = False) -> Iterator[str]:
        """The lines of an answer that were not read before, without their times.

        A line that is not whole yet is left for the next answer, unless the log is ``over``.
        """
        seen_before, again = self._seen, 0
        first = self._last
        *whole, begun = text.split("\n")
        for line in [*whole, begun] if over and begun else whole:
            found = _STAMPED.fullmatch(line)
            if found is None:
                # Not of the container, such as a note on a log that was rotated away.
                continue
            moment = _moment(found)
            if first is not None and moment < first:
                continue
            if moment == first:
                again += 1
                if again <= seen_before:
                    continue
            self._seen = self._seen + 1 if moment == self._last else 1
            self._last = moment
            yield found[4]


def _moment(found: re.Match[str]) -> Moment:
    whole = datetime.fromisoformat(f"{found[1]}{found[3].replace('Z', '+00:00')}")
    return int(whole.timestamp()), int((found[2] or "0")[:9].ljust(9, "0"))
