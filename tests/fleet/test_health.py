import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memwal.catalog import BacklogSample, ManagedTable, Policy
from memwal.catalog.failures import REGION_JOB, JobError
from memwal.catalog.records import SENSOR_JOB, START_JOB, AirflowProblem, AirflowReport, DueJob
from memwal.fleet.conditions import ConditionKind
from memwal.fleet.health import Health, airflow_problems, backlog_age, health_reasons

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
TABLE = ManagedTable(
    name="a",
    uri="/a",
    storage_options_ref=None,
    policy=Policy(late_seconds=600, critical_seconds=3600),
    owner="ops",
    enabled=True,
    created_at=NOW - timedelta(days=9),
    updated_at=NOW - timedelta(days=9),
)
SAMPLE = BacklogSample(
    table="a",
    at=NOW - timedelta(seconds=30),
    generations=2,
    rows=5,
    bytes=9,
    wal_entries=0,
    oldest_seconds=60.0,
)
ERROR = JobError(job="gc", reason="StoreAccessError:\n  no", at=NOW, since=NOW)
REGION = JobError(job=REGION_JOB, reason="2 regions are skipped: r1", at=NOW, since=NOW)


@pytest.mark.parametrize(
    ("sample", "age"),
    [
        (SAMPLE, 90.0),
        (None, None),
        (replace(SAMPLE, generations=0), None),
        (replace(SAMPLE, oldest_seconds=None), None),
        # A clock that is behind does not make it younger.
        (replace(SAMPLE, at=NOW + timedelta(seconds=5)), 60.0),
    ],
)
def test_a_backlog_ages_on(sample: BacklogSample | None, age: float | None) -> None:
    assert backlog_age(sample, NOW) == age


@pytest.mark.parametrize(
    ("sample", "options", "expected", "named"),
    [
        (SAMPLE, {}, Health.OK, []),
        (None, {}, Health.UNWATCHED, [[]]),
        (
            replace(SAMPLE, generations=0, at=NOW - timedelta(hours=2)),
            {},
            Health.UNWATCHED,
            [["2 h"]],
        ),
        # Nothing has changed since then.
        (
            replace(SAMPLE, generations=0, at=NOW - timedelta(hours=2), seen_at=NOW),
            {},
            Health.OK,
            [],
        ),
        (replace(SAMPLE, oldest_seconds=570.0), {}, Health.LATE, [["10 min", "10 min"]]),
        (
            replace(SAMPLE, oldest_seconds=3569.0),
            {"errors": [REGION]},
            Health.FAILING,
            [["2", "r1"], ["60 min", "10 min"]],
        ),
        (
            replace(SAMPLE, oldest_seconds=3570.0),
            {"errors": [REGION, ERROR]},
            Health.CRITICAL,
            [["60 min", "60 min"], ["2", "r1"], ["gc", "StoreAccessError: no"]],
        ),
        (None, {"errors": [ERROR]}, Health.FAILING, [["gc"], []]),
    ],
)
def test_health(
    sample: BacklogSample | None,
    options: dict[str, object],
    expected: Health,
    named: list[list[str]],
) -> None:
    """Each reason names its figures, in this order."""
    reasons = health_reasons(TABLE, sample, now=NOW, **options)
    assert (reasons[0].health if reasons else Health.OK) is expected
    for reason, parts in zip(reasons, named, strict=True):
        assert re.search(".*".join(map(re.escape, parts)), reason.text)


def states(table: ManagedTable = TABLE, **options: object) -> list[Health]:
    return [reason.health for reason in health_reasons(table, SAMPLE, now=NOW, **options)]


def test_what_is_not_maintained_is_in_no_other_state() -> None:
    assert states(replace(TABLE, enabled=False), errors=[REGION]) == [Health.OFF]


def due(job: str = "merge", *, seconds: float) -> DueJob:
    since = NOW - timedelta(seconds=seconds)
    return DueJob(table="a", job=job, since=since, reason="5 pending generations (limit 4)")


