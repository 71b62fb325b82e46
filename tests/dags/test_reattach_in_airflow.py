"""A task whose process is killed, in a real Airflow and with real Spark: its retry goes on."""

import contextlib
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow_demo.standalone import AirflowStandalone

from memwal.catalog import RunState

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_FILE = """
from datetime import timedelta
from airflow.sdk import DAG
from memwal_airflow.operators.maintenance import MemWalMergeOperator

with DAG("attach", schedule=None, is_paused_upon_creation=False):
    MemWalMergeOperator(
        task_id="merge",
        table="flights",
        force=True,
        retries=1,
        retry_delay=timedelta(seconds=1),
        spark_options={"conf": {"spark.ui.enabled": "true", "spark.ui.port": "0"}},
    )
"""
# Waits before it begins, so that the test has the time to kill its task.
APPLICATION = """
import runpy, time
from pathlib import Path

while not Path({go!r}).exists():
    time.sleep(0.1)
runpy.run_path({app!r}, run_name="__main__")
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]


def test_the_retry_of_a_killed_task_waits_for_its_job(tmp_path: Path, registered: Any) -> None:
    go = tmp_path / "go"
    apps, dags = tmp_path / "apps", tmp_path / "dags"
    apps.mkdir()
    dags.mkdir()
    app = REPOSITORY / "spark_apps" / "merge.py"
    (apps / "merge.py").write_text(APPLICATION.format(go=str(go), app=str(app)))
    (dags / "attach.py").write_text(DAG_FILE)
    registered.write(*range(100))
    with AirflowStandalone(
        tmp_path / "airflow",
        dags_folder=dags,
        env=registered.env,
        settings={
            "memwal": {
                "spark_apps_folder": str(apps),
                "spark_master": "local[1]",
                "local_below_bytes": "0",
            }
        },
    ) as airflow:
        airflow.wait_dag("attach")
        run_id = airflow.trigger("attach")
        airflow.wait(lambda: _jvms(apps), timeout=180, what="start the job")
        (jvm,) = _jvms(apps)
        jvm.parent().kill()
        airflow.wait(
            lambda: _state(airflow, run_id) == (2, "running"), timeout=300, what="try again"
        )
        airflow.wait(
            lambda: "waits for it" in airflow.task_log("attach", run_id, "merge"),
            timeout=300,
            what="find the job",
        )
        assert _jvms(apps) == [jvm]
        go.touch()
        state = airflow.wait_run("attach", run_id, timeout=300)
        log = airflow.task_log("attach", run_id, "merge")
        assert state == "success", log
        assert airflow.xcom("attach", run_id, "merge")["metrics"]["generations"] == 2
        path = f"/api/v2/dags/attach/dagRuns/{run_id}/taskInstances/merge/links"
        links = airflow.client().get(path).json()["extra_links"]
        assert links == {"MemWAL table": "/memwal/#/tables/flights", "Spark UI": None}
    assert re.search(r"Spark application local-\d+: http://127\.0\.0\.1:\d+", log)
    latest, first = registered.catalog.runs(job="merge")
    assert (latest.state, first.state) == (RunState.SUCCEEDED, RunState.ABANDONED)
    assert registered.table.status().backlog_generations == 0
    assert list((tmp_path / "airflow" / "memwal" / "jobs").iterdir()) == []


def _jvms(apps: Path) -> list[psutil.Process]:
    """The JVMs that run an application of the test, whoever their parents are."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = " ".join(process.cmdline())
            # Before it, another JVM makes its command line.
            if "bin/java" in command and str(apps) in command and "launcher.Main" not in command:
                found.append(process)
    return found


def _state(airflow: AirflowStandalone, run_id: str) -> tuple[int, str]:
    (instance,) = airflow.task_instances("attach", run_id)
    return instance["try_number"], instance["state"]
