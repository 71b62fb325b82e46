from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy, QuietWindow

NIGHT = QuietWindow.parse("22:00-06:00 Europe/Berlin")


def quiet_minutes(window: QuietWindow, start: datetime, *, hours: int = 24) -> int:
    return sum(window.contains(start + timedelta(minutes=n)) for n in range(60 * hours))


@pytest.mark.parametrize(
    ("noon_before", "hours"),
    [
        (datetime(2026, 1, 10, 11, tzinfo=UTC), 8),
        (datetime(2026, 7, 10, 10, tzinfo=UTC), 8),
        # The clocks go forward in the night to 29 March, and back in the one to 25 October.
        (datetime(2026, 3, 28, 11, tzinfo=UTC), 7),
        (datetime(2026, 10, 24, 10, tzinfo=UTC), 9),
    ],
)
def test_a_night_lasts_as_long_as_the_clocks_say(noon_before: datetime, hours: int) -> None:
    assert quiet_minutes(NIGHT, noon_before) == 60 * hours


def test_a_window_in_the_hour_that_is_left_out_or_comes_twice() -> None:
    window = QuietWindow.parse("02:10-02:40 Europe/Berlin")
    assert quiet_minutes(window, datetime(2026, 3, 28, 12, tzinfo=UTC)) == 0
    assert quiet_minutes(window, datetime(2026, 10, 24, 12, tzinfo=UTC)) == 60


def test_the_start_is_part_of_it_and_the_end_is_not() -> None:
    window = QuietWindow.parse("09:00-17:00 UTC")
    day = datetime(2026, 5, 1, tzinfo=UTC)
    assert not window.contains(day + timedelta(hours=8, minutes=59, seconds=59))
    assert window.contains(day + timedelta(hours=9))
    assert window.contains(day + timedelta(hours=16, minutes=59, seconds=59))
    assert not window.contains(day + timedelta(hours=17))


INSTANTS = st.datetimes(
    min_value=datetime(2026, 1, 1), max_value=datetime(2027, 12, 31), timezones=st.just(UTC)
)


@given(INSTANTS, st.integers(-14 * 60, 14 * 60))
def test_how_the_moment_is_written_does_not_matter(moment: datetime, offset: int) -> None:
    elsewhere = moment.astimezone(timezone(timedelta(minutes=offset)))
    assert NIGHT.contains(elsewhere) == NIGHT.contains(moment)


@given(INSTANTS)
def test_the_two_halves_of_a_day_are_a_day(moment: datetime) -> None:
    day = QuietWindow.parse("06:00-22:00 Europe/Berlin")
    assert day.contains(moment) != NIGHT.contains(moment)


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        NIGHT.contains(datetime(2026, 1, 1))


def test_a_policy_names_the_window() -> None:
    texts = ("12:00-13:00 UTC", "22:00-06:00 UTC")
    policy = Policy(quiet_hours=texts)
    assert policy.quiet_window(datetime(2026, 1, 1, 23, tzinfo=UTC)) == texts[1]
    assert policy.quiet_window(datetime(2026, 1, 1, 12, tzinfo=UTC)) == texts[0]
    assert policy.quiet_window(datetime(2026, 1, 1, 14, tzinfo=UTC)) is None
