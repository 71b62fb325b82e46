"""The newest samples and runs of many tables, on both databases."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from memwal.catalog import Catalog, RunState
from memwal.catalog.history import MergedRowCount
from memwal.catalog.models import BacklogSampleRow, JobRunRow
from memwal.jobs.job import JobResult, SkippedRegion

NOW = datetime.now(UTC).replace(microsecond=0)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def sample(catalog: Catalog, table: str, minutes: float, rows: int = 0) -> None:
    with catalog.database.writing() as session:
        session.add(
            BacklogSampleRow(
                table=table, at=ago(minutes), generations=1, rows=rows, bytes=0, wal_entries=0
            )
        )


def run(
    catalog: Catalog,
    table: str,
    job: str,
    minutes: float,
    state: RunState = RunState.SUCCEEDED,
    **values: object,
) -> None:
    ended = None if state is RunState.RUNNING else ago(minutes)
    with catalog.database.writing() as session:
        session.add(
            JobRunRow(
                table=table,
                job=job,
                state=state.value,
                started_at=ago(minutes + 1),
                finished_at=ended,
                **values,
            )
        )


def test_samples(each_catalog: Catalog) -> None:
    assert each_catalog.latest_samples() == []
    for table, minutes, rows in [("a", 30, 1), ("a", 9, 2), ("a", 1, 3), ("b", 20, 4), ("c", 5, 5)]:
        sample(each_catalog, table, minutes, rows)
    assert [(one.table, one.rows) for one in each_catalog.latest_samples()] == [
        ("a", 3),
        ("b", 4),
        ("c", 5),
    ]
    assert [one.rows for one in each_catalog.latest_samples(table="b")] == [4]
    assert [one.rows for one in each_catalog.first_samples(ago(15))] == [2, 5]
    assert [one.rows for one in each_catalog.first_samples(ago(15), table="a")] == [2]
    assert each_catalog.first_samples(ago(15), table="b") == []


def test_runs(each_catalog: Catalog) -> None:
    assert each_catalog.latest_runs() == {}
    each = each_catalog
    run(each, "a", "merge", 50)
    run(each, "a", "merge", 40, rows=7, result={"warnings": []})
    run(each, "a", "merge", 3, RunState.FAILED, error="no")
    run(each, "a", "gc", 20)
    run(each, "b", "index", 2, RunState.RUNNING)
    run(each, "b", "index", 1, RunState.RUNNING)
    silent = NOW - timedelta(hours=1)
    run(each, "b", "snapshot", 60, RunState.RUNNING, heartbeat_at=silent)
    found = each.latest_runs()
    assert set(found) == {"a", "b"}
    assert {job: one.state.value for job, one in found["a"].newest.items()} == {
        "merge": "failed",
        "gc": "succeeded",
    }
    assert found["a"].newest["merge"].error == "no"
    assert {job: one.started_at for job, one in found["a"].failing.items()} == {
        "merge": found["a"].newest["merge"].started_at
    }
    assert set(found["b"].failing) == {"snapshot"}
    assert {job: one.finished_at for job, one in found["a"].succeeded.items()} == {
        "merge": ago(40),
        "gc": ago(20),
    }
    assert found["a"].succeeded["merge"].result is None
    assert [one.job for one in found["b"].running] == ["index", "index"]
    assert found["b"].newest["snapshot"].state is RunState.ABANDONED
    assert list(each.latest_runs(table="b")) == ["b"]
    assert each.latest_runs(table="c") == {}


def test_work_has_the_runs_and_skipped_regions_of_its_tables(each_catalog: Catalog) -> None:
    for name in ("a", "b", "c"):
        each_catalog.register(name, uri=f"/data/{name}.lance")
        run(each_catalog, name, "merge", 50)
    run(each_catalog, "a", "gc", 40)
    run(each_catalog, "b", "gc", 30, RunState.FAILED)
    skipped = SkippedRegion(region_id=str(UUID(int=1)), generation=1, reason="damaged")
    each_catalog.backoffs.skip_regions("a", [skipped])
    each_catalog.backoffs.skip_regions("c", [skipped])
    each_catalog.register("new", uri="/data/new.lance")
    found = each_catalog.work_of(["a", "b", "new"])
    assert (
        found["a"].last_runs
        == each_catalog.last_runs("a")
        == {
            "merge": ago(50),
            "gc": ago(40),
        }
    )
    assert found["a"].runs == each_catalog.latest_runs(table="a")["a"]
    assert found["b"].last_runs == {"merge": ago(50)}
    assert [record.region_id for record in found["a"].skipped_regions] == [str(UUID(int=1))]
    assert found["b"].skipped_regions == ()
    assert (found["new"].last_runs, found["new"].runs.running) == ({}, ())
    assert set(found) == {"a", "b", "new"}
    assert each_catalog.work_of([]) == {}


def test_merges(each_catalog: Catalog) -> None:
    run(each_catalog, "a", "merge", 40, rows=1)
    run(each_catalog, "a", "merge", 10, rows=2)
    run(each_catalog, "b", "merge", 5, rows=3)
    run(each_catalog, "b", "merge", 4, RunState.FAILED, rows=4)
    run(each_catalog, "b", "gc", 3, rows=5)
    assert each_catalog.merges(ago(15)) == [
        MergedRowCount("a", ago(10), 2),
        MergedRowCount("b", ago(5), 3),
    ]
    assert [one.rows for one in each_catalog.merges(ago(60), table="a")] == [1, 2]
    assert each_catalog.merges(ago(15), table="c") == []


def test_points_are_thinned_out(each_catalog: Catalog) -> None:
    for minute in range(100):
        sample(each_catalog, "a", minute, rows=minute)
    sample(each_catalog, "b", 1)
    every = each_catalog.backlog_points("a", since=ago(99), most=100)
    assert [one.rows for one in every] == list(range(99, -1, -1))
    thin = each_catalog.backlog_points("a", since=ago(99), most=30)
    assert [one.rows for one in thin] == list(range(96, -1, -4))
    assert [one.rows for one in each_catalog.backlog_points("a", since=ago(9), most=1)] == [0]
    assert each_catalog.backlog_points("c", since=ago(9), most=30) == []


def test_the_newest_run_whose_result_holds_something(each_catalog: Catalog) -> None:
    result = JobResult(job="merge", table="/a", version=1).to_dict()
    run(each_catalog, "a", "merge", 9, result={**result, "quality": {"passed": 1}})
    run(each_catalog, "a", "merge", 8, result={**result, "quality": {"passed": 2}})
    run(each_catalog, "a", "merge", 7, result=result)
    found = each_catalog.latest_run_with("a", "quality", since=ago(60))
    assert found is not None
    assert (found.job, (found.result or {})["quality"]) == ("merge", {"passed": 2})
    assert each_catalog.latest_run_with("a", "quality", since=ago(5)) is None
    assert each_catalog.latest_run_with("b", "quality", since=ago(60)) is None
