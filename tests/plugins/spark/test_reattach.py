"""A retry finds what the killed try of its task left, and takes its place."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from memwal_airflow.assets import merged_asset
from memwal_airflow.operators.maintenance import MemWalMergeOperator
from memwal_airflow.skips import TaskSkipReason
from memwal_airflow.spark import application, reattach
from memwal_airflow.spark.application import SparkApplicationError, SparkJob
from memwal_airflow.spark.processes import ProcessId
from memwal_airflow.spark.reattach import STATE_KEY, find_earlier_try
from memwal_airflow.version_compat import AirflowException, AirflowSkipException
from support.airflow.skips import skips
from support.waiting import until

from memwal.catalog import Catalog, RunState
from memwal.catalog.leases import job_resource

pytestmark = pytest.mark.usefixtures("fake_spark")

MERGE = """
import json, sys, time, uuid
from pathlib import Path

value = lambda name: sys.argv[sys.argv.index(name) + 1]
print("begun", flush=True)
while not Path({go!r}).exists():
    time.sleep(0.05)
# Most are ended before they come here, and loading Lance takes a second.
import memwal
result = memwal.open(value("--table")).merge(regions=[uuid.UUID(value("--region"))])
json.dump(result.to_dict(), open(value("--result"), "w"))
"""


def task(**options: Any) -> MemWalMergeOperator:
    return MemWalMergeOperator(task_id="merge", table="t", outlets=[merged_asset("t")], **options)


def dead_process() -> ProcessId:
    process = subprocess.Popen([sys.executable, "-ISc", "input()"], stdin=subprocess.PIPE)
    found = ProcessId.of(process.pid)
    process.communicate(b"\n")
    return found


class Killed:
    """A try that was killed: its application, its lease and its record go on without it."""

    def __init__(self, made: Any, catalog: Catalog, context: Any, tmp_path: Path) -> None:
        self.go = tmp_path / "go"
        script = tmp_path / "left.py"
        script.write_text(MERGE.format(go=str(self.go)))
        with application.new_job_folder("merge") as folder:
            pass
        arguments = ["--table", made.uri, "--region", made.hot, "--result"]
        command = [sys.executable, str(script), *arguments, str(folder / "result.json")]
        self.started = SparkJob.start(command, env=dict(os.environ), folder=folder)
        process = dead_process()
        self.lease = catalog.leases.acquire(
            job_resource("t", "merge"), holder=f"{socket.gethostname()}:{process.pid}"
        )
        catalog.start_run("t", "merge", external_id="dag/run/task/-1")
        self.state: dict[str, Any] = {
            "host": socket.gethostname(),
            "folder": folder.name,
            "task": asdict(process),
            "regions": [made.hot],
        }
        context["task_state_store"].set(STATE_KEY, self.state)


@pytest.fixture
def killed(
    fake_spark: None, managed: Any, catalog: Catalog, context: Any, tmp_path: Path
) -> Iterator[Killed]:
    made = Killed(managed, catalog, context, tmp_path)
    yield made
    made.lease.release()
    made.started.end()
    made.started.clean_up()


@pytest.fixture
def no_start(killed: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: Any, **options: Any) -> None:
        pytest.fail("a second application was started")

    monkeypatch.setattr(SparkJob, "start", start)


@pytest.mark.usefixtures("no_start")
def test_a_retry_waits_for_what_still_runs_and_records_it(
    managed: Any, killed: Killed, catalog: Catalog, context: Any
) -> None:
    threading.Timer(0.5, killed.go.touch).start()
    result = task().execute(context)

    assert result["metrics"]["generations"] == 4
    assert managed.waiting() == {managed.hot: 0, managed.cold: 1}
    latest, first = catalog.runs()
    assert (latest.state, first.state) == (RunState.SUCCEEDED, RunState.ABANDONED)
    assert latest.lease_token == killed.lease.token + 1
    assert context["outlet_events"][merged_asset("t")].extra["generations"] == 4
    assert not killed.started.folder.exists()
    assert context["task_state_store"].values == {}


@pytest.mark.usefixtures("no_start")
def test_a_retry_takes_the_result_of_what_has_ended(
    managed: Any, killed: Killed, catalog: Catalog, context: Any
) -> None:
    killed.go.touch()
    list(killed.started.lines(lambda: None))
    # By now nothing is due any more, and what was done must not be lost.
    result = task().execute(context)
    assert result["metrics"]["generations"] == 4
    assert catalog.runs()[0].state is RunState.SUCCEEDED


@pytest.mark.usefixtures("without_spark")
def test_what_died_without_a_result_is_done_anew(
    managed: Any, killed: Killed, context: Any, catalog: Catalog
) -> None:
    killed.started.end()
    killed.lease.release()
    assert task().execute(context)["metrics"]["generations"] == 4
    assert not killed.started.folder.exists()


def test_what_dies_while_it_is_waited_for_fails_the_try(
    killed: Killed, context: Any, catalog: Catalog
) -> None:
    threading.Timer(1, killed.started.end).start()
    with pytest.raises(AirflowException):
        task().execute(context)
    assert catalog.runs()[0].state is RunState.FAILED


@pytest.mark.usefixtures("without_spark")
def test_what_runs_on_another_machine_is_waited_for_by_its_lease(
    killed: Killed, context: Any, catalog: Catalog
) -> None:
    context["task_state_store"].set(STATE_KEY, {**killed.state, "host": "elsewhere"})
    with skips(TaskSkipReason.RUNNING):
        task(wait=timedelta(seconds=0.2)).execute(context)
    assert killed.started.running
    threading.Timer(0.5, killed.lease.release).start()
    assert task().execute(context)["metrics"]["generations"] == 4


@pytest.mark.usefixtures("no_start")
def test_the_lease_of_a_try_that_lives_is_not_taken(
    killed: Killed, context: Any, catalog: Catalog
) -> None:
    killed.state["task"] = asdict(ProcessId.of(os.getpid()))
    context["task_state_store"].set(STATE_KEY, killed.state)
    with skips(TaskSkipReason.RUNNING):
        task(wait=timedelta(seconds=0.2)).execute(context)
    assert killed.started.running


@pytest.mark.usefixtures("no_start")
def test_the_lease_of_another_process_with_its_number_is_not_taken(
    killed: Killed, context: Any, catalog: Catalog
) -> None:
    alive = ProcessId.of(os.getpid())
    killed.lease.release()
    with catalog.leases.acquire(job_resource("t", "merge")) as lease:
        killed.state["task"] = {"pid": alive.pid, "created": alive.created - 1000}
        context["task_state_store"].set(STATE_KEY, killed.state)
        with skips(TaskSkipReason.RUNNING):
            task(wait=timedelta(seconds=0.2)).execute(context)
        lease.check()


@pytest.mark.usefixtures("without_spark")
def test_an_earlier_try_that_ends_by_itself_meanwhile_leaves_the_rest_to_the_retry(
    managed: Any, killed: Killed, context: Any, catalog: Catalog
) -> None:
    killed.state["task"] = asdict(ProcessId.of(os.getpid()))
    context["task_state_store"].set(STATE_KEY, killed.state)

    def end() -> None:
        killed.started.end()
        killed.started.clean_up()
        killed.lease.release()

    threading.Timer(0.5, end).start()
    assert task().execute(context)["metrics"]["generations"] == 4


def test_what_is_in_the_store_leads_to_no_other_folder_or_process(
    managed: Any, killed: Killed, context: Any, tmp_path: Path
) -> None:
    killed.lease.release()
    victim = subprocess.Popen([sys.executable, "-ISc", "input()"], stdin=subprocess.PIPE)
    folder = tmp_path / "precious"
    folder.mkdir()
    process = {"host": socket.gethostname(), "process": asdict(ProcessId.of(victim.pid))}
    (folder / "process.json").write_text(json.dumps(process))
    job = {**process, "folder": str(folder)}
    store = context["task_state_store"]
    for state in (
        {**killed.state, "folder": str(folder), "job": job},
        {**killed.state, "folder": "../precious"},
        {**killed.state, "folder": ".."},
        {**killed.state, "folder": ""},
        {**killed.state, "folder": None},
        {**killed.state, "regions": [1]},
        {**killed.state, "task": None},
        ["nonsense"],
    ):
        store.set(STATE_KEY, state)
        assert find_earlier_try({"task_state_store": store}, lambda: None) is None  # type: ignore[typeddict-item]
        assert store.values == {}
    assert folder.is_dir()
    assert victim.poll() is None
    victim.communicate(b"\n")


def test_ending_the_task_while_it_waits_for_the_lease_ends_the_application(
    killed: Killed, context: Any, catalog: Catalog
) -> None:
    context["task_state_store"].set(STATE_KEY, killed.state)
    killed.lease.release()
    under_test = task(wait=timedelta(seconds=1))
    with (
        catalog.leases.acquire(job_resource("t", "merge"), holder="somebody else"),
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(under_test.execute, context)
        until(lambda: under_test.earlier_try is not None)
        under_test.on_kill()
        assert isinstance(running.exception(120), AirflowException | AirflowSkipException)
    assert not killed.started.running


def test_a_try_that_was_given_up_ends_first(killed: Killed, context: Any) -> None:
    """It takes its application along, which the retry must not wait for."""
    process = subprocess.Popen([sys.executable, "-ISc", "input()"], stdin=subprocess.PIPE)
    killed.state["task"] = asdict(ProcessId.of(process.pid))
    context["task_state_store"].set(STATE_KEY, killed.state)

    def end() -> None:
        killed.started.end()
        killed.started.clean_up()
        process.communicate(b"\n")

    threading.Timer(0.5, end).start()
    assert reattach.find_earlier_try(context, lambda: None) is None
    assert process.wait(120) == 0
    assert context["task_state_store"].get(STATE_KEY) is None


@pytest.mark.parametrize("attached", [False, True])
def test_ending_the_task_ends_the_application(
    attached: bool,
    request: pytest.FixtureRequest,
    managed: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_SPARK_WAIT", str(tmp_path / "never"))
    if attached:
        request.getfixturevalue("killed")
    under_test = task()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(under_test.execute, context)
        until(lambda: under_test.spark_job is not None)
        job = under_test.spark_job
        assert job is not None
        assert job.running
        under_test.on_kill()
        # The second if it was told before it waits for the application.
        assert type(running.exception(120)) in (SparkApplicationError, AirflowException)
    assert not job.process.running
    assert not job.folder.exists()
    assert catalog.runs()[0].state is RunState.FAILED
    assert catalog.leases.list() == []


def test_a_task_that_was_told_to_end_starts_nothing(
    managed: Any, catalog: Catalog, context: Any
) -> None:
    under_test = task()
    under_test.on_kill()
    with pytest.raises(AirflowException):
        under_test.execute(context)
    assert under_test.spark_job is None
