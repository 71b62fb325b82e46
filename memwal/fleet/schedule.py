"""Schedules of policies: whether a survey of a table is due, and the longest interval."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from memwal.errors import InvalidInputError
from memwal.jobs.policy import SEEN_SECONDS, WHEN_DUE

_PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
# Minute, hour, day of month, month, day of week (0 and 7 are Sunday).
_FIELDS: tuple[tuple[int, int, dict[str, int]], ...] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    (0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
_MINUTE = timedelta(minutes=1)
_DAY_SECONDS = 86_400.0
# After a longer pause a survey is due at once, independent of the schedule.
_MAX_LOOK_BACK = timedelta(days=1)


def is_due(schedule: str | float | None, *, last: datetime | None, now: datetime) -> bool:
    """Return whether a survey of a table is due, at the aware time ``now``.

    A schedule is ``@due`` (at every look), a cron expression (in UTC), a number of seconds, or None
    for never. ``last`` is None if there was no survey. Raises ``InvalidInputError`` if the cron
    expression is not supported.
    """
    match schedule:
        case None:
            return False
        case str() if schedule == WHEN_DUE:
            return True
        case str():
            return _cron_is_due(schedule, last, now)
        case _:
            return last is None or now - last >= timedelta(seconds=schedule)


def interval_seconds(schedule: str | float | None) -> float | None:
    """Return the longest interval between two surveys in seconds; None without a schedule.

    None too for a cron expression that only Airflow reads. With ``@due`` it is
    :data:`~memwal.jobs.policy.SEEN_SECONDS`. A cron expression that omits weekdays counts as a
    week. An expression that names days of the month counts as a month of 31 days, and one that
    omits months as twelve such months.
    """
    if schedule is None or not isinstance(schedule, str):
        return schedule
    if schedule == WHEN_DUE:
        return SEEN_SECONDS
    try:
        minutes, hours, days, months, weekdays = _parse_cron(schedule)
    except InvalidInputError:
        return None
    if len(days) < 31 or len(months) < 12:
        return 31 * _DAY_SECONDS * (1 if len(months) == 12 else 12)
    if len(weekdays) < 7:
        return 7 * _DAY_SECONDS
    if len(hours) < 24:
        return 60.0 * _longest_gap(
            {60 * hour + minute for hour in hours for minute in minutes}, 24 * 60
        )
    return 60.0 * _longest_gap(minutes, 60)


def _longest_gap(marks: set[int], around: int) -> int:
    """Return the largest distance between neighbours on a circle."""
    ordered = sorted(marks)
    following = [*ordered[1:], ordered[0] + around]
    return max(after - before for before, after in zip(ordered, following, strict=True))


def _cron_is_due(text: str, last: datetime | None, now: datetime) -> bool:
    """Return whether a minute of the cron expression began after the last survey."""
    fields = _parse_cron(text)
    if last is None:
        last = now - _MINUTE
    if now - last >= _MAX_LOOK_BACK:
        return True
    minute = last.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
    while minute <= now:
        if _matches(fields, minute):
            return True
        minute += _MINUTE
    return False


def _matches(fields: list[set[int]], at: datetime) -> bool:
    minutes, hours, days, months, weekdays = fields
    if at.minute not in minutes or at.hour not in hours or at.month not in months:
        return False
    by_day = at.day in days
    by_weekday = at.isoweekday() % 7 in weekdays
    # As in cron: if both are restricted, either is enough.
    if len(days) < 31 and len(weekdays) < 7:
        return by_day or by_weekday
    return by_day and by_weekday


def _parse_cron(text: str) -> list[set[int]]:
    parts = _PRESETS.get(text, text).lower().split()
    try:
        fields = [_parse_field(part, *limits) for part, limits in zip(parts, _FIELDS, strict=True)]
    except ValueError as error:
        raise InvalidInputError(
            f"the schedule {text!r} is not supported by the fleet ({error}); give a number "
            "of seconds, or a cron expression of numbers, names, lists, ranges and steps"
        ) from error
    fields[4] = {day % 7 for day in fields[4]}
    return fields


def _parse_field(text: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if first in ("*", "?"):
            start, end = low, high
        else:
            start = names[first] if first in names else int(first)
            end = (names[last] if last in names else int(last)) if dash else start
            end = high if slash and not dash else end
        if not low <= start <= end <= high:
            raise ValueError(f"{part} is not within {low} to {high}")
        every = int(step) if slash else 1
        if every < 1:
            raise ValueError(f"{part} has a step of {every}")
        values.update(range(start, end + 1, every))
    return values
