"""Jobs in a session of Spark Connect, on a real server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx
import pytest
from airflow_demo.connect_server import ConnectServer
from airflow_demo.processes import free_port
from pyspark.errors import PySparkException, StreamingQueryException
from support.beats import is_still
from support.data.tables import MakeTable, base_state, state

import memwal
from memwal.catalog import Catalog, Policy
from memwal.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    SparkUnavailableError,
)
from memwal.jobs.job import TaskRunner
from memwal.spark.application import apps_folder
from memwal.spark.connect import AUTH_VARIABLE, connect_session, divide_url
from memwal.spark.parallelism import parallelism
from memwal.spark.runner import connect_runner, spark_reason, spark_runner
from memwal.spark.version_compat import STREAM_WRITES

PACKAGE = Path(memwal.__file__).parent
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


APPLICATION = """
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


@pytest.mark.parametrize("url", ["spark://127.0.0.1:7077", "127.0.0.1:15002", "sc://host:port"])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="sc://"):
        connect_session(url, name="t")


@pytest.mark.parametrize(
    "url", ["sc://h:1/;token={}", "sc://h:1;token={}", "sc://h:1/;use_ssl=true;token={}"]
)
def test_a_token_in_an_address_is_refused_and_not_told(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        connect_session(url.format(SECRET), name="t")
    assert AUTH_VARIABLE in str(caught.value)
    assert SECRET not in str(caught.value)


def test_parameters_of_an_address() -> None:
    assert divide_url("sc://h:1") == ("sc://h:1", "")
    assert divide_url("sc://h:1/") == ("sc://h:1", "")
    found = divide_url("sc://h:1/;use_ssl=true;user_id=ann")
    assert found == ("sc://h:1", ";use_ssl=true;user_id=ann")


@pytest.mark.slow
def test_a_server_that_is_not_there() -> None:
    with pytest.raises(SparkUnavailableError):
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
@pytest.mark.skipif(not STREAM_WRITES.here, reason="this Spark writes no streams")
def test_a_stream_with_a_new_checkpoint_is_not_taken_for_the_old_one(
    session: Any, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(buckets=3)
    memwal.spark.register(session)
    changes = tmp_path / "changes"
    changes.mkdir()

    def run(checkpoint: str, *written: tuple[int, int], **options: Any) -> str | None:
        for key, n in written:
            row = {"id": key, "n": n, "text": f"{key}={n}"}
            (changes / f"{key}-{n}.json").write_text(json.dumps(row))
        path = str(tmp_path / checkpoint)
        stream = session.readStream.schema("id bigint, n bigint, text string").json(str(changes))
        query = stream.writeStream.format("memwal").options(source="s", **options)
        query = query.option("checkpointLocation", path).option("path", table.uri)
        try:
            start_stream(query.trigger(availableNow=True)).awaitTermination()
        except StreamingQueryException as error:
            return str(error)
        return None

    assert run("a", (1, 1)) is None
    assert run("a", (1, 2)) is None
    assert state(table) == {1: 2}
    refused = run("b", *((key, 3) for key in range(2, 9)))
    assert refused is not None
    assert "on_restart" in refused
    assert state(table) == {1: 2}
    # The source is read again from its start: both changes of key 1 are in one batch.
    shutil.rmtree(tmp_path / "b")
    for file in changes.glob("1-*"):
        file.unlink()
    assert run("b", on_restart="new") is None
    assert state(table) == {1: 2} | dict.fromkeys(range(2, 9), 3)
    assert run("b", (10, 3)) is None
    assert state(table)[10] == 3


def start_stream(query: Any) -> Any:
    """Start a query again if Spark gave up on its Python, which has ten seconds to start."""
    for _ in range(20):
        try:
            return query.start()
        except PySparkException as error:
            if "connect back" not in str(error):
                raise
    raise AssertionError("Python never starts within ten seconds here")


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

    @pytest.mark.parametrize("receiver", ["main thread", "another thread"])
    def test_an_interrupt_ends_the_tasks(
        self, run: TaskRunner, tmp_path: Path, receiver: str
    ) -> None:
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
            # The system chooses the thread that gets a signal of the process.
            main, own = threading.main_thread().ident, threading.get_ident()
            assert main is not None
            signal.pthread_kill(main if receiver == "main thread" else own, signal.SIGINT)

        # What a shell starts in the background ignores the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                run([str(beats)], beat)
        finally:
            signal.signal(signal.SIGINT, before)
        assert is_still(beats)
        # In the same session, for the next job.
        assert run([1], str) == ["1"]

    def test_several_threads_run_jobs_in_one_session(self, session: Any) -> None:
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(lambda n: spark_runner(session)([n], str), range(6)))
        assert found == [[str(n)] for n in range(6)]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
class TestSessions:
    def test_a_name_leads_to_one_session(self, server: ConnectServer) -> None:
        first, again, other = (connect_session(server.url, name=n) for n in ("a", "a", "b"))
        assert first.session_id == again.session_id != other.session_id
        for session in (first, again, other):
            session.stop()

    def test_the_server_says_how_many_tasks_run_at_once(self, session: Any) -> None:
        assert parallelism(session) == 2

    def test_a_runner_opens_its_session_at_each_call(self, server: ConnectServer) -> None:
        run = connect_runner(server.url, name="a")
        assert [run([n], str) for n in range(2)] == [["0"], ["1"]]
        assert run([], str) == []

    def test_workers_get_modules_from_a_wheel(self, server: ConnectServer, tmp_path: Path) -> None:
        """They find them before what is installed, and each content has its own session."""

        def version(_: object) -> str:
            import memwal

            return memwal.__version__

        found = []
        for number in range(2):
            wheel = make_wheel(tmp_path, version=f"9.{number}")
            for _ in range(2):
                session = connect_session(server.url, name="files", py_files=[wheel])
                found += spark_runner(session)([1], version)
                session.stop()
        assert found == ["9.0", "9.0", "9.1", "9.1"]

    def test_a_file_that_is_not_there(self, server: ConnectServer, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match=r"none\.whl"):
            connect_session(server.url, name="files", py_files=[tmp_path / "none.whl"])

    def test_a_session_that_the_server_closed_is_replaced(self, tmp_path: Path) -> None:
        """A server closes what is idle, and refuses its id from then on."""
        prefix = "spark.connect.session.manager"
        conf = {f"{prefix}.defaultSessionTimeout": "1s", f"{prefix}.maintenanceInterval": "1s"}
        server = ConnectServer(tmp_path / "server.log", conf=conf).start()
        try:
            server.wait()
            ids = [open_and_close(server.url)]
            for _ in range(20):
                time.sleep(3)
                ids.append(open_and_close(server.url))
                if len(set(ids)) == 3:
                    break
            assert len(set(ids)) == 3
        finally:
            server.stop()


def make_wheel(folder: Path, *, version: str) -> Path:
    """Write the package as a wheel has it, of another version."""
    wheel = folder / "lance_memwal-9-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for path in PACKAGE.rglob("*.py"):
            text = path.read_text().replace(f'"{memwal.__version__}"', f'"{version}"')
            archive.writestr(str(path.relative_to(PACKAGE.parent)), text)
    return wheel


def open_and_close(url: str) -> str:
    session = connect_session(url, name="idle")
    session.stop()
    return str(session.session_id)


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
def test_what_spark_keeps_and_shows_has_the_names_of_jobs_and_no_secret(
    make_backlog: Any, tmp_path: Path
) -> None:
    """Event log, the server's own log, its files, and the pages and the API of its UI."""
    table, expected = make_backlog(2)
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"aws_secret_access_key": SECRET}))
    folder = tmp_path / "spark"
    (folder / "events").mkdir(parents=True)
    (folder / "scratch").mkdir()
    ui = f"http://127.0.0.1:{free_port()}"
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.log.level": "DEBUG",
        "spark.local.dir": str(folder / "scratch"),
        "spark.ui.enabled": "true",
        "spark.ui.port": ui.rpartition(":")[2],
    }
    server = ConnectServer(folder / "server.log", conf=conf).start()
    try:
        server.wait()
        command = [sys.executable, str(apps_folder() / "merge.py"), "--table", table.uri]
        command += ["--remote", server.url, "--storage-options-file", str(options)]
        subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120)
        (application,) = httpx.get(f"{ui}/api/v1/applications", timeout=60).json()
        api = f"/api/v1/applications/{application['id']}"
        jobs = httpx.get(f"{ui}{api}/jobs", timeout=60).json()
        pages = ["/jobs/", "/stages/", "/SQL/", "/connect/", "/environment/", "/executors/"]
        pages += [f"{api}/{name}" for name in ("jobs", "stages", "environment", "sql")]
        for page in pages:
            answer = httpx.get(ui + page, follow_redirects=True, timeout=60)
            assert answer.status_code == 200, page
            assert SECRET not in answer.text, page
        queries = httpx.get(f"{ui}{api}/sql?details=true&planDescription=true", timeout=60).text
    finally:
        server.stop()
    assert base_state(table) == expected
    name = f"memwal merge {table.uri}"
    assert any(name in tag for job in jobs for tag in job["jobTags"])
    assert name in queries
    kept = [path for path in folder.rglob("*") if path.is_file()]
    events = "".join(path.read_text() for path in kept if folder / "events" in path.parents)
    assert "SparkListenerJobEnd" in events
    assert name in events
    assert "DEBUG" in (folder / "server.log").read_text()
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_an_application_that_is_told_to_end_ends_its_tasks(
    server: ConnectServer, make_backlog: Any, tmp_path: Path
) -> None:
    table, _ = make_backlog(1)
    beats, code = tmp_path / "beats", tmp_path / "merge.py"
    code.write_text(APPLICATION.format(beats=str(beats)))
    command = [sys.executable, str(code), "--table", table.uri, "--remote", server.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
        while client.poll() is None and not beats.exists():
            time.sleep(0.05)
        client.terminate()
        _, errors = client.communicate(timeout=240)
    assert client.returncode == 128 + signal.SIGTERM
    assert "error: " in errors
    assert is_still(beats)


@pytest.mark.slow
def test_the_token_of_a_server(make_backlog: Any, tmp_path: Path) -> None:
    """PySpark sends it without TLS to the name ``localhost`` alone."""
    table, expected = make_backlog(1)
    server = ConnectServer(tmp_path / "server.log", env={AUTH_VARIABLE: SECRET}).start()
    try:
        server.wait()
        command = [sys.executable, str(apps_folder() / "merge.py"), "--table", table.uri]
        command += ["--remote", server.url.replace("127.0.0.1", "localhost")]

        def merge(token: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                command,
                env={**os.environ, AUTH_VARIABLE: token},
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )

        refused, done = merge("wrong"), merge(SECRET)
    finally:
        server.stop()
    assert refused.returncode == 3, refused.stderr
    assert "token" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert base_state(table) == expected
    log = (tmp_path / "server.log").read_text()
    assert SECRET not in refused.stderr + done.stdout + done.stderr + log


@pytest.mark.slow
def test_a_job_with_the_memwal_of_a_wheel(
    server: ConnectServer, make_backlog: Any, tmp_path: Path
) -> None:
    table, expected = make_backlog(2)
    command = [sys.executable, str(apps_folder() / "merge.py"), "--table", table.uri]
    command += ["--remote", server.url, "--py-files", str(make_wheel(tmp_path, version="9"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert base_state(table) == expected


@pytest.mark.slow
def test_a_fleet_runs_its_jobs_in_sessions(
    server: ConnectServer, make_backlog: Any, tmp_path: Path
) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    catalog.migrate()
    tables = {name: make_backlog(2) for name in ("a", "b")}
    policy = Policy(merge_at_generations=1, spark_session="few")
    for name, (table, _) in tables.items():
        catalog.register(name, uri=table.uri, policy=policy)
    command = [sys.executable, "-m", "memwal", "fleet", "run", "--once", "--json"]
    done = subprocess.run(
        [*command, "--spark-remote", server.url, "--tasks", "2"],
        env={**os.environ, "MEMWAL_CATALOG_URL": f"sqlite:///{tmp_path / 'catalog.db'}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    outcomes = json.loads(done.stdout)["outcomes"]
    assert {(one["table"], one["job"]) for one in outcomes} >= {("a", "merge"), ("b", "merge")}
    assert [one["failed_job"] for one in outcomes if one["failed_job"]] == []
    for table, expected in tables.values():
        assert base_state(table) == expected
    catalog.close()


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
