"""Runs start by themselves when a job is due, whatever Airflow loses on the way."""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow_demo.standalone import AirflowStandalone

from memwal.catalog import Policy, RunState

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "memwal__flights"
POLICY = Policy(poll_seconds=1, merge_at_generations=2, merge_at_age_seconds=1e9)
# Less than this is taken for dead where it is only slow.
SOON = {
    "scheduler": {"scheduler_health_check_threshold": "20", "orphaned_tasks_check_interval": "10"},
    "triggerer": {"triggerer_health_check_threshold": "20"},
    # Without Spark: how a run starts is what these tests are about.
    "memwal": {"local_below_bytes": str(1 << 30), "fleet_schedule": "none"},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Place:
    """An Airflow, and the tables that it maintains."""

    def __init__(self, airflow: AirflowStandalone, registered: Any) -> None:
        self.airflow = airflow
        self.table = registered.table
        self.catalog = registered.catalog
        self.write = registered.write

    @property
    def database(self) -> Path:
        return self.airflow.home / "airflow.db"

    def count(self, query: str) -> int:
        """Return a number from Airflow's database."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return int(connection.execute(query).fetchone()[0])

    def rows(self) -> int:
        return int(self.table.base().dataset.count_rows())

    def backlog(self, start: int) -> None:
        """Write a backlog of 100 keys that is due."""
        self.write(*range(start, start + 50))
        self.write(*range(start + 50, start + 100))

    def wait(self, holds: Callable[[], bool], what: str, *, timeout: float = 240) -> None:
        self.airflow.wait(holds, timeout=timeout, what=what)

    def wait_merged(self, rows: int) -> None:
        self.wait(lambda: self.rows() == rows, f"merge {rows} rows")

    def wait_idle(self) -> None:
        """Wait until no run is active, and nothing is due."""

        def idle() -> bool:
            active = "SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running')"
            done = {run.job for run in self.catalog.runs() if run.state is RunState.SUCCEEDED}
            return done >= {"snapshot", "gc"} and self.count(active) == 0

        self.wait(idle, "become idle")


@pytest.fixture
def place(tmp_path: Path, registered: Any) -> Iterator[Place]:
    registered.catalog.update("flights", policy=POLICY)
    dags = tmp_path / "dags"
    dags.mkdir()
    for name in ("memwal_tables.py", "memwal_fleet.py"):
        (dags / name).symlink_to(REPOSITORY / "dags" / name)
    with AirflowStandalone(
        tmp_path / "airflow", dags_folder=dags, env=registered.env, settings=SOON
    ) as airflow:
        airflow.wait_dag(DAG_ID)
        yield Place(airflow, registered)


def test_a_backlog_is_merged_and_an_idle_table_costs_nothing(place: Place) -> None:
    place.backlog(0)
    place.wait_merged(100)
    place.wait_idle()
    runs = place.airflow.client().get(f"/api/v2/dags/{DAG_ID}/dagRuns").json()["dag_runs"]
    assert {run["run_type"] for run in runs} == {"asset_triggered"}
    assert {run["state"] for run in runs} == {"success"}
    ends: dict[str, set[str]] = {}
    for run in runs:
        for instance in place.airflow.task_instances(DAG_ID, run["dag_run_id"]):
            ends.setdefault(instance["task_id"], set()).add(instance["state"])
    assert "success" in ends["merge"]
    # No run was without work.
    assert ends["gate"] == {"success"}
    # The gate waits without a worker, and what is not due has none either.
    started = "SELECT count(*) FROM task_instance WHERE task_id = '{}' AND pid IS NOT NULL"
    assert place.count(started.format("gate")) == 0
    assert place.count(started.format("done")) == 0
    merged = [run for run in place.catalog.runs(job="merge") if run.state is RunState.SUCCEEDED]
    assert place.count(started.format("merge")) == len(merged)

    # On a busy machine what was due was announced once more before it was served.
    seen: list[dict[str, int]] = []

    def stays_idle() -> bool:
        seen.append({name: place.count(f"SELECT count(*) FROM {name}") for name in ROWS})
        return seen[-1] == seen[-120:][0] and len(seen) > 120

    place.wait(stays_idle, "stay idle for half a minute")


ROWS = ("dag_run", "task_instance", "asset_event", "xcom")


def _after(polls: int) -> Callable[[], bool]:
    """Return a function that is true after so many calls, a quarter of a second apart."""
    left = iter(range(4 * polls))
    return lambda: next(left, None) is None


def test_what_airflow_loses_is_made_good(place: Place) -> None:
    """Paused DAGs, a dead triggerer, a dead scheduler, two triggerers."""
    airflow = place.airflow
    place.backlog(0)
    place.wait_merged(100)

    for number, dag_id in enumerate((DAG_ID, "memwal_due"), 1):
        airflow.pause(dag_id)
        place.backlog(100 * number)
        place.wait(_after(10), "let events be lost")
        airflow.pause(dag_id, paused=False)
        place.wait_merged(100 * number + 100)

    airflow.kill("triggerer")
    place.backlog(300)
    place.wait(_after(5), "miss it")
    airflow.restart("triggerer")
    place.wait_merged(400)

    airflow.kill("scheduler")
    place.backlog(400)
    place.wait(_after(5), "miss it")
    airflow.restart("scheduler")
    place.wait_merged(500)

    # Both poll, and each of what they announce twice is merged once.
    with second_triggerer(airflow):
        place.wait(_after(15), "start the second")
        place.backlog(500)
        place.wait_merged(600)
    place.wait_idle()
    merged = [
        run.result["metrics"]["generations"]
        for run in place.catalog.runs(job="merge", limit=1_000)
        if run.state is RunState.SUCCEEDED and run.result is not None
    ]
    assert sum(merged) == 24


def test_a_table_that_cannot_be_read_stops_no_other(place: Place, tmp_path: Path) -> None:
    gone = tmp_path / "gone.lance"
    shutil.copytree(place.table.uri, gone)
    place.catalog.register("gone", uri=str(gone), policy=POLICY)
    place.airflow.wait_dag("memwal__gone")
    shutil.rmtree(gone)
    place.wait(
        lambda: (
            [(f.table, f.job) for f in place.catalog.backoffs.failed_jobs()] == [("gone", "status")]
        ),
        "notice the table that is gone",
    )
    place.backlog(0)
    place.wait_merged(100)


@contextmanager
def second_triggerer(airflow: AirflowStandalone) -> Iterator[None]:
    """Run another triggerer of the same Airflow in the block."""
    process = airflow._spawn("triggerer-2", ["triggerer", "--skip-serve-logs"])
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(240)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
