from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event
from support.data import statuses
from support.data.statuses import region, region_id

import memwal
from memwal.catalog import Catalog
from memwal.catalog.records import AirflowProblem
from memwal.errors import ObjectNotFoundError
from memwal.fleet import Fleet, overview
from memwal.fleet.conditions import conditions
from memwal.fleet.overview import table_detail, table_history
from memwal.jobs.job import JobResult, SkippedRegion
from memwal.jobs.status import TableStatus

Managed = Callable[..., memwal.Table]
REGION = region_id(1)


def status(*, generations: int = 2, age: float | None = 100.0) -> TableStatus:
    backlog = region(
        1,
        backlog_generations=generations,
        oldest_backlog_seconds=age if generations else None,
        unflushed_wal_entries=3,
    )
    return statuses.status(backlog, snapshot_age_seconds=50.0, indexes=())


def later(**values: float) -> datetime:
    return datetime.now(UTC) + timedelta(**values)


@contextmanager
def counted(catalog: Catalog) -> Iterator[list[str]]:
    """Queries that are made in the block."""
    made: list[str] = []

    def note(_c: object, _u: object, statement: str, *_: object) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            made.append(statement)

    event.listen(catalog.database.engine, "before_cursor_execute", note)
    try:
        yield made
    finally:
        event.remove(catalog.database.engine, "before_cursor_execute", note)


def test_as_many_queries_for_many_tables_as_for_none(catalog: Catalog) -> None:
    # The first look checks the schema, too.
    assert overview(catalog) == []
    with counted(catalog) as none:
        overview(catalog)
    for number in range(20):
        name = f"t{number:02}"
        catalog.register(name, uri=f"/data/{name}.lance")
        catalog.record_backlog(name, status())
        with catalog.record_run(name, "merge") as run:
            run.finish(JobResult(job="merge", table="/a", version=1))
    with counted(catalog) as many:
        found = overview(catalog)
    assert [one.table for one in found] == [f"t{number:02}" for number in range(20)]
    assert len(many) == len(none) < 12


def test_a_table_that_nobody_has_looked_at(catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance")
    (found,) = overview(catalog)
    assert (found.health.value, found.backlog, found.rates.rows_in) == ("unwatched", None, None)
    detail = table_detail(catalog, "a")
    assert (detail.state, detail.due, detail.skipped_regions, detail.checked) == (
        None,
        {},
        (),
        None,
    )
    assert table_history(catalog, "a", since=later(hours=-1)) == []
    for ask in (overview, table_detail):
        with pytest.raises(ObjectNotFoundError, match="'b'"):
            ask(catalog, table="b") if ask is overview else ask(catalog, "b")
    with pytest.raises(ObjectNotFoundError):
        table_history(catalog, "b", since=later(hours=-1))


def test_what_fails_is_told_until_it_succeeds(catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance")
    catalog.record_backlog("a", status())
    catalog.finish_run(catalog.start_run("a", "merge"), error="ConflictError: busy")
    catalog.backoffs.record_failure("a", "merge", "an older word")
    catalog.backoffs.record_failure("a", "status", "no access")
    (found,) = overview(catalog)
    assert found.health.value == "failing"
    assert {one.job: one.reason for one in found.errors} == {
        "merge": "ConflictError: busy",
        "status": "no access",
    }
    catalog.backoffs.clear_failure("a", "status")
    catalog.backoffs.clear_failure("a", "merge")
    with catalog.record_run("a", "merge") as run:
        (working,) = overview(catalog)
        assert [one.job for one in working.running] == ["merge"]
        run.finish(JobResult(job="merge", table="/a", version=1, metrics={"rows_upserted": 90}))
    (found,) = overview(catalog)
    assert (found.health.value, found.errors, found.running) == ("ok", (), ())
    assert found.rates.rows_merged == pytest.approx(0.1)
    assert list(found.last_runs) == ["merge"]
    assert found.to_dict()["health"] == "ok"


def test_a_due_job_waits_until_a_run_begins(catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance")
    catalog.record_backlog("a", status())
    catalog.reports.record_due("a", {"merge": "5 pending generations (limit 4)"})

    def states(now: datetime | None = None) -> list[str]:
        (found,) = overview(catalog, now=now)
        return [reason.health.value for reason in found.reasons]

    assert states() == ["due"]
    assert states(later(minutes=11)) == ["not_started"]
    with catalog.record_run("a", "merge") as run:
        assert states() == []
        run.finish(JobResult(job="merge", table="/a", version=1))
    # It is due still, or the watcher has not looked again: it waits since the end of the run.
    assert states() == ["due"]
    (found,) = overview(catalog)
    ended = catalog.latest_runs()["a"].ended["merge"].finished_at
    assert found.reasons[0].since == ended
    catalog.reports.record_due("a", {})
    assert states() == []


def test_the_report_of_airflow_is_in_every_table(catalog: Catalog) -> None:
    for name in ("a", "b"):
        catalog.register(name, uri=f"/data/{name}.lance")
        catalog.record_backlog(name, status())
    since = later(minutes=-5)
    down = AirflowProblem(state="no_heartbeat", table=None, since=since, reason="no scheduler")
    failed = AirflowProblem(state="run_failed", table="b", since=since, reason="the run r failed")
    catalog.reports.record_airflow([down, failed])
    found = {one.table: one for one in overview(catalog)}
    assert {name: one.health.value for name, one in found.items()} == {
        "a": "no_heartbeat",
        "b": "run_failed",
    }
    told = conditions(catalog)
    assert [(one.table, one.kind.value) for one in told] == [
        ("a", "no_heartbeat"),
        ("b", "no_heartbeat"),
        ("b", "run_failed"),
    ]
    assert {one.since for one in told} == {since}


def test_what_is_due_by_now(catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance")
    catalog.record_backlog("a", status(age=100.0))
    assert table_detail(catalog, "a").due["merge"].reason is None
    due = table_detail(catalog, "a", now=later(seconds=250)).due
    assert due["merge"].regions == (REGION,)
    assert due["snapshot"].reason is not None
    catalog.backoffs.skip_regions(
        "a", [SkippedRegion(region_id=REGION, generation=2, reason="torn")]
    )
    detail = table_detail(catalog, "a", now=later(seconds=250))
    assert detail.due["merge"].reason is None
    assert [one.region_id for one in detail.skipped_regions] == [REGION]
    assert detail.overview.skipped_regions == 1


def test_a_status_ages() -> None:
    older = status(age=100.0).aged(10)
    assert older.oldest_backlog_seconds == 110.0
    assert older.snapshot_age_seconds == 60.0
    idle = replace(status(generations=0), snapshot_age_seconds=None)
    assert idle.aged(10) == idle


def test_the_figures_are_those_of_the_table(catalog: Catalog, managed: Managed) -> None:
    table = managed("flights", generations=3)
    before = table.status()
    assert before.backlog_rows > 0
    assert Fleet(catalog).run_once()
    detail = table_detail(catalog, "flights")
    assert set(detail.overview.last_runs) == {"merge", "snapshot", "gc"}
    assert detail.overview.rates.rows_merged > 0
    assert detail.overview.health.value == "ok"
    assert detail.state is not None
    assert detail.state.status.backlog_rows == 0
    first, *_, last = table_history(catalog, "flights", since=later(hours=-1))
    assert (first.sample.rows, last.sample.rows) == (before.backlog_rows, 0)
