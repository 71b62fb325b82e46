"""Jobs in a session of Spark Connect, on a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_demo.connect_server import ConnectServer
from support.data.tables import base_state

from memwal.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from memwal.jobs.job import TaskRunner
from memwal.spark.application import apps_folder
from memwal.spark.connect import connect_session
from memwal.spark.runner import spark_reason, spark_runner

SECRET = "tell-nobody-0123456789"

CLIENT = """
import sys, time
from pathlib import Path
from memwal.errors import MemWalError
from memwal.spark.connect import connect_session
from memwal.spark.runner import spark_runner

def wait(path):
    Path(path).touch()
    time.sleep(600)

spark = connect_session(sys.argv[1], name="t")
try:
    spark_runner(spark)([sys.argv[2]], wait)
except MemWalError as error:
    spark.stop()
    sys.exit(6)
"""


def test_another_address_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="sc://"):
        connect_session("spark://127.0.0.1:7077", name="t")


@pytest.mark.slow
def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StoreUnavailableError):
        connect_session("sc://127.0.0.1:1", name="t")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path_factory.mktemp("connect") / "server.log").start()
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def session(server: ConnectServer) -> Iterator[Any]:
    # PySpark turns this process, and what it starts, into clients of Spark Connect.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = connect_session(server.url, name="tests")
        yield session
        session.stop()


@pytest.fixture
def run(session: Any) -> TaskRunner:
    return spark_runner(session)


@pytest.mark.slow
class TestTasks:
    def test_results_keep_the_order(self, run: TaskRunner) -> None:
        assert run(range(7), lambda task: task * 10) == [0, 10, 20, 30, 40, 50, 60]
        assert run([], str) == []

    @pytest.mark.parametrize(("parallelism", "tasks"), [(None, 4), (2, 2), (1, 1)])
    def test_parallelism(self, session: Any, parallelism: int | None, tasks: int) -> None:
        def number(_: object) -> int:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            return context.partitionId()

        numbers = spark_runner(session, max_parallelism=parallelism)(range(4), number)
        assert len(set(numbers)) == tasks

    def test_an_error_keeps_its_type(self, run: TaskRunner) -> None:
        def fail(task: int) -> None:
            from memwal.errors import ConflictError

            raise ConflictError(f"task {task} was late; try again")

        with pytest.raises(ConflictError, match="task 1 was late"):
            run([1], fail)

    def test_a_fault_is_told_by_spark(self, run: TaskRunner) -> None:
        from pyspark.errors import PythonException

        def fail(task: int) -> None:
            raise KeyError("oops")

        with pytest.raises(PythonException) as caught:
            run([1], fail)
        assert "KeyError: 'oops'" in str(caught.value)
        assert "\n" not in spark_reason(caught.value)

    def test_a_worker_that_keeps_dying(self, run: TaskRunner) -> None:
        def die(task: int) -> None:
            import os

            os._exit(1)

        with pytest.raises(OutcomeUnknownError):
            run([1], die)
        assert run([1], str) == ["1"]

    def test_an_interrupt_ends_the_tasks(self, run: TaskRunner, tmp_path: Path) -> None:
        beats = tmp_path / "beats"

        def beat(path: str) -> None:
            import time

            while True:
                with open(path, "a") as file:
                    file.write(".")
                time.sleep(0.05)

        def interrupt() -> None:
            while not beats.exists():
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            run([str(beats)], beat)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            size = beats.stat().st_size
            time.sleep(1)
            if beats.stat().st_size == size:
                return
        pytest.fail("the task goes on")


@pytest.mark.slow
def test_a_server_that_dies_does_not_hold_its_client(tmp_path: Path) -> None:
    """PySpark alone tries for ten minutes, and again at the end of the process."""
    server = ConnectServer(tmp_path / "server.log").start()
    try:
        server.wait()
        started = tmp_path / "started"
        client = subprocess.Popen([sys.executable, "-c", CLIENT, server.url, str(started)])
        try:
            while client.poll() is None and not started.exists():
                time.sleep(0.05)
            assert started.exists()
            server.stop(seconds=0.0)
            assert client.wait(300) == 6
        finally:
            client.kill()
            client.wait()
    finally:
        server.stop()


@pytest.mark.slow
def test_the_applications_are_clients_of_a_session(
    server: ConnectServer, make_backlog: Any, tmp_path: Path
) -> None:
    table, expected = make_backlog(2)
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"aws_secret_access_key": SECRET}))
    for job in ("merge", "index", "snapshot", "gc", "verify"):
        command = [sys.executable, str(apps_folder() / f"{job}.py"), "--table", table.uri]
        done = subprocess.run(
            [*command, "--remote", server.url, "--storage-options-file", str(options)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert json.loads(done.stdout.splitlines()[-1])["job"] == job
        assert SECRET not in done.stdout + done.stderr
    assert base_state(table) == expected


@pytest.mark.slow
def test_an_application_reports_its_error_as_everywhere(
    server: ConnectServer, tmp_path: Path
) -> None:
    command = [sys.executable, str(apps_folder() / "merge.py"), "--remote", server.url]
    done = subprocess.run(
        [*command, "--table", str(tmp_path / "none.lance")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
