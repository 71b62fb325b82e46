"""Drivers in a cluster, in a real Airflow: found by the retry of a task, and ended with one."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow_demo.standalone import AirflowStandalone
from support.kubernetes.kubernetes_server import Pod, kubeconfig, running_kubernetes

import memwal
from memwal.catalog import RunState
from memwal.spark.result_store import write_result

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_FILE = """
from datetime import timedelta
from airflow.sdk import DAG
from memwal_airflow.operators.maintenance import MemWalMergeOperator

with DAG("far", schedule=None, is_paused_upon_creation=False):
    MemWalMergeOperator(
        task_id="merge",
        table="flights",
        force=True,
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def given(pod: Pod, flag: str) -> str:
    return pod.arguments[pod.arguments.index(flag) + 1]


def test_a_driver_outlives_its_task_and_ends_with_it(tmp_path: Path, registered: Any) -> None:
    go = threading.Event()

    def drive(pod: Pod) -> None:
        pod.run()
        pod.write("begun")
        go.wait(600)
        # The second one is ended meanwhile.
        if pod.exists:
            result = memwal.open(given(pod, "--table")).merge()
            write_result(given(pod, "--result"), json.dumps(result.to_dict()))
            pod.end()

    dags, binaries = tmp_path / "dags", tmp_path / "bin"
    dags.mkdir()
    binaries.mkdir()
    (dags / "far.py").write_text(DAG_FILE)
    submit = REPOSITORY / "tests" / "support" / "kubernetes" / "fake_cluster_submit.py"
    script = binaries / "spark3-submit"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I {submit} "$@"\n')
    script.chmod(0o755)
    registered.write(*range(100))
    with running_kubernetes() as kubernetes:
        kubernetes.on_pod = drive
        connection = {
            "conn_type": "spark",
            "host": f"k8s://{kubernetes.address}",
            "extra": {
                "spark-binary": "spark3-submit",
                "deploy-mode": "cluster",
                "namespace": "spark",
            },
        }
        settings = {
            "spark_conn_id": "far",
            "results_uri": str(tmp_path / "results"),
            "local_below_bytes": "0",
        }
        with AirflowStandalone(
            tmp_path / "airflow",
            dags_folder=dags,
            plugins_folder=REPOSITORY / "plugins",
            env={
                **registered.env,
                "AIRFLOW_CONN_FAR": json.dumps(connection),
                "KUBECONFIG": str(kubeconfig(tmp_path)),
                "PATH": os.pathsep.join(
                    [str(binaries), str(Path(sys.executable).parent), os.environ["PATH"]]
                ),
            },
            settings={"memwal": settings},
        ) as airflow:
            airflow.wait_dag("far")
            run_id = airflow.trigger("far")

            def log_has(text: str) -> bool:
                return text in airflow.task_log("far", run_id, "merge")

            airflow.wait(lambda: log_has("begun"), timeout=240, what="follow the driver")
            (lease,) = registered.catalog.leases.list()
            psutil.Process(int(lease.holder.rpartition(":")[2])).kill()
            airflow.wait(lambda: log_has("waits for it"), timeout=240, what="find the driver")
            go.set()
            state = airflow.wait_run("far", run_id, timeout=300)
            assert state == "success", airflow.task_log("far", run_id, "merge")
            assert kubernetes.asked("POST", "/pods") == 1
            assert airflow.xcom("far", run_id, "merge")["metrics"]["generations"] == 2
            assert (kubernetes.objects, list((tmp_path / "results").iterdir())) == ({}, [])

            # Somebody fails the task by hand.
            go.clear()
            registered.write(*range(50, 150))
            run_id = airflow.trigger("far")
            airflow.wait(lambda: log_has("begun"), timeout=240, what="follow the driver")
            path = f"/api/v2/dags/far/dagRuns/{run_id}/taskInstances/merge"
            answer = airflow.client().patch(path, json={"new_state": "failed"})
            assert answer.status_code == 200, answer.text
            airflow.wait(lambda: not kubernetes.pods, timeout=120, what="end the driver")
            go.set()
    states = [run.state for run in registered.catalog.runs(job="merge")]
    assert states == [RunState.FAILED, RunState.SUCCEEDED, RunState.ABANDONED]
    assert registered.table.status().backlog_generations == 2
