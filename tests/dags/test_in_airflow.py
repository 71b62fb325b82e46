"""The whole of it: a scheduler, a triggerer, the REST API, Spark, and a real table."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from airflow_demo.standalone import AirflowStandalone

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "memwal__flights"
CONSUMER = """
from airflow.sdk import DAG, task
from memwal_airflow.assets import merged_asset

with DAG("consumer", schedule=[merged_asset("flights")], is_paused_upon_creation=False):

    @task
    def take(triggering_asset_events=None):
        return [
            dict(event.extra) for events in triggering_asset_events.values() for event in events
        ]

    take()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def embedded(tmp_path: Path, registered: Any, **settings: Any) -> AirflowStandalone:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "consumer.py").write_text(CONSUMER)
    (dags / "memwal_tables.py").symlink_to(REPOSITORY / "dags" / "memwal_tables.py")
    return AirflowStandalone(
        tmp_path / "airflow",
        dags_folder=dags,
        env=registered.env,
        settings={**settings, "memwal": {"local_below_bytes": "0", **settings.get("memwal", {})}},
    )


@pytest.fixture
def airflow(tmp_path: Path, registered: Any) -> Iterator[AirflowStandalone]:
    with embedded(tmp_path, registered) as airflow:
        yield airflow


def states(airflow: AirflowStandalone, run_id: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for instance in airflow.task_instances(DAG_ID, run_id):
        found.setdefault(instance["task_id"], set()).add(instance["state"])
    return found


def finish(airflow: AirflowStandalone, run_id: str) -> dict[str, set[str]]:
    state = airflow.wait_run(DAG_ID, run_id, timeout=400)
    found = states(airflow, run_id)
    failed = [task for task, ends in found.items() if ends & {"failed", "up_for_retry"}]
    logs = "\n".join(airflow.task_log(DAG_ID, run_id, task) for task in failed)
    assert state == "success", logs
    return found


def test_a_table_is_maintained(airflow: AirflowStandalone, registered: Any) -> None:
    table, catalog = registered.table, registered.catalog
    airflow.wait_dag("consumer")

    # A backlog is there, and one run merges, indexes, publishes and collects.
    for start in (0, 100, 200):
        registered.write(*range(start, start + 100))
    first = airflow.trigger(DAG_ID)
    assert finish(airflow, first) == {
        "gate": {"success"},
        "merge": {"success"},
        "recover": {"skipped"},
        "index": {"success"},
        "compact": {"skipped"},
        "snapshot": {"success"},
        "collect": {"success"},
        "done": {"success"},
    }
    assert table.base().dataset.count_rows() == 300
    status = table.status()
    assert status.backlog_generations == 0
    assert [index.generations for index in status.indexes] == [0]
    assert status.snapshot_age_seconds is not None

    # What was done is recorded, handed to other tasks and announced to other DAGs.
    runs = {run.job: run for run in catalog.runs(table="flights")}
    assert set(runs) == {"merge", "index", "snapshot", "gc"}
    assert {run.state for run in runs.values()} == {"succeeded"}
    result = airflow.xcom(DAG_ID, first, "merge")
    assert runs["merge"].result == result
    assert result["metrics"]["rows_upserted"] == 300
    (consumed,) = _runs_of(airflow, "consumer")
    assert airflow.wait_run("consumer", consumed) == "success"
    assert airflow.xcom("consumer", consumed, "take") == [
        {"version": result["version"], "rows": 300, "generations": 6}
    ]

    # A run may be for one region.
    for start in (300, 400):
        registered.write(*range(start, start + 100))
    region = str(table.region_ids()[0])
    second = airflow.trigger(DAG_ID, {"jobs": ["merge"], "regions": [region]})
    assert finish(airflow, second)["merge"] == {"success"}
    waiting = {backlog.region_id for backlog in table.status().regions if backlog.backlog_rows}
    assert waiting == {str(other) for other in table.region_ids()[1:]}
    third = airflow.trigger(DAG_ID, {"jobs": ["merge"]})
    assert finish(airflow, third)["gate"] == {"success"}
    assert table.base().dataset.count_rows() == 500

    # A dry run of an idle table is green, changes nothing and announces nothing.
    airflow.wait(
        lambda: len(_runs_of(airflow, "consumer")) == 3, timeout=120, what="announce each merge"
    )
    last = airflow.trigger(DAG_ID, {"dry_run": True})
    ends = finish(airflow, last)
    assert (ends["gate"], ends["merge"]) == ({"success"}, {"skipped"})
    assert len(_runs_of(airflow, "consumer")) == 3


def test_a_task_that_is_marked_failed_takes_its_job_with_it(
    tmp_path: Path, registered: Any
) -> None:
    apps = tmp_path / "apps"
    apps.mkdir()
    (apps / "merge.py").write_text("import time; time.sleep(3600)")
    registered.write(*range(100))
    with embedded(tmp_path, registered, memwal={"spark_apps_folder": str(apps)}) as airflow:
        run_id = airflow.trigger(DAG_ID, {"force": True})
        airflow.wait(lambda: _job(airflow), timeout=180, what="start the job")
        family = _job(airflow)
        path = f"/api/v2/dags/{DAG_ID}/dagRuns/{quote(run_id)}/taskInstances/merge"
        answer = airflow.client().patch(path, json={"new_state": "failed"})
        assert answer.status_code == 200, answer.text
        gone, left = psutil.wait_procs(family, timeout=60)
        assert (bool(gone), left) == (True, [])
        assert airflow.wait_run(DAG_ID, run_id) == "failed"
    (run,) = registered.catalog.runs(job="merge")
    assert run.state == "failed"


def test_a_run_that_is_late_is_written_down_until_the_next(tmp_path: Path, registered: Any) -> None:
    """The merge takes longer than the deadline."""
    catalog = registered.catalog
    policy = replace(catalog.get("flights").policy, late_seconds=3, retries=0)
    catalog.update("flights", policy=policy)
    registered.write(*range(100))
    apps = tmp_path / "apps"
    apps.mkdir()
    (apps / "merge.py").write_text("import sys, time; time.sleep(25); sys.exit('too slow')")
    with embedded(tmp_path, registered, memwal={"spark_apps_folder": str(apps)}) as airflow:
        run_id = airflow.trigger(DAG_ID, {"force": True, "jobs": ["merge"]})
        airflow.wait(lambda: catalog.backoffs.failed_jobs(), timeout=240, what="miss the deadline")
        (failed,) = catalog.backoffs.failed_jobs()
        assert (failed.table, failed.job) == ("flights", "late")
        assert run_id in failed.reason
        assert airflow.wait_run(DAG_ID, run_id, timeout=400) == "failed"
        # Nothing is due: the folder has no other application.
        following = airflow.trigger(DAG_ID, {"jobs": ["compact"]})
        assert airflow.wait_run(DAG_ID, following, timeout=400) == "success"
        # The next run may be late as well.
        assert not [
            failed
            for failed in catalog.backoffs.failed_jobs()
            if run_id in failed.reason and failed.job == "late"
        ]


def test_it_listens_to_this_machine_and_to_whom_it_knows(airflow: AirflowStandalone) -> None:
    listening = {
        connection.laddr.ip
        for pid in airflow.pids.values()
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    airflow.wait_dag(DAG_ID)
    path = f"/api/v2/dags/{DAG_ID}"
    assert httpx.get(airflow.url + path).status_code == 401
    assert airflow.client("viewer").get(path).status_code == 200
    assert airflow.client("viewer").patch(path, json={"is_paused": True}).status_code == 403
    settings = airflow.home / "airflow.cfg"
    assert settings.stat().st_mode & 0o077 == 0
    family = [psutil.Process(pid) for pid in airflow.pids.values()]
    family += [child for process in family for child in process.children(recursive=True)]
    airflow.stop()
    # What was ended is gone when somebody has fetched its exit code.
    _, running = psutil.wait_procs(family, timeout=30)
    assert running == []


def _job(airflow: AirflowStandalone) -> list[psutil.Process]:
    """The JVM of a running job and its Python driver; empty before there are both."""
    found = []
    for process in psutil.Process(airflow.pids["scheduler"]).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if "apps/merge.py" in " ".join(command):
                found.append((process, command))
    kinds = {Path(command[0]).name.rstrip("0123456789.") for _, command in found}
    running = {"java", "python"} <= kinds
    return [process for process, _ in found] if running else []


def _runs_of(airflow: AirflowStandalone, dag_id: str) -> list[str]:
    answer = airflow.client().get(f"/api/v2/dags/{dag_id}/dagRuns").json()
    return [run["dag_run_id"] for run in answer["dag_runs"]]
