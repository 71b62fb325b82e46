"""Year, month, day and hour of dates and timestamps, as in DataFusion's ``date_part``.

They are parts of the calendar, not counts since the epoch: a day is 1 to 31. Timestamps with a
fixed offset are interpreted in that offset, as in DataFusion. A named zone is refused: its rules
change with releases of the time zone database, and a row must stay in its region for ever. Text is
parsed as ISO 8601. Spec: Region Transform.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from memwal.errors import InvalidInputError
from memwal.format.values import is_text, value_buffer

DatePart = Literal["year", "month", "day", "hour"]

PART_TYPES: Final = "date32, date64, timestamp (without zone, in UTC or with a fixed offset), text"
"""Types that :func:`date_part` accepts, for messages."""

_SECONDS_PER_DAY: Final = 86_400
UNITS_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIXED_ZONE: Final = re.compile(r"([+-])(\d{2}):?(\d{2})?")
_UTC: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z"})

# Range of DataFusion's calendar; outside of it the parts are null.
_FIRST_YEAR: Final = -262_143
_LAST_YEAR: Final = 262_142


def has_date_parts(data_type: pa.DataType) -> bool:
    """Return whether :func:`date_part` accepts columns of this type."""
    if pt.is_timestamp(data_type):
        return data_type.tz is None or _offset_seconds(data_type.tz) is not None
    return pt.is_date(data_type) or is_text(data_type)


def date_part(part: DatePart, column: pa.Array) -> pa.Int32Array:
    """Return a part of each date, timestamp, or text such as ``2026-01-31T12:00:00``.

    It is null where the column is null, or where its year has more than six digits. Raises
    InvalidInputError if the type has no such part, or a text is not a date.
    """
    if not has_date_parts(column.type):
        raise InvalidInputError(
            f"a column of type {column.type} has no {part}; use one of: {PART_TYPES}"
        )
    if is_text(column.type):
        try:
            column = column.cast(pa.timestamp("us"))
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"a text is not a date: {error}; write dates as 2026-01-31 or 2026-01-31T12:00:00"
            ) from error
    days, seconds = _days_and_seconds(column)
    dates = days.astype("datetime64[D]")
    years = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    # The hour of a date is 0 for every date, also outside of the calendar.
    needs_calendar = part != "hour" or not pt.is_date32(column.type)
    absent = needs_calendar & ((years < _FIRST_YEAR) | (years > _LAST_YEAR))
    if column.null_count:
        absent |= column.is_null().to_numpy(zero_copy_only=False)
    match part:
        case "year":
            values = years
        case "month":
            values = dates.astype("datetime64[M]").astype(np.int64) % 12 + 1
        case "day":
            values = (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1
        case "hour":
            values = seconds // 3_600
    if absent.any():
        return pa.array(np.where(absent, 0, values).astype(np.int32), mask=absent)
    return pa.array(values.astype(np.int32))


def _days_and_seconds(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return days since the epoch and seconds since midnight."""
    data_type = column.type
    if pt.is_date32(data_type):
        days = value_buffer(column, "<i4").astype(np.int64)
        return days, np.zeros(len(days), dtype=np.int64)
    unit = "ms" if pt.is_date64(data_type) else data_type.unit
    # Null slots hold anything; the offset is small compared with the range of seconds.
    seconds = value_buffer(column, "<i8") // UNITS_PER_SECOND[unit]
    offset = _offset_seconds(data_type.tz) if pt.is_timestamp(data_type) and data_type.tz else 0
    if unit == "s":
        # Adding the offset must not overflow 64 bits. The bound is far outside of the calendar.
        bound = np.int64(2**62)
        seconds = np.clip(seconds, -bound, bound)
    seconds = seconds + np.int64(offset or 0)
    days, rest = np.divmod(seconds, _SECONDS_PER_DAY)
    return days, rest


def _offset_seconds(zone: str) -> int | None:
    """Return the seconds ahead of UTC; None for a zone whose rules may change."""
    if zone in _UTC:
        return 0
    fixed = _FIXED_ZONE.fullmatch(zone)
    if fixed is None:
        return None
    seconds = int(fixed[2]) * 3_600 + int(fixed[3] or 0) * 60
    return -seconds if fixed[1] == "-" else seconds
