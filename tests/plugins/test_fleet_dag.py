from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from memwal_airflow import fleet_dag
from memwal_airflow.fleet_dag import (
    build_fleet_dags,
    sample_tables,
    start_unwatched,
    unstarted_tables,
    unwatched_tables,
)
from support.airflow.outlet_events import OutletEvents

from memwal.catalog import Catalog, Policy, read_snapshot
from memwal.catalog.records import START_JOB
from memwal.fleet.health import watch_limit
from memwal.jobs.job import JobResult


def test_without_settings_little_is_verified() -> None:
    dag = build_fleet_dags()["memwal_fleet"]
    assert (dag.dag_id, dag.schedule, dag.max_active_runs) == ("memwal_fleet", "@hourly", 1)
    assert set(dag.task_ids) == {
        "list_folders",
        "register_folder",
        "prune",
        "export",
        "choose_tables",
        "verify",
        "start_unwatched",
        "notify",
    }


def test_settings_are_those_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__FLEET_SCHEDULE", "none")
    monkeypatch.setenv("AIRFLOW__MEMWAL__VERIFY_TABLES_PER_DAY", "9")
    dag = build_fleet_dags()["memwal_fleet"]
    assert dag.schedule is None
    assert list(dag.get_task("choose_tables").op_args) == [9]
    # A search that fails is seen: nothing that succeeds comes after it.
    assert dag.get_task("register_folder").downstream_task_ids == set()


def test_so_many_tables_are_verified_a_day_and_none_twice(catalog: Catalog) -> None:
    for number in range(6):
        catalog.register(f"t{number}", uri=f"/t{number}", enabled=number < 5)
    now = datetime.now(UTC)
    for name in ("t0", "t1"):
        with catalog.record_run(name, "verify") as run:
            run.finish(JobResult(job="verify", table=name, version=1))
    chosen = sample_tables(catalog, per_day=4, now=now)
    assert len(chosen) == 2
    assert set(chosen) <= {"t2", "t3", "t4"}
    assert sample_tables(catalog, per_day=9, now=now) == ["t2", "t3", "t4"]
    assert sample_tables(catalog, per_day=2, now=now) == []
    assert len(sample_tables(catalog, per_day=4, now=now + timedelta(days=2))) == 4


def test_a_table_that_nobody_looks_at_is_noticed(backlog: Any, catalog: Catalog) -> None:
    catalog.register("due", uri=backlog.uri)
    catalog.register("hourly", uri=backlog.uri, policy=Policy(schedule="@hourly"))
    now, limit = datetime.now(UTC), timedelta(seconds=watch_limit(catalog.get("due")) or 0)
    assert unwatched_tables(catalog, now=now) == []
    later = now + limit + timedelta(seconds=1)
    assert [table.name for table in unwatched_tables(catalog, now=later)] == ["due"]
    catalog.record_backlog("due", backlog.table.status())
    assert unwatched_tables(catalog, now=datetime.now(UTC) + limit / 2) == []
    catalog.record_seen(["due", "hourly"])
    # A table that does not change has no newer sample.
    (sample,) = catalog.latest_samples()
    assert unwatched_tables(catalog, now=sample.at + limit) == []


def test_a_table_that_is_announced_in_vain_is_noticed(catalog: Catalog) -> None:
    catalog.register("due", uri="/due")
    catalog.register("hourly", uri="/hourly", policy=Policy(schedule="@hourly"))
    catalog.register("off", uri="/off", enabled=False)
    assert unstarted_tables(catalog) == []
    for name in ("due", "hourly", "off"):
        catalog.backoffs.record_failure(name, START_JOB, "no run")
        catalog.backoffs.record_failure(name, "merge", "no space")
    assert [table.name for table in unstarted_tables(catalog)] == ["due"]


def test_a_due_table_with_an_active_run_is_not_started_again(
    backlog: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("waits", "runs"):
        catalog.register(name, uri=backlog.uri)
        catalog.backoffs.record_failure(name, START_JOB, "no run")
    monkeypatch.setattr(fleet_dag, "active_runs", lambda tables: {"runs"} & set(tables))
    updates = OutletEvents(MagicMock)
    assert start_unwatched.function(drained=False, outlet_events=updates) == ["waits"]


DAG_FILE = """
from memwal_airflow.fleet_dag import build_fleet_dags
# Airflow reads files that speak of airflow and dag only.
globals().update(build_fleet_dags())
"""


@pytest.fixture
def run(catalog: Catalog, load_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the DAG and give its state and those of its tasks."""
    monkeypatch.setenv("MEMWAL_CATALOG_SNAPSHOT", str(tmp_path / "tables.json"))
    catalog.add_folder(str(tmp_path))
    (tmp_path / "nothing").mkdir()
    catalog.add_folder(str(tmp_path / "nothing"))

    def go() -> tuple[str, dict[str, set[str]]]:
        done = load_dag(DAG_FILE, "memwal_fleet").test()
        states: dict[str, set[str]] = {}
        for instance in done.get_task_instances():
            states.setdefault(instance.task_id, set()).add(str(instance.state))
        return str(done.state), states

    return go


@pytest.mark.slow
def test_a_table_is_found_registered_and_verified(
    run: Any, backlog: Any, catalog: Catalog, tmp_path: Path
) -> None:
    state, tasks = run()
    assert state == "success"
    # Nothing was registered when tables were chosen, or the new one was already.
    verified = tasks.pop("verify")
    chosen = tasks.pop("choose_tables")
    assert verified == chosen
    assert tasks == {
        "list_folders": {"success"},
        "register_folder": {"success", "skipped"},
        "prune": {"success"},
        "export": {"success"},
        "start_unwatched": {"skipped"},
        "notify": {"success"},
    }
    (managed,) = catalog.list()
    assert (managed.name, managed.uri, managed.enabled) == ("table", backlog.uri, True)
    assert read_snapshot(tmp_path / "tables.json") == [managed]
    state, tasks = run()
    assert tasks["register_folder"] == {"skipped"}
    (record,) = catalog.runs(job="verify")
    assert (record.table, record.state) == ("table", "succeeded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "uri", "keys"),
    [
        ("each", "memwal://unwatched/due", {"jobs"}),
        ("drain", "memwal://due/unwatched", {"payload"}),
    ],
)
def test_a_table_that_nobody_looks_at_is_started(
    run: Any,
    backlog: Any,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    uri: str,
    keys: set[str],
) -> None:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    monkeypatch.setattr(fleet_dag, "is_unwatched", lambda *_: True)
    monkeypatch.setenv("AIRFLOW__MEMWAL__TABLE_DAGS", mode)
    catalog.register("unwatched", uri=backlog.uri)
    _, tasks = run()
    assert tasks["start_unwatched"] == {"success"}
    with create_session() as session:
        events = (
            session.query(AssetEvent)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .filter(AssetModel.uri == uri)
        )
        assert [set(event.extra) for event in events] == [keys]
