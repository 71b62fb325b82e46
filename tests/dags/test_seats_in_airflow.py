"""Triggerers of few seats serve more tables than they have seats, and users' own tasks."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from airflow_demo.standalone import AirflowStandalone

import memwal
from memwal.catalog import Policy, RunState

REPOSITORY = Path(__file__).resolve().parents[2]
TABLES = 60
SEATS = 8
SETTINGS = {
    "triggerer": {"capacity": str(SEATS), "triggerer_health_check_threshold": "20"},
    "memwal": {
        "due_watchers": "2",
        # So that runs wait for seats.
        "table_dags": "each",
        "fleet_schedule": "none",
        # Without Spark: how a run starts is what this test is about.
        "local_below_bytes": str(1 << 30),
    },
}
POLICY = Policy(
    poll_seconds=5,
    merge_at_generations=1,
    merge_at_age_seconds=1e9,
    index_at_generations=1_000,
    index_at_age_seconds=1e9,
    snapshot_at_age_seconds=1e9,
    gc_interval_seconds=1e9,
)
OF_A_USER = """
from datetime import timedelta
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG
with DAG("of_a_user", schedule=None, is_paused_upon_creation=False):
    TimeDeltaSensor(task_id="waits", delta=timedelta(seconds=5), deferrable=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_more_tables_than_seats_and_a_triggerer_that_dies(tmp_path: Path, registered: Any) -> None:
    """The other one takes over its share of the tables."""
    registered.write(*range(100))
    registered.table.merge()
    registered.table.build_indexes()
    registered.table.build_snapshot()
    collected = registered.table.collect_garbage()
    registered.write(*range(50, 150))
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "of_a_user.py").write_text(OF_A_USER)
    for name in ("memwal_tables.py", "memwal_fleet.py"):
        (dags / name).symlink_to(REPOSITORY / "dags" / name)
    tables = {}
    for number in range(TABLES):
        name = f"t{number:02}"
        uri = tmp_path / f"{name}.lance"
        shutil.copytree(registered.table.uri, uri)
        tables[name] = memwal.open(str(uri))
        registered.catalog.register(name, uri=str(uri), policy=POLICY)
        with registered.catalog.record_run(name, "gc") as run:
            run.finish(collected)
    with AirflowStandalone(
        tmp_path / "airflow", dags_folder=dags, env=registered.env, settings=SETTINGS
    ) as airflow:
        airflow.restart("triggerer-2")
        airflow.wait_dag("of_a_user")
        run_id = airflow.trigger("of_a_user")

        def merged() -> set[str]:
            runs = registered.catalog.runs(job="merge", state=RunState.SUCCEEDED, limit=1_000)
            return {run.table for run in runs}

        airflow.wait(lambda: len(merged()) >= TABLES // 4, timeout=1_000, what="merge some tables")
        airflow.kill("triggerer-2")
        airflow.wait(lambda: merged() == set(tables), timeout=1_500, what="merge every table")
        assert airflow.wait_run("of_a_user", run_id) == "success"
        database = f"file:{airflow.home / 'airflow.db'}?mode=ro"
        with closing(sqlite3.connect(database, uri=True)) as connection:
            (watchers,) = connection.execute("SELECT count(*) FROM asset_watcher").fetchone()
    assert watchers == 2
    for table in tables.values():
        assert table.base().dataset.count_rows() == 150
    failed = registered.catalog.runs(state=RunState.FAILED)
    assert [(run.table, run.job, run.error) for run in failed] == []
    assert registered.catalog.backoffs.failed_jobs() == []
