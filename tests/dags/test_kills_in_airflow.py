"""The scheduler and the triggerer are killed in the middle of a run, and started again."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow_demo.standalone import AirflowStandalone
from support.oracles import native

from memwal.catalog import RunState

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "memwal__flights"
# Says that it began, and waits, so that the test has the time to kill what it wants.
APPLICATION = """
import os, runpy, time
from pathlib import Path

Path({began!r}, str(os.getpid())).touch()
while not Path({go!r}).exists():
    time.sleep(0.1)
runpy.run_path({app!r}, run_name="__main__")
"""
# Else the tasks of a scheduler that died are looked for every five minutes only. Less than this is
# taken for dead where it is only slow.
SOON = {
    "scheduler": {"scheduler_health_check_threshold": "20", "orphaned_tasks_check_interval": "10"},
    "triggerer": {"triggerer_health_check_threshold": "20"},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_run_outlives_its_scheduler_and_its_triggerer(tmp_path: Path, registered: Any) -> None:
    table, catalog = registered.table, registered.catalog
    go, began = tmp_path / "go", tmp_path / "began"
    apps, dags = tmp_path / "apps", tmp_path / "dags"
    for folder in (began, apps, dags):
        folder.mkdir()
    for app in (REPOSITORY / "spark_apps").glob("*.py"):
        (apps / app.name).symlink_to(app)
    merge = apps / "merge.py"
    text = APPLICATION.format(began=str(began), go=str(go), app=str(merge.resolve()))
    merge.unlink()
    merge.write_text(text)
    (dags / "memwal_tables.py").symlink_to(REPOSITORY / "dags" / "memwal_tables.py")
    with AirflowStandalone(
        tmp_path / "airflow",
        dags_folder=dags,
        env=registered.env,
        settings={
            "memwal": {
                "spark_apps_folder": str(apps),
                "spark_master": "local[1]",
                "local_below_bytes": "0",
            },
            **SOON,
        },
    ) as airflow:
        # Both die when the run has begun.
        registered.write(*range(100))
        registered.write(*range(50, 150))
        run_id = airflow.trigger(DAG_ID)
        airflow.wait(
            lambda: states(airflow, run_id, "merge") not in (set(), {None}),
            timeout=180,
            what="begin",
        )
        airflow.kill("triggerer")
        airflow.kill("scheduler")
        airflow.restart("scheduler")
        airflow.restart("triggerer")

        # And the scheduler once more, while the merge runs.
        airflow.wait(lambda: any(began.iterdir()), timeout=240, what="start the merge")
        first = {int(path.name) for path in began.iterdir()}
        airflow.kill("scheduler")
        airflow.restart("scheduler")
        # Airflow ends the first try once it has started a second. If the first could go on until
        # then, it might end before it or after its commit, and the second would merge or be
        # skipped by chance.
        airflow.wait(lambda: tries(airflow, run_id, "merge") == {2}, timeout=240, what="try again")
        airflow.wait(
            lambda: not first & running(apps).keys(), timeout=240, what="end the first try"
        )
        go.touch()
        state = airflow.wait_run(DAG_ID, run_id, timeout=500)
        log = airflow.task_log(DAG_ID, run_id, "merge")
        assert state == "success", log
        assert states(airflow, run_id, "merge") == {"success"}
        assert running(apps) == {}

    # Nothing is lost, and nothing was done twice.
    assert table.status().backlog_generations == 0
    assert [row["id"] for row in native.everything(table)] == list(range(150))
    done = Counter(run.job for run in catalog.runs() if run.state is RunState.SUCCEEDED)
    assert done == {"merge": 1, "index": 1, "snapshot": 1, "gc": 1}
    assert RunState.RUNNING not in {run.state for run in catalog.runs()}
    (merged,) = [run for run in catalog.runs(job="merge") if run.state is RunState.SUCCEEDED]
    assert merged.result is not None
    assert merged.result["metrics"]["generations"] == 4


def states(airflow: AirflowStandalone, run_id: str, task: str) -> set[str]:
    found = airflow.task_instances(DAG_ID, run_id)
    return {instance["state"] for instance in found if instance["task_id"] == task}


def tries(airflow: AirflowStandalone, run_id: str, task: str) -> set[int]:
    found = airflow.task_instances(DAG_ID, run_id)
    return {instance["try_number"] for instance in found if instance["task_id"] == task}


def running(apps: Path) -> dict[int, list[str]]:
    """The command lines of applications that still run, by their process ids."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = process.cmdline()
            if any(part.startswith(str(apps)) for part in command):
                found[process.pid] = command
    return found
