"""Hours of the day, by the clocks of some place, in which a table is left in peace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time
from typing import Self
from zoneinfo import ZoneInfo

from memwal.errors import InvalidInputError

_WINDOW = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d) (\S+)")


@dataclass(frozen=True, slots=True)
class QuietWindow:
    """A daily window, such as 22:00 to 06:00 in Berlin.

    What counts is what the clocks of the place show. Where they are put forward or back inside
    the window, it lasts an hour less or more; a window that lies within the hour that is left out
    does not come that day, and one within the hour that comes twice, comes twice.

    Attributes
    ----------
    start, end : time
        The end is not part of it. One that ends before it starts goes past midnight.
    zone : ZoneInfo
        Whose clocks.
    """

    start: time
    end: time
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read ``"HH:MM-HH:MM Area/City"``; a window to midnight ends at 00:00.

        Raises
        ------
        InvalidInputError
            It is not of this form, is empty, or this machine knows no such time zone.
        """
        match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise _wrong(text, "write HH:MM-HH:MM and a time zone")
        try:
            start = time(int(match[1]), int(match[2]))
            end = time(int(match[3]), int(match[4]))
        except ValueError:
            raise _wrong(text, "hours go from 00 to 23 and minutes from 00 to 59") from None
        if start == end:
            raise _wrong(text, "a window must not end where it starts")
        try:
            zone = ZoneInfo(match[5])
        # A name can be unknown, no key at all, or that of a folder of the database of zones.
        except (KeyError, ValueError, OSError):
            raise _wrong(text, f"this machine knows no time zone {match[5]!r}") from None
        return cls(start, end, zone)

    def contains(self, moment: datetime) -> bool:
        """Whether a moment lies in the window.

        Parameters
        ----------
        moment : datetime
            Aware.

        Raises
        ------
        InvalidInputError
            It has no time zone.
        """
        if moment.tzinfo is None:
            raise InvalidInputError(f"{moment} has no time zone; give an aware datetime.")
        shown = moment.astimezone(self.zone).time()
        if self.start < self.end:
            return self.start <= shown < self.end
        return shown >= self.start or shown < self.end


def _wrong(text: object, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Policy key 'quiet_hours' holds {text!r}: {why}, as in '22:00-06:00 Europe/Berlin'."
    )
