import json
import os
import sys
from pathlib import Path

import pytest
from memwal_airflow.spark.settings import (
    ResultsFolder,
    application_path,
    job_environment,
)
from memwal_airflow.spark.submit import JobSubmitHook
from opentelemetry.sdk.trace import TracerProvider
from support.processes import run_python

import memwal
from memwal.errors import InvalidInputError


def test_a_job_does_not_see_what_is_airflows_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "hunter2")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "hunter2")
    monkeypatch.setenv("AIRFLOW_VAR_KEY", "hunter2")
    monkeypatch.setenv("MEMWAL_CATALOG_URL", "postgresql://u:hunter2@h/d")
    env = job_environment()
    assert "hunter2" not in str(env)
    assert (Path(env["JAVA_HOME"]) / "bin" / "java").exists()
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_options_of_java_are_the_users_if_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xlog:disable")
    assert job_environment()["SPARK_SUBMIT_OPTS"] == "-Xlog:disable"
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    assert "SPARK_SUBMIT_OPTS" in job_environment()
    assert "SPARK_SUBMIT_OPTS" not in job_environment(java=False)


def test_a_client_of_spark_connect_needs_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "JAVA_HOME" in job_environment()
    assert "JAVA_HOME" not in job_environment(java=False)


def test_a_job_finds_the_same_memwal(tmp_path: Path) -> None:
    code = "import memwal, sys; print(memwal.__file__)"
    done = run_python(code, env=job_environment(), cwd=tmp_path)
    assert done.stdout.strip() == memwal.__file__


def test_a_job_goes_on_with_the_trace_of_the_task() -> None:
    assert "TRACEPARENT" not in job_environment()
    provider = TracerProvider(shutdown_on_exit=False)
    # As Airflow does around a task.
    with provider.get_tracer("airflow").start_as_current_span("worker.merge") as task:
        found = job_environment()["TRACEPARENT"]
    assert found.split("-")[1:3] == [
        f"{task.get_span_context().trace_id:032x}",
        f"{task.get_span_context().span_id:016x}",
    ]


def test_a_master_needs_no_connection_and_means_client_mode() -> None:
    hook = JobSubmitHook(master="spark://host:7077", conn_id="none")
    assert (hook.master, hook.mode) == ("spark://host:7077", "client")


def test_a_connection_decides_when_there_is_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "spark", "host": "spark://m"}')
    assert JobSubmitHook(master=None, conn_id="cluster").master == "spark://m"


def test_cluster_mode_is_for_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_CLUSTER",
        '{"conn_type": "spark", "host": "spark://m", "extra": {"deploy-mode": "cluster"}}',
    )
    with pytest.raises(InvalidInputError, match="spark://m"):
        JobSubmitHook(master=None, conn_id="cluster")


def test_applications_are_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER", str(tmp_path))
    (tmp_path / "merge.py").touch()
    assert application_path("merge.py") == str(tmp_path / "merge.py")
    with pytest.raises(InvalidInputError, match=r"other\.py"):
        application_path("other.py")


def test_a_missing_spark_submit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    local = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark3-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_LOCAL", json.dumps(local))
    hook = JobSubmitHook(master=None, conn_id="local")
    monkeypatch.setenv("PATH", os.defpath)
    with pytest.raises(InvalidInputError, match="spark3-submit"):
        hook.command("app.py")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("s3://lake/results/", "s3://lake/results"),
        ("/mnt/a b%20", "file:///mnt/a%20b%2520"),
        ("file:///mnt/r", "file:///mnt/r"),
        ("ftp://host/r", None),
        ("", None),
    ],
)
def test_where_results_go(monkeypatch: pytest.MonkeyPatch, given: str, address: str) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__RESULTS_URI", given)
    if given.startswith("ftp"):
        with pytest.raises(InvalidInputError, match="ftp"):
            ResultsFolder.configured()
        return
    found = ResultsFolder.configured()
    assert (found and found.uri) == address
