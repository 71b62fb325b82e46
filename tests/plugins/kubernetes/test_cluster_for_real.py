"""A merge by the real spark-submit in cluster mode, whose driver is then run for real."""

import contextlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from memwal_airflow.assets import merged_asset
from memwal_airflow.kubernetes.driver_pod import DriverPod
from memwal_airflow.operators.maintenance import MemWalMergeOperator
from memwal_airflow.version_compat import AirflowException
from support.kubernetes.kubelet import Kubelet
from support.kubernetes.kubernetes_server import KubernetesServer, Pod, kubeconfig
from support.stores.s3_emulator import SECRET_KEY, running_emulator

from memwal.catalog import Catalog, Policy, RunState
from memwal.quality.rules import QualityRules
from memwal.storage.open import open_store

ROOT = Path(__file__).resolve().parents[3]
SECRET = "hunter2-in-the-cluster"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROPERTIES = """
spark.kubernetes.container.image memwal-spark:1
spark.kubernetes.authenticate.driver.serviceAccountName release-spark
spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY lake:key
spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY lake:key
"""


@pytest.fixture
def node(kubernetes: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubelet:
    properties = tmp_path / "spark.properties"
    properties.write_text(PROPERTIES)
    settings = {
        "SPARK_MASTER": f"k8s://{kubernetes.address}",
        "DEPLOY_MODE": "cluster",
        "KUBERNETES_NAMESPACE": "spark",
        "RESULTS_URI": str(tmp_path / "results"),
        "STATE_FOLDER": str(tmp_path / "state"),
        "SPARK_APPS_FOLDER": f"local://{ROOT / 'spark_apps'}",
        "SPARK_PROPERTIES_FILE": str(properties),
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"AIRFLOW__MEMWAL__{name}", value)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    # What the task's environment has must not reach the driver.
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "generic://:left-behind@host")
    image = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    node = Kubelet(tmp_path / "node", secrets={("lake", "key"): SECRET}, environment=image)
    kubernetes.on_pod = node.run
    kubernetes.on_delete = node.end
    return node


def test_a_whole_merge(
    managed: Any,
    catalog: Catalog,
    context: Any,
    kubernetes: KubernetesServer,
    node: Kubelet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expectation = {
        "type": "expect_column_values_to_match_regex",
        "severity": "warning",
        "kwargs": {"column": "v", "regex": "^$(PATH)$|new"},
    }
    rules = QualityRules.from_dict({"mode": "warn", "suite": [expectation]})
    catalog.update("t", policy=Policy(merge_at_generations=4, quality=rules))
    with running_emulator(tmp_path) as emulator:
        store = f"s3://{emulator.create_bucket()}/results"
        # As a Secret that is mounted here and in the driver.
        mounted = tmp_path / "lake.json"
        mounted.write_text(json.dumps(emulator.storage_options))
        monkeypatch.setenv("AIRFLOW__MEMWAL__RESULTS_URI", store)
        monkeypatch.setenv("AIRFLOW__MEMWAL__RESULTS_OPTIONS_FILE", str(mounted))
        result, pods = _merged(kubernetes, node, context)
        assert list(open_store(store, emulator.storage_options).list("")) == []

    # Rows of the one region that is due; its key is merged once.
    assert result["metrics"]["generations"] == 4
    backlog = {r.region_id: r.backlog_generations for r in managed.table.status().regions}
    assert backlog == {managed.hot: 0, managed.cold: 1}
    (record,) = catalog.runs(table="t")
    assert (record.state, record.result) == (RunState.SUCCEEDED, result)
    assert "memwal: Spark application local-" in capsys.readouterr().out
    assert kubernetes.objects == {}
    assert list((tmp_path / "state").iterdir()) == []

    (body,) = pods
    assert body["spec"]["serviceAccountName"] == "release-spark"
    assert body["metadata"]["labels"]["spark-role"] == "driver"
    assert body["metadata"]["labels"]["memwal.io/table"] == "t"
    (container,) = body["spec"]["containers"]
    assert container["name"] == "spark-kubernetes-driver"
    env = {one["name"]: one for one in container["env"]}
    reference = {"secretKeyRef": {"name": "lake", "key": "key"}}
    assert env["AWS_SECRET_ACCESS_KEY"]["valueFrom"] == reference
    ran = node.ran[body["metadata"]["name"]]
    assert ran["env"]["AWS_SECRET_ACCESS_KEY"] == SECRET
    sent = json.dumps([body, kubernetes.requests]) + "".join(
        path.read_text() for path in node.folder.rglob("spark.properties")
    )
    for secret in (SECRET, SECRET_KEY, "left-behind"):
        assert secret not in sent
    # The expression came through Spark and Kubernetes as it was.
    words = ran["command"]
    assert json.loads(words[words.index("--quality") + 1])["suite"][0]["kwargs"] == {
        "column": "v",
        "regex": "^$(PATH)$|new",
    }
    # What a Role must allow for a submission; the guide lists it.
    assert {
        (method, path.split("/spark/")[1].split("/")[0].split("?")[0])
        for method, path in kubernetes.requests
        if "fieldManager" in path or method == "POST"
    } == {
        ("POST", "pods"),
        ("PATCH", "services"),
        ("PATCH", "networkpolicies"),
        ("PATCH", "configmaps"),
    }


def _merged(
    kubernetes: KubernetesServer, node: Kubelet, context: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result of a merge, and the pods that were made for it."""
    pods: list[dict[str, Any]] = []

    def run(pod: Pod) -> None:
        pods.append(pod.body)
        node.run(pod)

    kubernetes.on_pod = run
    task = MemWalMergeOperator(task_id="merge", table="t", outlets=[merged_asset("t")])
    return task.execute(context), pods


def test_the_end_of_a_task_is_the_end_of_its_driver(
    managed: Any,
    catalog: Catalog,
    context: Any,
    kubernetes: KubernetesServer,
    node: Kubelet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A driver that waits until it is ended.
    apps = tmp_path / "apps"
    apps.mkdir()
    (apps / "merge.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setenv("AIRFLOW__MEMWAL__SPARK_APPS_FOLDER", f"local://{apps}")
    task = MemWalMergeOperator(task_id="merge", table="t")
    pause = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(task.execute, context)
        while not any(line == "begun" for log in kubernetes.logs.values() for _, line in log):
            assert not running.done()
            pause.wait(0.2)
        task.on_kill()
        assert isinstance(task.spark_job, DriverPod)
        assert kubernetes.objects == {}
        (process,) = node.processes.values()
        assert process.poll() is not None
        # By the missing pod, or by the look that it takes meanwhile.
        assert isinstance(running.exception(120), AirflowException)
    assert catalog.runs()[0].state is RunState.FAILED
    for _ in range(100):
        if not _running(apps):
            break
        pause.wait(0.2)
    assert _running(apps) == []


def _running(folder: Path) -> list[list[str]]:
    """The command lines of processes that run an application of a folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = process.cmdline()
            if any(str(folder) in word for word in command):
                found.append(command)
    return found
