"""Jobs of Airflow in a session of Spark Connect that stays up, by a connection of its type."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow_demo.connect_server import ConnectServer
from memwal_airflow.operators.maintenance import (
    MemWalCollectOperator,
    MemWalCompactOperator,
    MemWalIndexOperator,
    MemWalJobOperator,
    MemWalMergeOperator,
    MemWalRecoverOperator,
    MemWalSnapshotOperator,
)
from memwal_airflow.spark import connected
from memwal_airflow.spark.submit import JobSubmitHook, submit_hook
from memwal_airflow.version_compat import AirflowException
from support.beats import is_still

from memwal.catalog import Catalog, Policy, RunState
from memwal.catalog.leases import job_resource
from memwal.errors import InvalidInputError, LeaseLostError
from memwal.jobs.options import MergeOptions
from memwal.spark.connect import AUTH_VARIABLE, connect_session
from memwal.storage.location import TableLocation

JOB_OPERATORS: tuple[type[MemWalJobOperator], ...] = (
    MemWalRecoverOperator,
    MemWalMergeOperator,
    MemWalIndexOperator,
    MemWalCompactOperator,
    MemWalSnapshotOperator,
    MemWalCollectOperator,
)
TOKEN = "tell-nobody-0123456789"


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
    # PySpark turns this process, and what it starts, into clients of Spark Connect.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_job_in_a_session_that_its_policy_names(
    managed: Any, catalog: Catalog, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(merge_at_generations=4, merge_at_age_seconds=3600, spark_session="few")
    catalog.update("t", policy=policy)
    names: list[str] = []

    def connected(url: str, *, name: str, **options: Any) -> Any:
        names.append(name)
        return connect_session(url, name=name, **options)

    monkeypatch.setattr("memwal_airflow.spark.connected.connect_session", connected)
    task = MemWalMergeOperator(task_id="merge", table="t")
    result = task.execute(context)
    assert result["metrics"]["generations"] == 4
    assert names == ["few"]
    # No process was started for it.
    assert task.spark_job is None
    assert catalog.runs()[0].state is RunState.SUCCEEDED


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_every_job_of_a_policy(managed: Any, catalog: Catalog, context: Any) -> None:
    for job in JOB_OPERATORS:
        job(task_id=job.job, table="t", force=True).execute(context)
    runs = {run.job: run for run in catalog.runs()}
    assert {run.state for run in runs.values()} == {RunState.SUCCEEDED}
    assert list(runs) == [job.job for job in reversed(JOB_OPERATORS)]


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A merge whose task never ends, and writes into this file."""
    beats = tmp_path / "beats"

    def beat(path: str) -> None:
        import time

        while True:
            with open(path, "a") as file:
                file.write(".")
            time.sleep(0.05)

    def merge(location: TableLocation, options: MergeOptions) -> None:
        options.run([str(beats)], beat)

    monkeypatch.setattr("memwal.fleet.job_spec._entry_points", lambda: {"merge": merge})
    return beats


@pytest.mark.slow
@pytest.mark.usefixtures("warm", "managed")
@pytest.mark.parametrize("reason", ["ended by Airflow", "lease lost"])
def test_the_end_of_a_task_ends_its_tasks_on_the_server(
    catalog: Catalog, context: Any, endless: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(connected, "LEASE_CHECK_SECONDS", 0.0)
    task = MemWalMergeOperator(task_id="merge", table="t")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(task.execute, context)
        while not endless.exists():
            assert not running.done()
            time.sleep(0.05)
        if reason == "lease lost":
            catalog.leases.release(job_resource("t", "merge"))
        else:
            task.on_kill()
        error = running.exception(60)
    assert isinstance(error, LeaseLostError if reason == "lease lost" else AirflowException)
    assert catalog.leases.list() == []
    assert catalog.runs()[0].state is RunState.FAILED
    assert is_still(endless)
