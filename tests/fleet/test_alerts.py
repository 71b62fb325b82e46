"""Each thing is told once, to each channel, and not lost when it cannot be told."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from memwal.catalog import Catalog
from memwal.catalog.models import JobRunRow
from memwal.errors import LeaseLostError, StoreUnavailableError
from memwal.fleet.alerts import notify_channel
from memwal.fleet.conditions import Condition, ConditionKind
from memwal.jobs.job import SkippedRegion

REGION = "00000000-0000-0000-0000-000000000007"
PAUSE = timedelta(minutes=2)


def pending(catalog: Catalog, channel: str, *, now: datetime | None = None) -> list[Condition]:
    """Return the events that a channel would be sent, without recording them as sent."""
    events: list[Condition] = []

    def refuse(pending_events: Sequence[Condition]) -> None:
        events.extend(pending_events)
        raise StoreUnavailableError("no answer")

    with suppress(StoreUnavailableError):
        notify_channel(catalog, channel, refuse, pause=timedelta(0), now=now)
    return events


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
        sent: list[Condition] = []
        events = notify_channel(flights, channel, sent.extend, now=clock.next())
        assert sent == events
        return [(event.kind.value, event.over) for event in events]

    return look


def hold(catalog: Catalog, *, generation: int = 2) -> None:
    skipped = SkippedRegion(region_id=REGION, generation=generation, reason="torn")
    catalog.backoffs.skip_regions("flights", [skipped])


def test_a_thing_is_told_when_it_begins_and_when_it_ends(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    assert told() == []
    hold(flights)
    assert told() == [("region_skipped", False)]
    assert told() == []
    hold(flights)
    assert told() == []
    hold(flights)
    assert told() == [("generation_poisoned", False)]
    hold(flights, generation=5)
    assert told() == [("region_skipped", False)]
    flights.backoffs.clear_regions("flights", [REGION])
    assert told() == [("region_skipped", True)]
    assert told() == []
    hold(flights)
    assert told() == [("region_skipped", False)]


def test_a_job_that_fails_once_more_is_not_over_meanwhile(flights: Catalog) -> None:
    now = datetime.now(UTC)
    first = flights.start_run("flights", "merge")
    flights.finish_run(first, error="no rights")
    with flights.database.writing() as session:
        row = session.get_one(JobRunRow, first)
        row.started_at = row.finished_at = now - timedelta(minutes=10)
    assert [event.over for event in notify_channel(flights, "ops", list, now=now)] == [False]
    flights.finish_run(flights.start_run("flights", "merge"), error="no rights")
    # It is too fresh to be told of by itself.
    assert pending(flights, "ops", now=datetime.now(UTC)) == []
    flights.finish_run(flights.start_run("flights", "merge"), result={"metrics": {}})
    assert [event.over for event in pending(flights, "ops")] == [True]


def test_every_channel_hears_of_it(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    hold(flights)
    assert told("ops") == told("air team") == [("region_skipped", False)]
    assert told("ops") == told("air team") == []


def test_what_could_not_be_told_is_told_the_next_time(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    hold(flights)

    def fail(events: object) -> None:
        raise StoreUnavailableError("no answer")

    with pytest.raises(StoreUnavailableError):
        notify_channel(flights, "ops", fail)
    undelivered = pending(flights, "ops")
    assert [event.over for event in undelivered] == [False]
    assert pending(flights, "ops") == undelivered
    assert told() == [("region_skipped", False)]


def test_messages_keep_their_distance(flights: Catalog) -> None:
    now = datetime.now(UTC)
    sent: list[Condition] = []
    hold(flights)
    notify_channel(flights, "ops", sent.extend, now=now)
    flights.backoffs.record_failure("flights", "status", "no bucket")
    flights.backoffs.clear_regions("flights", [REGION])
    assert notify_channel(flights, "ops", sent.extend, now=now + timedelta(seconds=59)) == []
    found = notify_channel(flights, "ops", sent.extend, now=now + timedelta(seconds=60))
    assert {(event.kind, event.over) for event in found} == {
        (ConditionKind.JOB_FAILED, False),
        (ConditionKind.REGION_SKIPPED, True),
    }
    assert len(sent) == 3


def test_a_lost_lease_has_no_end(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    error = f"{LeaseLostError.__name__}: it ran out"
    flights.finish_run(flights.start_run("flights", "gc"), error=error)
    flights.finish_run(flights.start_run("flights", "gc"), result={"metrics": {}})
    assert told() == [("lease_lost", False)]
    assert told() == []
    flights.finish_run(flights.start_run("flights", "gc"), error=error)
    flights.finish_run(flights.start_run("flights", "gc"), result={"metrics": {}})
    assert told() == [("lease_lost", False)]
    later = pending(flights, "ops", now=datetime.now(UTC) + timedelta(days=3))
    assert ConditionKind.LEASE_LOST not in [event.kind for event in later]


def test_a_table_that_is_given_up_is_no_good_news(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    hold(flights)
    assert told() == [("region_skipped", False)]
    flights.update("flights", enabled=False)
    assert told() == []


def test_tables_of_others_are_left_to_them(flights: Catalog) -> None:
    flights.register("trains", uri="/r")
    hold(flights)
    flights.backoffs.record_failure("trains", "status", "no bucket")
    sent: list[Condition] = []
    notify_channel(flights, "rail", sent.extend, tables=["trains"])
    assert [event.table for event in sent] == ["trains"]
    flights.backoffs.clear_failure("trains", "status")
    later = datetime.now(UTC) + PAUSE
    assert (
        notify_channel(flights, "rail", sent.extend, tables=["flights"], now=later)[0].over is False
    )


def test_of_many_that_look_at_once_one_tells(flights: Catalog) -> None:
    hold(flights)
    sent: list[Condition] = []
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: notify_channel(flights, "ops", sent.extend), range(8)))
    assert len(sent) == sum(map(len, found)) == 1


def test_old_news_are_forgotten(
    flights: Catalog, told: Callable[..., list[tuple[str, bool]]]
) -> None:
    hold(flights)
    told()
    flights.backoffs.clear_regions("flights", [REGION])
    told()
    assert flights.notifications.last_sent_at("ops") is not None
    flights.prune(now=datetime.now(UTC) + timedelta(days=40))
    assert flights.notifications.last_sent_at("ops") is None
