"""Jobs of Airflow in a session of Spark Connect that stays up, by a connection of its type."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException
from airflow_demo.connect_server import ConnectServer
from memwal_airflow.operators.maintenance import MemWalMergeOperator
from memwal_airflow.spark import application
from memwal_airflow.spark.submit import JobSubmitHook, submit_hook

from memwal.catalog import Catalog, Policy, RunState
from memwal.errors import InvalidInputError
from memwal.spark.connect import AUTH_VARIABLE

TOKEN = "tell-nobody-0123456789"
# As an application whose task never ends.
ENDLESS = """
import sys, time
from memwal.jobs.options import MergeOptions
from memwal.spark.application import job_parser, run_application

def beat(path):
    while True:
        with open(path, "a") as file:
            file.write(".")
        time.sleep(0.05)

def job(application):
    application.options.run([{beats!r}], beat)

sys.exit(run_application(job_parser("merge", None), MergeOptions, job))
"""


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> JobSubmitHook:
    """Return the hook for a connection with these fields."""
    connection = {"conn_type": "spark_connect", **fields}
    monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps(connection))
    return submit_hook(conn_id="warm")


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "spark"}, "sc://spark"),
        ({"host": "spark", "port": 15002}, "sc://spark:15002"),
        ({"host": "sc://spark", "port": 15002}, "sc://spark:15002"),
        ({"host": "spark", "extra": {"use_ssl": False}}, "sc://spark"),
        ({"host": "spark", "extra": {"use_ssl": True}}, "sc://spark/;use_ssl=true"),
        (
            {"host": "spark", "port": 1, "login": "a;b", "extra": {"use_ssl": "True"}},
            "sc://spark:1/;user_id=a%3Bb;use_ssl=true",
        ),
        # The names of hosts that the provider takes for other clusters.
        ({"host": "spark.k8s.example"}, "sc://spark.k8s.example"),
        ({"host": "yarn.example"}, "sc://yarn.example"),
    ],
)
def test_a_connection_is_a_server(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], url: str
) -> None:
    hook = connect(monkeypatch, **fields)
    command, env = hook.command("merge.py", ["--table", "t"])
    assert (hook.master, hook.is_cluster_mode) == (url, False)
    assert command[command.index("--remote") + 1] == url
    assert command[-2:] == ["--table", "t"]
    assert AUTH_VARIABLE not in env


def test_its_password_is_a_token_that_only_the_environment_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hook = connect(monkeypatch, host="spark", password=TOKEN)
    command, env = hook.command("merge.py", ["--table", "t"])
    assert env[AUTH_VARIABLE] == TOKEN
    assert TOKEN not in " ".join(command)
    assert TOKEN not in hook.master


def test_files_of_modules_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, host="spark")
    task = MemWalMergeOperator(
        task_id="m", table="t", spark_conn_id="warm", spark_options={"py_files": "a.whl,b.zip"}
    )
    command, _ = task.hook().command("merge.py", ["--table", "t"])
    assert command[command.index("--py-files") + 1] == "a.whl,b.zip"


def test_the_uri_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WARM", f"spark-connect://:{TOKEN}@spark:15002/?use_ssl=true")
    hook = submit_hook(conn_id="warm")
    assert hook.master == "sc://spark:15002/;use_ssl=true"
    assert hook.command("merge.py")[1][AUTH_VARIABLE] == TOKEN


@pytest.mark.parametrize("host", ["", f"spark/;token={TOKEN}", f"spark;token={TOKEN}"])
def test_a_host_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        connect(monkeypatch, host=host)
    assert TOKEN not in str(caught.value)


def test_the_settings_choose_it_whatever_they_say_of_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, host="spark")
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_CONN_ID", "warm")
    monkeypatch.setenv("AIRFLOW__MEMWAL__DEPLOY_MODE", "cluster")
    hook = MemWalMergeOperator(task_id="merge", table="t").hook()
    assert (hook.master, hook.is_cluster_mode) == ("sc://spark", False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path_factory.mktemp("connect") / "server.log").start()
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture
def warm(server: ConnectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run on the server."""
    host, _, port = server.url.removeprefix("sc://").partition(":")
    connect(monkeypatch, host=host, port=int(port))
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_CONN_ID", "warm")
    monkeypatch.setenv("AIRFLOW__MEMWAL__STATE_FOLDER", str(tmp_path / "state"))


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_job_in_a_session_that_its_policy_names(
    managed: Any, catalog: Catalog, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(merge_at_generations=4, merge_at_age_seconds=3600, spark_session="few")
    catalog.update("t", policy=policy)
    commands: list[list[str]] = []
    start = application.SparkJob.start

    def started(command: list[str], **options: Any) -> application.SparkJob:
        commands.append(command)
        return start(command, **options)

    monkeypatch.setattr(application.SparkJob, "start", started)
    result = MemWalMergeOperator(task_id="merge", table="t").execute(context)
    assert result["metrics"]["generations"] == 4
    (command,) = commands
    assert command[command.index("--session") + 1] == "few"
    assert catalog.runs()[0].state is RunState.SUCCEEDED


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_ending_the_task_ends_its_operation_on_the_server(
    managed: Any, catalog: Catalog, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, apps = tmp_path / "beats", tmp_path / "apps"
    apps.mkdir()
    (apps / "merge.py").write_text(ENDLESS.format(beats=str(beats)))
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER", str(apps))
    task = MemWalMergeOperator(task_id="merge", table="t")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            task.execute(context)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not beats.exists():
        time.sleep(0.05)
    assert task.spark_job is not None
    task.on_kill()
    thread.join(60)
    # Of the application, which says that it was told to end, or of the task if it looks before.
    (failure,) = failures
    assert isinstance(failure, AirflowException)
    assert not psutil.pid_exists(task.spark_job.process.pid)  # type: ignore[attr-defined]
    assert catalog.leases.list() == []
    assert catalog.runs()[0].state is RunState.FAILED
    size = -1
    for _ in range(60):
        before, size = size, beats.stat().st_size
        if before == size:
            return
        time.sleep(1)
    pytest.fail("the task goes on in its worker")
