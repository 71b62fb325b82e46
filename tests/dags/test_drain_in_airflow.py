"""Many tables without DAGs of their own: a task for each pool does what is due of all of them."""

import contextlib
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from airflow_demo.standalone import AirflowStandalone

import memwal
from memwal.catalog import Policy, RunState
from memwal.catalog.leases import job_resource

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "memwal_drain"
SETTINGS = {
    "memwal": {"table_dags": "drain", "fleet_schedule": "none", "spark_master": "local[1]"},
    "scheduler": {"scheduler_health_check_threshold": "20", "orphaned_tasks_check_interval": "10"},
}
POLICY = Policy(
    poll_seconds=2,
    merge_at_generations=1,
    merge_at_age_seconds=1e9,
    snapshot_at_age_seconds=1e9,
    gc_interval_seconds=1e9,
)
AT_SEA = replace(POLICY, pool="sea")
CONSUMER = """
from airflow.sdk import DAG, task
from memwal_airflow.assets import merged_asset

with DAG("consumer", schedule=[merged_asset("t0")], is_paused_upon_creation=False):

    @task
    def take(triggering_asset_events=None):
        return [dict(event.extra) for event in triggering_asset_events[merged_asset("t0")]]

    take()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def states(airflow: AirflowStandalone, run_id: str) -> dict[str, str]:
    return {one["task_id"]: one["state"] for one in airflow.task_instances(DAG_ID, run_id)}


def test_a_team_of_tables_in_one_task(tmp_path: Path, registered: Any) -> None:
    catalog = registered.catalog
    registered.write(*range(100))
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "consumer.py").write_text(CONSUMER)
    for name in ("memwal_tables.py", "memwal_fleet.py"):
        (dags / name).symlink_to(REPOSITORY / "dags" / name)
    tables = {}
    names = [*(f"t{number}" for number in range(8)), "torn"]
    for number, name in enumerate(names):
        uri = tmp_path / f"{name}.lance"
        shutil.copytree(registered.table.uri, uri)
        tables[name] = memwal.open(str(uri))
        catalog.register(name, uri=str(uri), policy=AT_SEA if number >= 4 else POLICY)
    for folder in (tmp_path / "torn.lance" / "_mem_wal").glob("*/*gen*"):
        shutil.rmtree(folder)
    whole = set(tables) - {"torn"}

    with AirflowStandalone(
        tmp_path / "airflow", dags_folder=dags, env=registered.env, settings=SETTINGS
    ) as airflow:
        client = airflow.client()
        client.post("/api/v2/pools", json={"name": "sea", "slots": 1}).raise_for_status()

        def merged() -> dict[str, str]:
            runs = catalog.runs(job="merge", state=RunState.SUCCEEDED, limit=1_000)
            return {run.table: run.external_id for run in runs}

        airflow.wait(lambda: tables.keys() <= merged().keys(), timeout=600, what="merge all tables")
        served = merged()
        assert all(served[f"t{n}"].startswith(f"{DAG_ID}/") for n in range(8))
        tasks = {served[name].split("/")[2] for name in whole}
        assert tasks == {"drain", "drain_sea"}
        assert len(set(served.values())) < len(whole)
        ids = {dag["dag_id"] for dag in client.get("/api/v2/dags").json()["dags"]}
        assert {name for name in ids if name.startswith("memwal_")} == {
            "memwal__flights",
            "memwal_drain",
            "memwal_fleet",
        }

        # What cannot be merged fails its run, and no other table.
        torn = served["torn"].split("/")[1]
        assert airflow.wait_run(DAG_ID, torn, timeout=300) == "failed"
        found = states(airflow, torn)
        assert (found["drain_sea"], found["failed_sea"]) == ("success", "failed")
        assert "failed" not in (found["drain"], found["failed"])
        (consumed,) = client.get("/api/v2/dags/consumer/dagRuns").json()["dag_runs"]
        assert airflow.wait_run("consumer", consumed["dag_run_id"]) == "success"
        (event,) = airflow.xcom("consumer", consumed["dag_run_id"], "take")
        assert (event["rows"], event["generations"]) == (100, 2)

        # The page links the tables to that DAG, and its button starts a run for one table.
        rows = client.get("/memwal/api/fleet").json()["tables"]
        assert {row["dag_id"] for row in rows if row["table"] != "flights"} == {DAG_ID}
        lease = catalog.leases.acquire(job_resource("t1", "merge"), ttl=timedelta(minutes=5))
        tables["t1"].upsert(pa.table({"id": pa.array(range(100, 150)), "v": ["y"] * 50}))
        headers = {"X-Requested-With": "memwal"}
        body = {"jobs": ["merge"], "force": True}
        answer = client.post("/memwal/api/tables/t1/runs", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        by_hand = answer.json()["dag_run_id"]

        # The task dies while it waits for its turn, and its retry does the job.
        airflow.wait(
            lambda: states(airflow, by_hand).get("drain") == "running", timeout=180, what="begin"
        )
        family = psutil.Process(airflow.pids["scheduler"]).children(recursive=True)
        airflow.kill("scheduler")
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        airflow.restart("scheduler")
        lease.release()
        assert airflow.wait_run(DAG_ID, by_hand, timeout=500) == "success"
        assert states(airflow, by_hand)["drain_sea"] == "skipped"

        def are_indexed() -> bool:
            return all(tables[name].status().indexes[0].generations == 0 for name in whole)

        airflow.wait(are_indexed, timeout=300, what="index every table")

    for name in whole:
        assert tables[name].base().dataset.count_rows() == (150 if name == "t1" else 100)
    assert {run.state for run in catalog.runs(limit=1_000)} <= {
        RunState.SUCCEEDED,
        RunState.ABANDONED,
    }
