"""When a table is looked at."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from memwal.errors import InvalidInputError
from memwal.fleet.schedule import interval_seconds, is_due

# A Monday.
NOON = datetime(2026, 6, 1, 12, 0, 30, tzinfo=UTC)


def due(schedule: str | float | None, ago: float | None, now: datetime = NOON) -> bool:
    last = None if ago is None else now - timedelta(seconds=ago)
    return is_due(schedule, last=last, now=now)


def test_seconds() -> None:
    assert due(60, None)
    assert due(60, 60)
    assert not due(60, 59)


def test_by_hand_only() -> None:
    assert not due(None, None)
    assert not due(None, 1e9)


@pytest.mark.parametrize(
    ("cron", "matches"),
    [
        ("* * * * *", True),
        ("0 12 * * *", True),
        ("1 12 * * *", False),
        ("*/15 * * * *", True),
        ("5/15 * * * *", False),
        ("0 8-17/4 * * mon-fri", True),
        ("0 9,12 * JUN MON", True),
        ("0 12 * * sun", False),
        ("0 12 2 * *", False),
        ("0 12 2 * mon", True),
        ("0 12 1 * 0", True),
        ("@hourly", True),
        ("@daily", False),
    ],
)
def test_cron(cron: str, matches: bool) -> None:
    assert due(cron, 60) is matches
    # The minute began before the last look.
    assert not due(cron, 10)


def test_a_moment_that_was_missed_is_made_up_for() -> None:
    assert due("0 9 * * *", 4 * 3600)
    assert not due("0 9 * * *", 2 * 3600)
    assert due("0 0 1 1 *", 400 * 86400)


@pytest.mark.parametrize(
    "cron", ["61 * * * *", "* * L * *", "* * * *", "5-1 * * * *", "*/0 * * * *"]
)
def test_what_cannot_be_read(cron: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(cron)):
        due(cron, 60)


def test_sunday_has_two_numbers() -> None:
    sunday = NOON - timedelta(days=1)
    assert due("0 12 * * 7", 60, sunday)
    assert due("0 12 * * 0", 60, sunday)


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        (None, None),
        (60.0, 60),
        ("@due", 600),
        ("* * * * *", 60),
        ("*/15 * * * *", 900),
        ("@hourly", 3600),
        ("5,50 * * * *", 45 * 60),
        ("0 9-17 * * *", 16 * 3600),
        ("@daily", 86_400),
        ("0 9 * * mon-fri", 7 * 86_400),
        ("@weekly", 7 * 86_400),
        ("@monthly", 31 * 86_400),
        ("@yearly", 372 * 86_400),
    ],
)
def test_longest_pause(schedule: str | float | None, seconds: float | None) -> None:
    assert interval_seconds(schedule) == seconds