def test_a_due_job_waits_and_then_is_not_started() -> None:
    assert states(waiting=[due(seconds=599)]) == [Health.DUE]
    assert states(waiting=[due(seconds=600), due("gc", seconds=1)]) == [
        Health.NOT_STARTED,
        Health.DUE,
    ]
    hourly = replace(TABLE, policy=replace(TABLE.policy, schedule=3600.0))
    assert states(hourly, waiting=[due(seconds=4199)]) == [Health.DUE]
    assert states(hourly, waiting=[due(seconds=4200)]) == [Health.NOT_STARTED]
    by_hand = replace(TABLE, policy=replace(TABLE.policy, schedule=None))
    assert states(by_hand, waiting=[due(seconds=10**6)]) == [Health.DUE]


def test_a_job_that_fails_is_not_due_as_well() -> None:
    assert states(waiting=[due("gc", seconds=9999)], errors=[ERROR]) == [Health.FAILING]


@pytest.mark.parametrize(
    ("job", "expected"),
    [(START_JOB, Health.NOT_STARTED), (SENSOR_JOB, Health.SENSOR_TIMEOUT)],
)
def test_failures_of_airflow_are_states_of_their_own(job: str, expected: Health) -> None:
    error = replace(ERROR, job=job)
    (reason,) = health_reasons(
        TABLE, SAMPLE, now=NOW, errors=[error], waiting=[due(seconds=9999)][: job == START_JOB]
    )
    assert (reason.health, reason.since) == (expected, NOW)


def test_a_state_has_one_name_also_as_event_and_as_runbook() -> None:
    for state in Health:
        name = "Memwal" + "".join(part.title() for part in state.value.split("_"))
        if state.value in set(ConditionKind):
            assert state.runbook == f"docs/runbooks/{name}.md"
        if state.runbook:
            assert (ROOT / state.runbook).is_file()
        else:
            assert state in (Health.OFF, Health.DUE, Health.OK)


def problem(state: Health, table: str | None) -> AirflowProblem:
    return AirflowProblem(state=state.value, table=table, since=NOW, reason="it is down")


def test_the_report_of_airflow_is_of_all_tables_or_of_one() -> None:
    report = AirflowReport(
        at=NOW - timedelta(seconds=59),
        problems=(
            problem(Health.NO_HEARTBEAT, None),
            problem(Health.UNWATCHED, None),
            problem(Health.RUN_FAILED, "a"),
            problem(Health.RUN_QUEUED, "b"),
        ),
    )

    def found(table: ManagedTable) -> list[str]:
        return [one.state for one in airflow_problems(report, NOW)(table)]

    assert found(TABLE) == ["no_heartbeat", "unwatched", "run_failed"]
    # Its own schedule starts it, and no trigger looks at it.
    by_schedule = replace(TABLE, name="b", policy=replace(TABLE.policy, schedule=60.0))
    assert found(by_schedule) == ["no_heartbeat", "run_queued"]
    assert states(problems=airflow_problems(report, NOW)(TABLE)) == [
        Health.RUN_FAILED,
        Health.NO_HEARTBEAT,
        Health.UNWATCHED,
    ]


def test_a_run_for_all_tables_concerns_those_that_wait_for_it() -> None:
    shared = [problem(Health.RUN_QUEUED, None)]
    assert states(problems=shared) == []
    assert states(problems=shared, waiting=[due(seconds=1)]) == [Health.RUN_QUEUED, Health.DUE]


def test_an_old_report_says_that_the_api_server_is_silent() -> None:
    report = AirflowReport(at=NOW, problems=(problem(Health.RUN_FAILED, "a"),))

    def found(**age: float) -> list[str]:
        return [one.state for one in airflow_problems(report, NOW + timedelta(**age))(TABLE)]

    assert found(seconds=59) == ["run_failed"]
    assert found(seconds=60) == ["no_heartbeat"]
    assert found(days=7) == []
    assert airflow_problems(None, NOW)(TABLE) == []


@pytest.mark.parametrize(("length", "is_cut"), [(300, False), (301, True)])
def test_a_long_reason_is_cut(length: int, is_cut: bool) -> None:
    begins = replace(ERROR, reason="").summary
    error = replace(ERROR, reason="x" * (length - len(begins)))
    (reason,) = health_reasons(TABLE, SAMPLE, now=NOW, errors=[error])
    assert (reason.text == error.summary) is not is_cut
    assert reason.text.startswith(error.summary[:300])
