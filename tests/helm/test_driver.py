"""What the real Spark makes of the chart: pods, and requests that the rights are enough for."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.kubernetes.chart import Object, Release, matches, of_kind, policies_of, spark_files
from support.kubernetes.chart_rights import DRIVER, SUBMIT
from support.kubernetes.chart_values import EVERYTHING
from support.kubernetes.kubernetes_schemas import NEWEST, problem
from support.kubernetes.kubernetes_server import PATH, KubernetesServer, running_kubernetes
from support.kubernetes.pod_security import insecure

from memwal.spark.session import ensure_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RELEASE = Release(values=EVERYTHING, name="prod")
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "GET": "get"}


@dataclass(frozen=True)
class Seen:
    """What a cluster saw of one job.

    Attributes
    ----------
    driver, executor : dict
        Their pods.
    submitting, driving : set of (str, str)
        Resource and verb of what spark-submit and the driver asked for.
    """

    driver: Object
    executor: Object
    submitting: set[tuple[str, str]]
    driving: set[tuple[str, str]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("spark")
    for name, text in spark_files(RELEASE.objects()).items():
        # Where the chart mounts them, nothing is here.
        (folder / name).write_text(text.replace("/etc/memwal/spark", str(folder)))
    with running_kubernetes() as cluster:
        _spark_submit(cluster, folder, "cluster", "local:///opt/memwal/spark_apps/merge.py")
        (driver,) = (one for one in cluster.pods if one.labels["spark-role"] == "driver")
        submitting = _asked(cluster)
        cluster.requests.clear()
        script = folder / "waits.py"
        script.write_text(
            textwrap.dedent(
                f"""
                import pathlib, time
                from pyspark import SparkContext
                with SparkContext() as context:
                    while not pathlib.Path({str(folder / "end")!r}).exists():
                        time.sleep(0.1)
                """
            )
        )
        # The same configuration in a driver that is here: it asks for an executor, and ends.
        process = _start(
            cluster,
            folder,
            "client",
            str(script),
            {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.port": "0",
                "spark.driver.blockManager.port": "0",
                "spark.kubernetes.driver.pod.name": driver.name,
                "spark.dynamicAllocation.initialExecutors": "1",
            },
        )
        try:
            end = time.monotonic() + 120
            while not (executors := _executors(cluster)):
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < end, "Spark asked for no executor"
                time.sleep(0.1)
            executor = executors[0]
            (folder / "end").touch()
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 0, said
        finally:
            process.kill()
            process.communicate()
        yield Seen(driver.body, executor, submitting, _asked(cluster))


def _executors(cluster: KubernetesServer) -> list[Object]:
    return [one.body for one in cluster.pods if one.labels["spark-role"] == "executor"]


def _spark_submit(cluster: KubernetesServer, folder: Path, mode: str, application: str) -> None:
    conf = {
        "spark.kubernetes.driver.pod.name": "memwal-merge-1",
        "spark.kubernetes.submission.waitAppCompletion": "false",
    }
    process = _start(cluster, folder, mode, application, conf)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said


def _start(
    cluster: KubernetesServer, folder: Path, mode: str, application: str, conf: Mapping[str, str]
) -> subprocess.Popen[str]:
    env = {**os.environ, "KUBECONFIG": str(folder / "none"), "PYSPARK_PYTHON": sys.executable}
    ensure_java(env)
    options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return subprocess.Popen(
        [
            Path(sys.executable).with_name("spark-submit"),
            *("--master", f"k8s://{cluster.address}", "--deploy-mode", mode, "--name", "memwal"),
            *("--properties-file", folder / "spark.properties"),
            *options,
            application,
        ],
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _asked(cluster: KubernetesServer) -> set[tuple[str, str]]:
    found = set()
    for method, address in cluster.requests:
        parts = urlsplit(address)
        path = PATH.fullmatch(parts.path)
        assert path is not None, address
        assert path["namespace"] == "jobs"
        verb = VERBS[method]
        if path["name"] is None and verb in {"get", "delete"}:
            query = parse_qs(parts.query)
            verb = {"get": "list", "delete": "deletecollection"}[verb]
            verb = "watch" if "watch" in query else verb
        found.add((path["kind"], verb))
        if verb == "patch":
            # What is applied and not there is made.
            found.add((path["kind"], "create"))
    return found


def test_the_rights_of_airflow_are_enough_to_submit(seen: Seen) -> None:
    assert seen.submitting <= SUBMIT
    assert {("pods", "create"), ("configmaps", "patch"), ("services", "patch")} <= seen.submitting


def test_the_rights_of_a_driver_are_enough(seen: Seen) -> None:
    assert seen.driving <= DRIVER
    assert ("pods", "create") in seen.driving


@pytest.mark.parametrize("part", ["driver", "executor"])
def test_pods(seen: Seen, part: str) -> None:
    pod: Object = getattr(seen, part)
    sent: dict[str, Any] = {key: value for key, value in pod.items() if key != "status"}
    for key in ("uid", "creationTimestamp", "resourceVersion", "deletionTimestamp"):
        sent["metadata"].pop(key, None)
    assert problem({**sent, "apiVersion": "v1", "kind": "Pod"}, NEWEST) is None
    assert list(insecure(pod)) == []
    spec = pod["spec"]
    assert spec["serviceAccountName"] == {"driver": "prod-spark", "executor": "prod-tables"}[part]
    assert spec["automountServiceAccountToken"] is (part == "driver")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    (container,) = spec["containers"]
    assert container["name"] == f"spark-kubernetes-{part}"
    assert container["image"] == "registry.example/data/memwal-spark:1.2.3"
    assert container["workingDir"] == "/tmp"
    memory = {"driver": "3072Mi", "executor": "7168Mi"}[part]
    assert container["resources"]["limits"]["memory"] == memory
    assert container["resources"]["requests"]["memory"] == memory
    assert container["resources"]["limits"]["cpu"] == {"driver": "2", "executor": "4"}[part]
    env = {one["name"]: one for one in container["env"]}
    assert env["AWS_REGION"]["value"] == "eu-central-1"
    assert env["AWS_SECRET_ACCESS_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "lake", "key": "secret-key"}
    }
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert "/tmp" in mounts
    # Scratch space is what the template has, and nothing beside it.
    assert not [path for path in mounts if path.startswith("/var/data")]
    assert ("/etc/memwal/lake" in mounts) == (part == "driver")


@pytest.mark.parametrize("part", ["driver", "executor"])
def test_labels_and_placement(seen: Seen, part: str) -> None:
    objects = RELEASE.objects()
    pod: Object = getattr(seen, part)
    labels = pod["metadata"]["labels"]
    assert labels["azure.workload.identity/use"] == "true"
    assert labels["team"] == "data"
    found = {one["metadata"]["name"] for one in policies_of(objects, "jobs", pod)}
    assert found == {"prod-deny", f"prod-{part}"}
    (budget,) = (
        one
        for one in of_kind(objects, "PodDisruptionBudget")
        if "driver" in one["metadata"]["name"]
    )
    assert matches(budget["spec"]["selector"], labels) == (part == "driver")
    if part == "executor":
        assert pod["spec"]["nodeSelector"]["disk"] == "ssd"
        assert pod["spec"]["priorityClassName"] == "batch"


def test_ports_are_those_of_the_network_policies(seen: Seen) -> None:
    (container,) = seen.driver["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports["driver-rpc-port"] == 7078
    assert ports["blockmanager"] == 7079
    (container,) = seen.executor["spec"]["containers"]
    assert {one["containerPort"] for one in container["ports"]} == {7079}
