"""Each thing is told once, to each channel, and not lost when it cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from memwal.catalog import Catalog
from memwal.catalog.models import JobRunRow
from memwal.errors import LeaseLostError, StoreUnavailableError
from memwal.fleet.alerts import Event, news, tell
from memwal.fleet.health import Kind
from memwal.jobs.job import SkippedRegion

REGION = "00000000-0000-0000-0000-000000000007"
PAUSE = timedelta(minutes=2)


class Clock:
    """A time that goes on by two minutes at each look."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def next(self) -> datetime:
        self.now += PAUSE
        return self.now


@pytest.fixture
def flights(catalog: Catalog) -> Catalog:
    catalog.register("flights", uri="/t", owner="air team")
    return catalog


@pytest.fixture
def told(flights: Catalog) -> Callable[..., list[tuple[str, bool]]]:
    """Return a function that tells a channel, and gives the kinds it was told and their ends."""
    clock = Clock()

    def look(channel: str = "ops") -> list[tuple[str, bool]]:
        sent: list[Event] = []
        events = tell(flights, channel, sent.extend, now=clock.next())
        assert sent == events
        return [(event.kind.value, event.over) for event in events]

    return look


def hold(catalog: Catalog, *, generation: int = 2) -> None:
    held = SkippedRegion(region_id=REGION, generation=generation, reason="torn")
    catalog.setbacks.hold("flights", [held])


def test_a_thing_is_told_when_it_begins_and_when_it_ends(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    assert told() == []
    hold(flights)
    assert told() == [("region_held", False)]
    assert told() == []
    hold(flights)
    assert told() == []
    hold(flights)
    assert told() == [("generation_poisoned", False)]
    hold(flights, generation=5)
    assert told() == [("region_held", False)]
    flights.setbacks.release("flights", [REGION])
    assert told() == [("region_held", True)]
    assert told() == []
    hold(flights)
    assert told() == [("region_held", False)]


def test_a_job_that_fails_once_more_is_not_over_meanwhile(flights: Catalog) -> None:
    now = datetime.now(UTC)
    first = flights.start_run("flights", "merge")
    flights.finish_run(first, error="no rights")
    with flights.database.writing() as session:
        row = session.get_one(JobRunRow, first)
        row.started_at = row.finished_at = now - timedelta(minutes=10)
    assert [event.over for event in tell(flights, "ops", list, now=now)] == [False]
    flights.finish_run(flights.start_run("flights", "merge"), error="no rights")
    # It is too fresh to be told of by itself.
    assert news(flights, "ops", now=datetime.now(UTC)) == []
    flights.finish_run(flights.start_run("flights", "merge"), result={"figures": {}})
    assert [event.over for event in news(flights, "ops")] == [True]


def test_every_channel_hears_of_it(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    hold(flights)
    assert told("ops") == told("air team") == [("region_held", False)]
    assert told("ops") == told("air team") == []


def test_what_could_not_be_told_is_told_the_next_time(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    hold(flights)

    def fail(events: object) -> None:
        raise StoreUnavailableError("no answer")

    with pytest.raises(StoreUnavailableError):
        tell(flights, "ops", fail)
    assert news(flights, "ops") == news(flights, "ops")
    assert told() == [("region_held", False)]


def test_messages_keep_their_distance(flights: Catalog) -> None:
    now = datetime.now(UTC)
    sent: list[Event] = []
    hold(flights)
    tell(flights, "ops", sent.extend, now=now)
    flights.setbacks.failed("flights", "look", "no bucket")
    flights.setbacks.release("flights", [REGION])
    assert tell(flights, "ops", sent.extend, now=now + timedelta(seconds=59)) == []
    found = tell(flights, "ops", sent.extend, now=now + timedelta(seconds=60))
    assert {(event.kind, event.over) for event in found} == {
        (Kind.JOB_FAILED, False),
        (Kind.REGION_HELD, True),
    }
    assert len(sent) == 3


def test_a_lost_lease_has_no_end(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    error = f"{LeaseLostError.__name__}: it ran out"
    flights.finish_run(flights.start_run("flights", "gc"), error=error)
    flights.finish_run(flights.start_run("flights", "gc"), result={"figures": {}})
    assert told() == [("lease_lost", False)]
    assert told() == []
    flights.finish_run(flights.start_run("flights", "gc"), error=error)
    flights.finish_run(flights.start_run("flights", "gc"), result={"figures": {}})
    assert told() == [("lease_lost", False)]
    assert news(flights, "ops", now=datetime.now(UTC) + timedelta(days=3)) == []


def test_a_table_that_is_given_up_is_no_good_news(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    hold(flights)
    assert told() == [("region_held", False)]
    flights.update("flights", enabled=False)
    assert told() == []


def test_tables_of_others_are_left_to_them(flights: Catalog) -> None:
    flights.register("trains", uri="/r")
    hold(flights)
    flights.setbacks.failed("trains", "look", "no bucket")
    sent: list[Event] = []
    tell(flights, "rail", sent.extend, tables=["trains"])
    assert [event.table for event in sent] == ["trains"]
    flights.setbacks.recovered("trains", "look")
    later = datetime.now(UTC) + PAUSE
    assert tell(flights, "rail", sent.extend, tables=["flights"], now=later)[0].over is False


def test_of_many_that_look_at_once_one_tells(flights: Catalog) -> None:
    hold(flights)
    sent: list[Event] = []
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: tell(flights, "ops", sent.extend), range(8)))
    assert len(sent) == sum(map(len, found)) == 1


def test_old_news_are_forgotten(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    hold(flights)
    told()
    flights.setbacks.release("flights", [REGION])
    told()
    assert flights.notified.last_told_at("ops") is not None
    flights.prune(now=datetime.now(UTC) + timedelta(days=40))
    assert flights.notified.last_told_at("ops") is None
