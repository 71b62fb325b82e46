"""Jobs whose driver runs in a cluster, with an API server and drivers that do as the test wants."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from memwal_airflow import fleet_dag
from memwal_airflow.assets import merged_asset
from memwal_airflow.kubernetes import driver_pod, pods
from memwal_airflow.kubernetes.cluster import TaskDriver
from memwal_airflow.operators.base import external_id, open_target
from memwal_airflow.operators.maintenance import (
    MemWalCollectOperator,
    MemWalIndexOperator,
    MemWalMergeOperator,
    MemWalSnapshotOperator,
    TableCheckpointOperator,
)
from memwal_airflow.operators.verify import MemWalVerifyOperator
from memwal_airflow.spark import application
from memwal_airflow.spark.processes import ProcessId
from memwal_airflow.spark.reattach import STATE_KEY
from memwal_airflow.version_compat import AirflowException, AirflowFailException
from support.kubernetes import kubernetes_server
from support.kubernetes.kubernetes_server import Fault, KubernetesServer, Pod, kubeconfig
from support.waiting import until

import memwal
from memwal.catalog import Catalog, RunState
from memwal.catalog.leases import job_resource
from memwal.errors import ConflictError, InvalidInputError
from memwal.spark.result_store import write_result

pytestmark = pytest.mark.usefixtures("managed")


@pytest.fixture(autouse=True)
def quick(in_cluster: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "DELETE_SECONDS", 5.0)
    monkeypatch.setattr(pods, "DELETE_POLL_SECONDS", 0.02)
    monkeypatch.setattr(application, "LEASE_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(driver_pod, "LEASE_CHECK_SECONDS", 0.1)


def task(**options: Any) -> MemWalMergeOperator:
    arguments = {"table": "t", "outlets": [merged_asset("t")], **options}
    return MemWalMergeOperator(task_id="merge", **arguments)


def given(pod: Pod, flag: str) -> str:
    """An argument of the driver, as Kubernetes hands it on."""
    words = pod.arguments
    return words[words.index(flag) + 1].replace("$$", "$")


def merge(pod: Pod) -> None:
    """What the driver of a merge does."""
    until(lambda: pod.server.asked("PATCH", "configmaps") > 0)
    pod.run()
    pod.write("memwal: Spark application spark-1: http://driver.spark.svc:4040", "merging")
    result = memwal.open(given(pod, "--table")).merge(regions=[UUID(given(pod, "--region"))])
    write_result(given(pod, "--result"), json.dumps(result.to_dict()))
    pod.write("done")
    pod.end()


def fails(*lines: str, code: int = 1, reason: str | None = None) -> Callable[[Pod], None]:
    """A driver that fails."""

    def drive(pod: Pod) -> None:
        pod.run()
        pod.write(*lines)
        pod.end(code, reason=reason)

    return drive


def left(tmp_path: Path) -> list[str]:
    """What lies where results and submissions are."""
    folders = [tmp_path / "results", tmp_path / "state"]
    return [path.name for folder in folders if folder.is_dir() for path in folder.iterdir()]


def driver_place(context: Any) -> TaskDriver:
    return TaskDriver.of(task().hook(), external_id=external_id(context), job="merge")


def leave(made: Any, name: str, *arguments: str, phase: str = "Pending", **labels: str) -> Pod:
    """The pod of a driver that somebody left."""
    known = {"spark-role": "driver", "memwal.io/attempt": "left"}
    known |= {f"memwal.io/{key}": value for key, value in labels.items()}
    spec = {"containers": [{"name": "spark-kubernetes-driver", "args": list(arguments)}]}
    body = {"metadata": {"name": name, "labels": known}, "spec": spec}
    made.server.make("pods", "spark", body)["status"]["phase"] = phase
    return Pod(made.server, name)


def leave_driver(made: Any, context: Any) -> Pod:
    """The driver that a try left which was killed."""
    place = driver_place(context)
    arguments = ["driver", "local:///opt/memwal/spark_apps/merge.py", "--table", made.uri]
    arguments += ["--region", made.hot]
    arguments += ["--result", f"{place.results.uri}/{place.run}-left.json"]
    return leave(made, place.pod_name, *arguments, run=place.run)


@pytest.fixture
def made(managed: Any, in_cluster: KubernetesServer) -> Any:
    """The table with the backlog, and the cluster."""
    object.__setattr__(managed, "server", in_cluster)
    return managed


def remember(context: Any, *, host: str = "elsewhere") -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    found = asdict(ProcessId.of(process.pid))
    process.wait()
    state = {"host": host, "pod": "any", "namespace": "spark", "task": found, "regions": None}
    context["task_state_store"].set(STATE_KEY, state)


def test_a_merge_is_submitted_followed_leased_recorded_and_cleaned_up(
    made: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_HISTORY_URL", "https://history")
    monkeypatch.setenv("AIRFLOW__MEMWAL__DRIVER_POD_URL", "https://console/{namespace}/{pod}")
    seen: dict[str, Any] = {}

    def drive(pod: Pod) -> None:
        until(lambda: pod.server.asked("PATCH", "configmaps") > 0)
        seen.update(name=pod.name, labels=pod.labels, args=pod.arguments)
        held = catalog.leases.list()
        seen["leases"] = [lease.resource for lease in held]
        seen["conf"] = next(
            json.loads(body["data"]["conf"])
            for (kind, *_), body in made.server.objects.items()
            if kind == "configmaps"
        )
        merge(pod)

    made.server.on_pod = drive
    operator = task()
    result = operator.execute(context)

    assert made.waiting() == {made.hot: 0, made.cold: 1}
    (run,) = catalog.runs(table="t")
    assert (run.state, run.result, run.lease_token) == (RunState.SUCCEEDED, result, 1)
    assert context["outlet_events"][merged_asset("t")].extra["generations"] == 4
    assert (made.server.pods, left(tmp_path), catalog.leases.list()) == ([], [], [])
    assert context["task_state_store"].values == {}

    assert seen["leases"] == ["table/t/merge"]
    labels = seen["labels"]
    assert labels["memwal.io/table"] == "t"
    assert labels["memwal.io/job"] == "merge"
    assert labels["memwal.io/lease"] == driver_place(context).lease_label("table/t/merge")
    assert seen["name"] == f"memwal-merge-{labels['memwal.io/run']}"
    assert "local:///opt/memwal/spark_apps/merge.py" in seen["args"]
    assert "--storage-options-file" not in seen["args"]
    result_at = (
        f"file://{tmp_path}/results/{labels['memwal.io/run']}-{labels['memwal.io/attempt']}.json"
    )
    assert seen["args"][seen["args"].index("--result") + 1] == result_at
    assert seen["conf"]["spark.kubernetes.submission.waitAppCompletion"] == "false"
    assert seen["conf"]["spark.kubernetes.namespace"] == "spark"
    # Each line once, in the log of the task.
    log = capsys.readouterr().out
    assert [log.count(f"] {word} ") for word in ("submitting", "merging", "done")] == [1, 1, 1]
    # The address of the UI is one that only the cluster knows.
    page = f"https://console/spark/{seen['name']}"
    assert context["ti"].pushed["_link_SparkUiLink"] == page
    (link, _) = operator.operator_extra_links
    assert link.get_link(operator, ti_key=None) == "https://history/history/spark-1/"


def test_arguments_reach_the_driver_as_they_are(
    made: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = tmp_path / "options.json"
    options.write_text('{"timeout": "5s"}')
    monkeypatch.setenv("AIRFLOW__MEMWAL__RESULTS_OPTIONS_FILE", str(options))
    place = driver_place(context)
    assert place.results.options == {"timeout": "5s"}
    driver = place.submit(
        ["--quality", '{"regex": "^$(HOME)$"}'],
        table=None,
        table_uri="s3://lake/a$b",
        storage_options_ref="/etc/lake/options.json",
        leases=(),
        check_lease=lambda: None,
    )
    assert next(driver.lines(lambda: None)) == "submitting"
    until(lambda: len(made.server.pods) == 1)
    pod = made.server.pod
    assert given(pod, "--quality") == '{"regex": "^$(HOME)$"}'
    assert given(pod, "--table") == "s3://lake/a$b"
    assert given(pod, "--storage-options-file") == "/etc/lake/options.json"
    assert given(pod, "--result-options-file") == str(options)
    # Else Kubernetes would put the value of a variable there.
    assert "$$(HOME)$$" in " ".join(pod.arguments)
    assert "memwal.io/table" not in pod.labels
    driver.end()
    driver.clean_up()


@pytest.mark.parametrize("told", ["by its state", "by its try"])
def test_a_retry_waits_for_the_driver_that_runs(
    made: Any, catalog: Catalog, context: Any, tmp_path: Path, told: str
) -> None:
    pod = leave_driver(made, context)
    pod.run()
    pod.write("from the beginning")
    if told == "by its state":
        remember(context)
    else:
        context["ti"].try_number = 2
    made.server.requests.clear()
    made.server.requests.append(("PATCH", "configmaps"))
    threading.Timer(0.4, lambda: merge(pod)).start()
    result = task().execute(context)
    assert result["metrics"]["generations"] == 4
    assert made.server.asked("POST", "pods") == 0
    assert made.waiting() == {made.hot: 0, made.cold: 1}
    assert catalog.runs()[0].state is RunState.SUCCEEDED
    assert (made.server.pods, left(tmp_path)) == ([], [])


def test_a_retry_takes_the_result_of_a_driver_that_has_ended(
    made: Any, catalog: Catalog, context: Any, tmp_path: Path
) -> None:
    pod = leave_driver(made, context)
    made.server.requests.append(("PATCH", "configmaps"))
    merge(pod)
    remember(context)
    # By now nothing is due any more, and what was done must not be lost.
    assert task().execute(context)["metrics"]["generations"] == 4
    assert catalog.runs()[0].state is RunState.SUCCEEDED
    assert (made.server.pods, left(tmp_path)) == ([], [])


def test_the_lease_of_a_dead_process_of_this_machine_is_given_back(
    made: Any, catalog: Catalog, context: Any
) -> None:
    pod = leave_driver(made, context)
    remember(context, host=socket.gethostname())
    pid = context["task_state_store"].get(STATE_KEY)["task"]["pid"]
    holder = f"{socket.gethostname()}:{pid}"
    catalog.leases.acquire(job_resource("t", "merge"), holder=holder)
    made.server.requests.append(("PATCH", "configmaps"))
    merge(pod)
    assert task(wait=timedelta(0)).execute(context)["metrics"]["generations"] == 4


def vanish(pod: Any, uid: str) -> None:
    """Let a pod be gone, unless another one of its name is there by then."""
    with pod.server.lock:
        if pod.exists and pod.body["metadata"]["uid"] == uid:
            pod.vanish()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "what", ["not started", "failed", "without a result", "being deleted", "nothing"]
)
def test_what_is_left_of_a_driver_that_comes_to_nothing_is_removed_and_it_is_done_anew(
    made: Any, context: Any, tmp_path: Path, what: str
) -> None:
    remember(context)
    if what != "nothing":
        pod = leave_driver(made, context)
    if what == "failed":
        fails("oh")(pod)
    elif what == "without a result":
        pod.end()
    elif what == "being deleted":
        pod.run()
        pod.body["metadata"]["deletionTimestamp"] = "2026-11-22T01:00:00Z"
        threading.Timer(0.3, vanish, [pod, pod.body["metadata"]["uid"]]).start()
    made.server.on_pod = merge
    assert task().execute(context)["metrics"]["generations"] == 4
    assert (made.server.pods, left(tmp_path)) == ([], [])
    assert context["task_state_store"].values == {}


def test_a_submission_that_fails_says_why(
    made: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SUBMIT", "refuse")
    with pytest.raises(AirflowException, match="no such image"):
        task().execute(context)
    assert (made.server.pods, left(tmp_path)) == ([], [])


@pytest.mark.parametrize("how", ["killed", "500 after it was made"])
def test_a_pod_that_was_not_made_to_the_end_is_deleted(
    made: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "killed":
        monkeypatch.setenv("FAKE_SUBMIT", "half")
    else:
        made.server.faults.append(Fault(method="POST", path="/pods", status=500, after=True))
    with pytest.raises(AirflowException):
        task().execute(context)
    assert (made.server.pods, left(tmp_path)) == ([], [])
    assert made.waiting() == {made.hot: 4, made.cold: 1}


def test_a_driver_that_runs_is_waited_for_though_its_submission_was_killed(
    made: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SUBMIT", "late")
    made.server.on_pod = merge
    assert task().execute(context)["metrics"]["generations"] == 4
    assert made.server.asked("POST", "pods") == 1


def test_two_tries_never_have_two_drivers(made: Any, context: Any) -> None:
    pod = leave_driver(made, context)
    pod.run()
    # This try was never told of the other, and cannot take its name.
    with pytest.raises(AirflowException, match=pod.name):
        task().execute(context)
    assert pod.exists
    # The next one is.
    context["ti"].try_number = 2
    made.server.requests.append(("PATCH", "configmaps"))
    threading.Timer(0.2, lambda: merge(pod)).start()
    assert task().execute(context)["metrics"]["generations"] == 4


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("drive", "said"),
    [
        (fails("no heap", code=137, reason="OOMKilled"), "no heap"),
        (fails("error: no such table"), "no such table"),
        (lambda pod: pod.evict("Evicted", "low on memory"), "low on memory"),
        (lambda pod: (pod.run(), pod.vanish()), None),
        (lambda pod: pod.wait("ErrImagePull", "no such tag"), "no such tag"),
        (lambda pod: pod.condition("Unschedulable", "0/3 nodes"), "0/3 nodes"),
    ],
)
def test_a_driver_that_fails_says_which_way_and_what_to_do(
    made: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    drive: Callable[[Pod], None],
    said: str | None,
) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__DRIVER_START_SECONDS", "2")

    def play(pod: Pod) -> None:
        until(lambda: pod.server.asked("PATCH", "configmaps") > 0)
        drive(pod)

    made.server.on_pod = play
    with pytest.raises(AirflowException, match=said):
        task().execute(context)
    assert (made.server.pods, left(tmp_path)) == ([], [])
    (run,) = catalog.runs()
    assert run.state is RunState.FAILED


def test_a_driver_that_ended_well_without_a_result_says_so(made: Any, context: Any) -> None:
    made.server.on_pod = fails(code=0)
    with pytest.raises(AirflowException, match=r"file://.*json"):
        task().execute(context)
    assert made.server.pods == []


def test_the_result_counts_though_the_driver_ended_badly_or_is_gone(
    made: Any, context: Any
) -> None:
    def drive(pod: Pod) -> None:
        pod.run()
        result = {"job": "snapshot", "table": "t", "version": 1}
        write_result(given(pod, "--result"), json.dumps(result))
        pod.end(1)

    made.server.on_pod = drive
    operator = MemWalSnapshotOperator(task_id="snapshot", table="t")
    assert operator.execute(context)["version"] == 1

    def drained(pod: Pod) -> None:
        drive(pod)
        pod.vanish()

    made.server.on_pod = drained
    context["params"] = {"force": True}
    assert operator.execute(context)["version"] == 1


def test_a_result_that_cannot_be_read_now_is_read_by_the_retry(
    made: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.server.on_pod = merge

    def away(*_: Any) -> None:
        raise memwal.errors.StoreUnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(driver_pod, "read_result", away)
        with pytest.raises(memwal.errors.StoreUnavailableError):
            task().execute(context)
    assert len(made.server.pods) == 1
    assert task().execute(context)["metrics"]["generations"] == 4
    assert (made.server.pods, left(tmp_path)) == ([], [])


@pytest.mark.few(1)
@pytest.mark.parametrize("why", ["503", "a token that has run out"])
def test_an_api_server_that_is_away_for_a_while_ends_nothing(
    made: Any, context: Any, tmp_path: Path, why: str
) -> None:
    def drive(pod: Pod) -> None:
        until(lambda: pod.server.asked("PATCH", "configmaps") > 0)
        if why == "503":
            made.server.faults.append(Fault(method="GET", path="/pods/", status=503, times=9))
        else:
            made.server.token = "second"
            until(lambda: pod.server.refused > 0)
            kubeconfig(tmp_path, token="second")
        merge(pod)

    made.server.on_pod = drive
    assert task().execute(context)["metrics"]["generations"] == 4


def test_a_log_that_went_with_its_node_is_not_waited_for(
    made: Any, context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made.server.faults.append(Fault(method="GET", path="/log", status=502, times=10**6))
    made.server.on_pod = merge
    assert task().execute(context)["metrics"]["generations"] == 4
    assert "502" in caplog.text


def test_a_log_whose_connection_ends_is_read_on(
    made: Any, context: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubernetes_server, "STREAM_SECONDS", 0.2)

    def drive(pod: Pod) -> None:
        pod.run()
        pod.write("before")
        until(lambda: pod.server.asked("GET", "/log") > 1)
        merge(pod)

    made.server.on_pod = drive
    task().execute(context)
    log = capsys.readouterr().out
    # The last second before an interruption is read again.
    assert [word for word in ("before", "merging", "done") if f"] {word} " not in log] == []


def test_a_lost_lease_ends_the_driver(made: Any, catalog: Catalog, context: Any) -> None:
    def drive(pod: Pod) -> None:
        until(lambda: pod.server.asked("PATCH", "configmaps") > 0)
        pod.run()
        catalog.leases.release(job_resource("t", "merge"))

    made.server.on_pod = drive
    with pytest.raises(ConflictError):
        task().execute(context)
    assert made.server.pods == []
    assert catalog.runs()[0].state is RunState.FAILED


def test_who_has_the_lease_ends_the_driver_that_has_it_no_longer(made: Any, context: Any) -> None:
    place = driver_place(context)

    def held(name: str, lease: str, phase: str) -> Pod:
        return leave(made, name, phase=phase, lease=place.lease_label(lease))

    orphan = held("orphan", "table/t/merge", "Running")
    ended = held("ended", "table/t/merge", "Succeeded")
    other = held("other", "table/u/merge", "Running")
    # It cannot have the lease that it does the work of merges with.
    checkpoint = held("checkpoint", "table/t/checkpoint", "Running")
    # A rehearsal has no lease, and ends nobody.
    context["params"] = {"dry_run": True}
    collector = held("collector", "table/t/gc", "Running")
    made.server.on_pod = fails(code=0)
    with pytest.raises(AirflowException, match=r"\.json"):
        MemWalCollectOperator(task_id="collect", table="t").execute(context)
    assert collector.exists

    context["params"] = {}
    context["task_state_store"].values.clear()
    made.server.on_pod = merge
    task().execute(context)
    found = [pod.exists for pod in (orphan, checkpoint, ended, other)]
    assert found == [False, False, True, True]


def test_another_airflow_has_other_names(
    made: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = driver_place(context)
    monkeypatch.setenv("AIRFLOW__MEMWAL__RESULTS_URI", str(tmp_path / "elsewhere"))
    there = driver_place(context)
    assert here.pod_name != there.pod_name
    assert here.lease_label("table/t/merge") != there.lease_label("table/t/merge")


def test_what_nobody_else_can_have_the_lease_of(catalog: Catalog) -> None:
    def leased(operator: Any) -> tuple[str, ...]:
        with open_target(operator.table, operator.table_uri, None, None) as target:
            found: tuple[str, ...] = operator.leased_resources(target)
        return tuple(name.removeprefix("table/t/") for name in found)

    index = MemWalIndexOperator(task_id="i", table="t")
    assert leased(task()) == ("merge", "checkpoint")
    assert leased(index) == ("index", "checkpoint")
    assert leased(MemWalIndexOperator(task_id="i", table="t", index="x")) == ("index/x",)
    assert leased(MemWalCollectOperator(task_id="c", table="t")) == ("gc",)
    checkpoint = TableCheckpointOperator(task_id="c", table="t")
    assert leased(checkpoint) == ("checkpoint", "merge", "index")
    uri = catalog.get("t").uri
    for operator in (MemWalIndexOperator, TableCheckpointOperator, MemWalVerifyOperator):
        assert leased(operator(task_id="x", table_uri=uri)) == ()


@pytest.mark.parametrize("where", ["submitting", "running", "attached"])
def test_ending_the_task_ends_the_driver(
    made: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    if where == "submitting":
        monkeypatch.setenv("FAKE_SUBMIT", "hang")
    elif where == "attached":
        leave_driver(made, context).run()
        remember(context)
    made.server.on_pod = Pod.run
    # It takes its time to end.
    made.server.on_delete = lambda pod: time.sleep(0.3)
    operator = task()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, context)
        until(lambda: operator.spark_job is not None)
        job = operator.spark_job
        assert isinstance(job, driver_pod.DriverPod)
        if where != "submitting":
            until(lambda: made.server.asked("GET", "/log") > 0)
        operator.on_kill()
        assert made.server.pods == []
        if job.submission is not None:
            assert not job.submission.running
        assert type(running.exception(120)) is AirflowException
    assert left(tmp_path) == []
    assert catalog.leases.list() == []


def test_a_driver_that_does_not_end_is_named(
    made: Any,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pods, "DELETE_SECONDS", 0.2)
    stuck = threading.Event()
    made.server.on_delete = lambda pod: print(stuck.wait(240))
    pod = leave_driver(made, context)
    pod.run()
    found = driver_place(context).find()
    assert found is not None
    found.job.end()
    stuck.set()
    (error,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert pod.name in error.getMessage()


def test_what_a_driver_cannot_be_given_is_refused(
    made: Any, catalog: Catalog, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(naming: str, **options: Any) -> None:
        with pytest.raises(AirflowFailException, match=naming):
            task(**options).execute(context)

    secret = json.dumps({"conn_type": "generic", "extra": {"aws_secret_access_key": "hunter2"}})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", secret)
    refused("lake", storage_options_ref="airflow:lake")
    refused("spark://m:7077", spark_options={"master": "spark://m:7077"})
    refused("'pod'", spark_options={"deploy_mode": "pod"})
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER", "/home/me/apps")
    refused("/home/me/apps")
    monkeypatch.delenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER")
    monkeypatch.setenv("AIRFLOW__MEMWAL__RESULTS_URI", "")
    refused("results_uri")
    assert made.server.asked("POST", "pods") == 0


def test_a_connection_may_ask_for_cluster_mode(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__DEPLOY_MODE", "client")
    extra = {"deploy-mode": "cluster", "namespace": "jobs"}
    found = {"conn_type": "spark", "host": f"k8s://{made.server.address}", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_K8S", json.dumps(found))
    hook = task(spark_conn_id="k8s").hook()
    assert (hook.is_cluster_mode, hook.namespace) == (True, "jobs")
    client = task(spark_conn_id="k8s", spark_options={"deploy_mode": "client"})
    assert not client.hook().is_cluster_mode
    assert not task().hook().is_cluster_mode
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_PROPERTIES_FILE", "/etc/memwal/spark.properties")
    command, _ = task().hook().command("merge.py")
    assert command[command.index("--properties-file") + 1] == "/etc/memwal/spark.properties"


def test_what_no_task_came_back_for_is_cleaned_up_after_a_week(
    made: Any, context: Any, tmp_path: Path
) -> None:
    old, young, runs = (leave(made, name) for name in ("old", "young", "runs"))
    foreign = leave(made, "foreign")
    del foreign.body["metadata"]["labels"]["memwal.io/attempt"]
    long_ago = f"{datetime.now(UTC) - timedelta(days=8):%Y-%m-%dT%H:%M:%SZ}"
    for pod in (old, runs, foreign):
        pod.body["metadata"]["creationTimestamp"] = long_ago
    for pod in (old, young, foreign):
        pod.end()
    runs.run()
    results = tmp_path / "results"
    for name in ("a-1", "b-2"):
        write_result(f"file://{results}/{name}.json", "{}")
    eight_days = time.time() - 8 * 86400
    os.utime(results / "a-1.json", (eight_days, eight_days))

    dag = fleet_dag.build_fleet_dags()["memwal_fleet"]
    found = dag.get_task("clean_up").python_callable()
    assert found == {"results": 1, "pods": 1}
    assert [pod.exists for pod in (old, young, runs, foreign)] == [False, True, True, True]
    assert [path.name for path in results.iterdir()] == ["b-2.json"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["submitting", "made", "runs", "ended"])
def test_a_try_that_is_killed_at_any_step_is_gone_on_with(
    made: Any,
    catalog: Catalog,
    context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """By a process of its own, with no time to end anything."""
    go = threading.Event()
    # No work of a driver that has not started is lost, and it may wait for ever.
    again = step in ("submitting", "made")

    def drive(pod: Pod) -> None:
        if step == "runs":
            pod.run()
            go.wait(240)
        elif step == "ended":
            # It does not get to hear of that.
            children[0].send_signal(signal.SIGSTOP)
        if not again or len(children) == 2:
            merge(pod)

    children: list[psutil.Popen] = []
    made.server.on_pod = drive
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_SUBMIT", "stall" if step == "submitting" else "")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        script = Path(__file__).parents[2] / "support" / "kubernetes" / "cluster_try.py"
        children.append(psutil.Popen([sys.executable, str(script), "t"]))
        if step == "submitting":
            until(lambda: len(made.server.pods) == 1)
        elif step == "ended":
            until(lambda: any(tmp_path.glob("results/*.json")))
        else:
            until(lambda: made.server.asked("PATCH", "configmaps") > 0)
        # As a container does, whose first process is killed.
        family = [*children[0].children(recursive=True), *children]
        for process in family:
            process.kill()
        children[0].wait()
        children *= 2
    (lease,) = catalog.leases.list()
    assert lease.held
    assert len(made.server.pods) == 1
    context["ti"].try_number = 2
    threading.Timer(1, go.set).start()
    # Nobody on another machine would know that the process is dead.
    threading.Timer(2, lambda: catalog.leases.release(lease.resource)).start()
    result = task().execute(context)
    assert result["metrics"]["generations"] == 4
    assert made.waiting() == {made.hot: 0, made.cold: 1}
    assert made.server.asked("POST", "/pods") == (2 if again else 1)
    assert made.server.pods == []
    assert [run.state for run in catalog.runs()] == [RunState.SUCCEEDED, RunState.ABANDONED]
    assert list(tmp_path.glob("results/*")) == []


def test_a_master_on_kubernetes_needs_its_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.apache.spark.hooks import spark_submit
    from memwal_airflow.spark import submit

    # As it is where that is not installed.
    monkeypatch.delattr(spark_submit, "kube_client")
    monkeypatch.setattr(submit.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match="extra kubernetes"):
        task().hook()
