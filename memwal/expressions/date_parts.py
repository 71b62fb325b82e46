"""Year, month, day and hour of dates and timestamps, as DataFusion's ``date_part`` gives them.

They are parts of the calendar, not counts since the epoch: a day is 1 to 31. Timestamps with a
fixed offset are read in that offset, as DataFusion reads them. A named zone is refused: its rules
change with every release of the time zone database, and a row must stay in its region for ever.
Text is read as ISO 8601. Spec: Region Transform.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from memwal.errors import InvalidInputError

DatePart = Literal["year", "month", "day", "hour"]

PART_TYPES: Final = "date32, date64, timestamp (without zone, in UTC or with a fixed offset), text"
"""The types that :func:`date_part` takes, for messages."""

_SECONDS_PER_DAY: Final = 86_400
_UNITS_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIXED_ZONE: Final = re.compile(r"([+-])(\d{2}):?(\d{2})?")
_UTC: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z"})

# What DataFusion's calendar reaches; the parts of what lies beyond are null there.
_FIRST_YEAR: Final = -262_143
_LAST_YEAR: Final = 262_142


def has_date_parts(data_type: pa.DataType) -> bool:
    """Tell whether :func:`date_part` takes columns of this type."""
    if pt.is_timestamp(data_type):
        return data_type.tz is None or _offset_seconds(data_type.tz) is not None
    return bool(pt.is_date(data_type) or pt.is_string(data_type) or pt.is_large_string(data_type))


def date_part(part: DatePart, column: pa.Array) -> pa.Int32Array:
    """Return a part of every date or timestamp.

    Parameters
    ----------
    part : {"year", "month", "day", "hour"}
    column : pyarrow.Array
        Dates, timestamps, or text such as ``2026-01-31`` or ``2026-01-31T12:00:00``.

    Returns
    -------
    pyarrow.Int32Array
        Null where the column is null, or where its year has more than six digits.

    Raises
    ------
    InvalidInputError
        The type has no such part, or a text is no date.
    """
    if not has_date_parts(column.type):
        raise InvalidInputError(
            f"a column of type {column.type} has no {part}; use one of: {PART_TYPES}"
        )
    if pt.is_string(column.type) or pt.is_large_string(column.type):
        column = _parsed(column)
    days, seconds = _days_and_seconds(column)
    dates = days.astype("datetime64[D]")
    years = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    # The hour of a date is 0 whatever the date, and asks no calendar.
    asked = part != "hour" or not pt.is_date32(column.type)
    absent = asked & ((years < _FIRST_YEAR) | (years > _LAST_YEAR))
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
    """Days since the epoch, and seconds since midnight."""
    data_type = column.type
    if pt.is_date32(data_type):
        days = _integers(column, "<i4").astype(np.int64)
        return days, np.zeros(len(days), dtype=np.int64)
    unit = "ms" if pt.is_date64(data_type) else data_type.unit
    # Null slots may hold anything; the offset is small against the range of seconds.
    seconds = _integers(column, "<i8") // _UNITS_PER_SECOND[unit]
    offset = _offset_seconds(data_type.tz) if pt.is_timestamp(data_type) and data_type.tz else 0
    if unit == "s":
        # Within a day of the ends of 64 bits, far beyond the calendar.
        bound = np.int64(2**62)
        seconds = np.clip(seconds, -bound, bound)
    seconds = seconds + np.int64(offset or 0)
    days, rest = np.divmod(seconds, _SECONDS_PER_DAY)
    return days, rest


def _integers(column: pa.Array, dtype: str) -> NDArray[Any]:
    item = np.dtype(dtype)
    return np.frombuffer(
        column.buffers()[1], item, count=len(column), offset=column.offset * item.itemsize
    )


def _offset_seconds(zone: str) -> int | None:
    """Seconds ahead of UTC; None for a zone whose rules may change."""
    if zone in _UTC:
        return 0
    fixed = _FIXED_ZONE.fullmatch(zone)
    if fixed is None:
        return None
    seconds = int(fixed[2]) * 3_600 + int(fixed[3] or 0) * 60
    return -seconds if fixed[1] == "-" else seconds


def _parsed(column: pa.Array) -> pa.TimestampArray:
    try:
        return column.cast(pa.timestamp("us"))
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"a text is no date: {error}; write dates as 2026-01-31 or 2026-01-31T12:00:00"
        ) from error
