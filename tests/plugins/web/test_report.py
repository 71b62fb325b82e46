"""What the API server reports of Airflow's database to the catalog."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from support.waiting import until

from memwal.catalog import Catalog, Policy

DAG = "memwal__flights"
COMPONENTS = ("SchedulerJob", "TriggererJob", "DagProcessorJob")


@pytest.fixture
def session(airflow_database: None) -> Iterator[Any]:
    """A session whose changes are undone."""
    from airflow.jobs.job import Job
    from airflow.models.dagrun import DagRun
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session(scoped=False) as session:
        for table in (Job, Trigger, DagRun):
            session.execute(delete(table))
        yield session
        session.rollback()


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def component(session: Any, kind: str, *, silent: float = 0.0) -> int:
    from airflow.jobs.job import Job

    job = Job()
    job.job_type, job.state, job.latest_heartbeat = kind, "running", ago(silent)
    session.add(job)
    session.flush()
    return int(job.id)


def watcher(session: Any, triggerer: int | None, *, shard: int = 0, shards: int = 1) -> None:
    from airflow.models.trigger import Trigger
    from memwal_airflow.triggers.due import TablesDueTrigger

    row = Trigger(*TablesDueTrigger(shard=shard, shards=shards).serialize())
    row.triggerer_id = triggerer
    session.add(row)
    session.flush()


def dag_run(session: Any, name: str, state: str, *, dag_id: str = DAG, since: float = 300) -> Any:
    from airflow.models.dagrun import DagRun
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    run = DagRun(
        dag_id=dag_id,
        run_id=name,
        run_type=DagRunType.MANUAL,
        run_after=ago(since),
        triggered_by=DagRunTriggeredByType.TEST,
    )
    run._state, run.queued_at = state, ago(since)
    run.end_date = ago(1) if state in ("success", "failed") else None
    session.add(run)
    session.flush()
    return run


def task(session: Any, run: Any, task_id: str, **values: Any) -> None:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import insert

    columns = {
        "task_id": task_id,
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "map_index": -1,
        "pool": "default_pool",
        "pool_slots": 1,
        "try_number": 1,
        "max_tries": 1,
        **values,
    }
    session.execute(insert(TaskInstance).values(columns))


@pytest.fixture
def well(session: Any) -> Any:
    """A session of an Airflow in which all is well."""
    ids = {kind: component(session, kind) for kind in COMPONENTS}
    watcher(session, ids["TriggererJob"])
    return session


@pytest.fixture
def found(catalog: Catalog) -> Any:
    """Give a session; get state and table of each problem, as one reporter sees them in turn.

    ``later`` is in days.
    """
    from memwal_airflow.web.report import AirflowReporter

    reporter = AirflowReporter()

    def read(session: Any, *, later: float = 0.0) -> list[tuple[str, str | None]]:
        now = datetime.now(UTC) + timedelta(days=later)
        problems = reporter.problems(session, catalog, now=now)
        return sorted((one.state, one.table or "") for one in problems)

    return read


def test_nothing_is_wrong(well: Any, found: Any) -> None:
    assert found(well) == []
    dag_run(well, "r1", "success")
    dag_run(well, "r2", "running")
    # Behind a run that is active.
    dag_run(well, "r3", "queued")
    dag_run(well, "another", "failed", dag_id="of_a_user")
    assert found(well) == []


def test_components_without_a_heartbeat(session: Any, found: Any) -> None:
    component(session, "SchedulerJob", silent=60)
    watcher(session, component(session, "TriggererJob", silent=60))
    beats = ("no_heartbeat", "")
    # The DAG processor was never started, and the trigger runs in no living triggerer.
    assert found(session) == [beats, beats, beats, ("unwatched", "")]


def test_a_shard_that_has_no_seat(
    session: Any, found: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memwal_airflow.triggers.due_tables import shard_of

    monkeypatch.setenv("AIRFLOW__MEMWAL__DUE_WATCHERS", "2")
    ids = {kind: component(session, kind) for kind in COMPONENTS}
    watcher(session, ids["TriggererJob"], shard=0, shards=2)
    watcher(session, None, shard=1, shards=2)
    names = [f"t{number}" for number in range(6)]
    for name in names:
        catalog.register(name, uri=f"/lake/{name}")
    catalog.register("hourly", uri="/lake/hourly", policy=Policy(schedule=3600.0))
    unseen = [name for name in names if shard_of(name, 2) == 1]
    assert found(session) == [("unwatched", name) for name in unseen]
    assert unseen


def test_a_failed_run_from_before_the_last_week_is_not_told(well: Any, found: Any) -> None:
    dag_run(well, "r1", "failed", since=8 * 86_400)
    for _ in range(2):
        assert found(well) == []
    dag_run(well, "r2", "failed", dag_id="memwal__ships")
    for _ in range(2):
        assert found(well) == [("run_failed", "ships")]


def test_a_failed_run_of_long_ago_is_not_told_after_a_quiet_week(well: Any, found: Any) -> None:
    dag_run(well, "r1", "failed", since=6 * 86_400)
    dag_run(well, "r2", "failed", dag_id="memwal__ships", since=60 * 86_400)
    dag_run(well, "r3", "success", dag_id="memwal__planes", since=6 * 86_400)
    for later in (0, 2, 2, 2):
        runs = [one for one in found(well, later=later) if one[0] == "run_failed"]
        assert runs == [("run_failed", "flights")]


def test_a_failed_run_until_one_succeeds(well: Any, found: Any) -> None:
    failed = dag_run(well, "r1", "failed")
    told = [("run_failed", "flights")]
    assert found(well) == told
    later = dag_run(well, "r2", "running")
    assert found(well) == told
    later._state = "success"
    well.flush()
    assert found(well) == []
    again = dag_run(well, "r3", "failed")
    assert found(well) == told
    # A person clears it: the same run is active anew, and then succeeds.
    again._state = "running"
    well.flush()
    assert found(well) == []
    again._state = "failed"
    well.flush()
    assert found(well) == told
    well.delete(again)
    well.flush()
    assert found(well) == []
    assert failed.id < again.id


def test_runs_and_tasks_that_nothing_takes(well: Any, found: Any) -> None:
    dag_run(well, "r1", "queued", since=60)
    assert found(well) == []
    dag_run(well, "r1", "queued", dag_id="memwal__ships", since=120)
    assert found(well) == [("run_queued", "ships")]
    for name, values in {
        "no-executor": {"state": "queued", "queued_dttm": ago(120)},
        "no-slot": {"state": "scheduled", "scheduled_dttm": ago(120)},
        "no-triggerer": {"state": "deferred", "trigger_timeout": ago(70)},
        "soon": {"state": "queued", "queued_dttm": ago(60)},
        "waits": {"state": "deferred", "trigger_timeout": ago(-60)},
        "done": {"state": "success", "queued_dttm": ago(500)},
    }.items():
        task(well, dag_run(well, "r1", "running", dag_id=f"memwal__{name}"), "merge", **values)
    assert found(well) == [
        ("run_queued", "no-executor"),
        ("run_queued", "no-slot"),
        ("run_queued", "ships"),
        ("sensor_timeout", "no-triggerer"),
    ]


def test_runs_for_all_tables(well: Any, found: Any) -> None:
    dag_run(well, "r1", "failed", dag_id="memwal_due")
    dag_run(well, "r1", "failed", dag_id="memwal_drain")
    dag_run(well, "r1", "failed", dag_id="memwal_fleet")
    assert found(well) == [("run_failed", "")]
    running = dag_run(well, "r2", "running", dag_id="memwal_drain")
    task(well, running, "drain", state="queued", queued_dttm=ago(130))
    assert found(well) == [("run_failed", ""), ("run_queued", "")]


def test_airflow_starts_the_reports_with_its_api_server(
    session: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import lifespan
    from fastapi import FastAPI
    from memwal_airflow.web import access
    from memwal_airflow.web.app import create_app
    from starlette.testclient import TestClient

    access.get_catalog.cache_clear()
    server = FastAPI(lifespan=lifespan)
    server.mount("/memwal", create_app())
    with TestClient(server):
        until(lambda: catalog.reports.airflow() is not None)
    access.get_catalog().close()
    access.get_catalog.cache_clear()


def test_as_many_statements_for_many_tables_as_for_one(well: Any, found: Any) -> None:
    from sqlalchemy import event

    made: list[str] = []
    engine = well.get_bind()
    event.listen(engine, "before_cursor_execute", lambda *told: made.append(told[2]))
    counts = []
    for number in (1, 20):
        for n in range(number):
            dag_run(well, f"r{number}", "failed", dag_id=f"memwal__t{n}")
        made.clear()
        found(well)
        counts.append(len([one for one in made if one.startswith("SELECT")]))
    assert counts[0] == counts[1] < 10


def test_a_report_reaches_the_catalog_and_an_error_is_one(
    well: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memwal_airflow.web import report

    def down() -> Any:
        raise OperationalError("SELECT 1", {}, Exception("no route"))

    monkeypatch.setattr(report, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(report, "create_session", down)

    async def run() -> None:
        async with report.reporting(lambda: catalog), asyncio.timeout(60):
            while catalog.reports.airflow() is None:
                await asyncio.sleep(0.01)

    asyncio.run(run())
    told = catalog.reports.airflow()
    assert told is not None
    assert [(one.state, one.table) for one in told.problems] == [("no_heartbeat", None)]
