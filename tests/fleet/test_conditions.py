"""What is wrong with tables, as the catalog tells it."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from support.data import statuses
from support.data.policies import spoil_policy

from memwal.catalog import Catalog, Policy
from memwal.catalog.leases import job_resource
from memwal.catalog.models import JobRunRow
from memwal.errors import ConflictError
from memwal.fleet.conditions import RETRY_GRACE, Condition, ConditionKind, conditions
from memwal.jobs.job import SkippedRegion
from memwal.jobs.status import TableStatus

REGION = "00000000-0000-0000-0000-000000000007"


def status(age: float | None) -> TableStatus:
    """Return a status with three generations of which the oldest is so old."""
    waiting = 0 if age is None else 3
    return statuses.status(statuses.region(backlog_generations=waiting, oldest_backlog_seconds=age))


@pytest.fixture
def flights(catalog: Catalog) -> Catalog:
    policy = Policy(late_seconds=100, critical_seconds=1000)
    catalog.register("flights", uri="/t", policy=policy, owner="air team")
    return catalog


def later(**since: float) -> datetime:
    return datetime.now(UTC) + timedelta(**since)


def test_a_backlog_is_late_then_critical_also_when_nobody_looks_again(flights: Catalog) -> None:
    flights.record_backlog("flights", status(50))
    assert conditions(flights, now=later(seconds=40)) == []
    (late,) = conditions(flights, now=later(seconds=60))
    assert (late.kind, late.subject, late.owner) == (ConditionKind.BACKLOG_LATE, "", "air team")
    assert re.search(r"\b3\b", late.text)
    (critical,) = conditions(flights, now=later(seconds=960))
    assert critical.kind is ConditionKind.BACKLOG_CRITICAL
    assert (critical.since, critical.key) == (late.since, late.key)
    flights.record_backlog("flights", status(None))
    assert conditions(flights, now=later(seconds=960)) == []


def test_a_backlog_that_nobody_looks_at_for_long_is_not_forgotten(flights: Catalog) -> None:
    flights.record_backlog("flights", status(2000))
    moment = later(days=365)
    flights.prune(now=moment)
    assert [one.kind for one in conditions(flights, now=moment)] == [
        ConditionKind.BACKLOG_CRITICAL,
        ConditionKind.UNWATCHED,
    ]


def test_only_what_is_maintained_is_watched(flights: Catalog) -> None:
    flights.record_backlog("flights", status(5000))
    flights.backoffs.skip_regions(
        "flights", [SkippedRegion(region_id=REGION, generation=2, reason="torn")]
    )
    flights.backoffs.record_failure("flights", "status", "no such bucket")
    assert len(conditions(flights)) == 3
    assert conditions(flights, tables=["trains"]) == []
    flights.update("flights", enabled=False)
    assert conditions(flights) == []


def test_a_region_that_stays_unreadable_has_a_damaged_generation(flights: Catalog) -> None:
    skipped = [SkippedRegion(region_id=REGION, generation=2, reason="torn\n file")]
    kinds: list[ConditionKind] = []
    found: list[Condition] = []
    for _ in range(3):
        flights.backoffs.skip_regions("flights", skipped)
        found = conditions(flights)
        kinds += [one.kind for one in found]
    assert kinds == [
        ConditionKind.REGION_SKIPPED,
        ConditionKind.REGION_SKIPPED,
        ConditionKind.GENERATION_POISONED,
    ]
    assert found[0].subject == REGION
    assert re.search(r"\b3\b.*torn file$", found[0].text)
    flights.backoffs.clear_regions("flights", [REGION])
    assert conditions(flights) == []


def test_a_job_that_fails_and_is_not_mended_at_once(flights: Catalog) -> None:
    run = flights.start_run("flights", "merge")
    flights.finish_run(run, error="StoreAccessError: marker-no-rights")
    assert conditions(flights) == []
    (failed,) = conditions(flights, now=later(seconds=RETRY_GRACE.total_seconds() + 1))
    assert (failed.kind, failed.subject) == (ConditionKind.JOB_FAILED, "merge")
    assert "marker-no-rights" in failed.text
    assert flights.latest_runs()["flights"].ended["merge"].run_id == run
    flights.finish_run(flights.start_run("flights", "merge"), result={"metrics": {}})
    assert conditions(flights, now=later(minutes=10)) == []
    flights.backoffs.record_failure("flights", "merge", "boom")
    flights.finish_run(flights.start_run("flights", "merge"), error="boom")
    (failed,) = conditions(flights, now=later(minutes=10))
    assert failed.kind is ConditionKind.JOB_FAILED
    assert "boom" in failed.text


def test_a_policy_that_cannot_be_read_is_told_at_once(flights: Catalog) -> None:
    spoil_policy(flights, "flights", "{")
    (failed,) = conditions(flights)
    assert (failed.kind, failed.subject) == (ConditionKind.JOB_FAILED, "policy")
    assert failed.runbook.endswith("#the-policy-cannot-be-read")
    flights.update("flights", policy=Policy())
    assert conditions(flights) == []


def test_a_run_that_died_without_a_word(flights: Catalog) -> None:
    run = flights.start_run("flights", "gc", beats=True)
    with flights.database.writing() as session:
        session.get_one(JobRunRow, run).heartbeat_at = later(minutes=-5)
    (dead,) = conditions(flights)
    assert (dead.kind, dead.subject) == (ConditionKind.JOB_FAILED, "gc")
    assert str(run) in dead.text


def test_a_lost_lease_is_known_by_what_a_real_one_says(flights: Catalog) -> None:
    resource = job_resource("flights", "merge")
    with (
        pytest.raises(ConflictError),
        flights.leases.acquire(resource) as lease,
        flights.record_run("flights", "merge", lease=lease),
    ):
        flights.leases.release(resource)
        lease.check()
    flights.finish_run(flights.start_run("flights", "merge"), result={"metrics": {}})
    (lost,) = conditions(flights)
    assert (lost.kind, lost.topic, lost.subject) == (ConditionKind.LEASE_LOST, "lease", "merge")
    after = conditions(flights, now=later(days=2))
    assert ConditionKind.LEASE_LOST not in [one.kind for one in after]


def test_the_critical_come_first(flights: Catalog) -> None:
    catalog = flights
    for name, age in (("ants", 500), ("zebras", 5000)):
        catalog.register(
            name, uri=f"/{name}", policy=Policy(late_seconds=100, critical_seconds=1000)
        )
        catalog.record_backlog(name, status(age))
    assert [one.table for one in conditions(catalog)] == ["zebras", "ants"]
    assert conditions(catalog)[0].to_dict()["critical"] is True
