"""Pods of a namespace, and the meaning of their status."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memwal_airflow.kubernetes import pods
from memwal_airflow.kubernetes.pods import (
    KubernetesUnavailableError,
    Pods,
    describe,
    driver_container,
    has_ended,
    has_started,
    has_succeeded,
    own_namespace,
)
from support.kubernetes.kubernetes_server import Fault, KubernetesServer, Pod, kubeconfig

from memwal.errors import InvalidInputError


@pytest.fixture
def found(kubernetes: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pods:
    monkeypatch.setattr(pods, "DELETE_POLL_SECONDS", 0.01)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    return Pods(f"k8s://{kubernetes.address}", "spark")


def make(kubernetes: KubernetesServer, *containers: str) -> Pod:
    """A pod with a side car before its driver."""
    spec = {"containers": [{"name": name} for name in containers or ("spark-kubernetes-driver",)]}
    kubernetes.make("pods", "spark", {"metadata": {"name": "a", "labels": {}}, "spec": spec})
    return kubernetes.pod


def test_only_the_very_pod_is_deleted(kubernetes: KubernetesServer, found: Pods) -> None:
    make(kubernetes)
    first = found.find("a")
    kubernetes.pod.vanish()
    make(kubernetes)
    second = found.find("a")
    assert first is not None
    assert second is not None
    found.delete(first)
    left = found.find("a")
    assert left is not None
    assert left.metadata.uid == second.metadata.uid
    # It is done and not answered.
    kubernetes.faults.append(Fault(method="DELETE", path="/pods/a", status=500, after=True))
    found.delete(second)
    assert found.find("a") is None


def test_a_server_that_fails_is_asked_again(kubernetes: KubernetesServer, found: Pods) -> None:
    make(kubernetes)
    kubernetes.faults.append(Fault(method="GET", path="/pods/a", status=503, times=3))
    assert found.find("a") is not None
    kubernetes.faults.append(Fault(method="GET", path="/pods/a", status=503, times=5))
    with pytest.raises(KubernetesUnavailableError, match="spark"):
        found.find("a")


def test_what_is_not_allowed_says_what_is_missing(
    kubernetes: KubernetesServer, found: Pods
) -> None:
    kubernetes.faults.append(Fault(method="GET", path="/pods", status=403))
    with pytest.raises(InvalidInputError, match=r"list pods .*spark"):
        found.labelled({"memwal.io/run": "1"})


def test_a_context_that_is_not_there_is_named(found: Pods) -> None:
    with pytest.raises(InvalidInputError, match="elsewhere"):
        Pods("k8s://127.0.0.1:1", "spark", context="elsewhere")
    assert Pods("k8s://127.0.0.1:1", "spark", context="here").host == "https://127.0.0.1:1"


def test_the_namespace_of_this_pod(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    assert own_namespace(file) == "default"
    file.write_text("airflow\n")
    assert own_namespace(file) == "airflow"


@pytest.mark.parametrize(
    ("play", "flags", "named"),
    [
        (lambda pod: None, "", ["Pending"]),
        (lambda pod: pod.condition("Unschedulable", "0/3 nodes"), "", ["0/3 nodes", "request"]),
        (lambda pod: pod.wait("ImagePullBackOff", "no tag"), "", ["no tag", "container.image"]),
        (lambda pod: pod.wait("CreateContainerConfigError", "lake"), "", ["lake", "Secrets"]),
        (lambda pod: pod.run(), "started", ["Running"]),
        (lambda pod: pod.end(), "started ended succeeded", ["exit code 0"]),
        (lambda pod: pod.end(137, reason="OOMKilled"), "started ended", ["137", "driver.memory"]),
        (lambda pod: pod.evict("Evicted", "low"), "started ended", ["Evicted: low"]),
    ],
)
def test_states(
    kubernetes: KubernetesServer,
    found: Pods,
    play: Callable[[Pod], None],
    flags: str,
    named: list[str],
) -> None:
    play(make(kubernetes))
    pod: Any = found.find("a")
    states = {"started": has_started, "ended": has_ended, "succeeded": has_succeeded}
    assert [name for name, holds in states.items() if holds(pod)] == flags.split()
    assert [word for word in named if word not in describe(pod)] == []


def test_a_side_car_is_not_the_driver(kubernetes: KubernetesServer, found: Pods) -> None:
    made = make(kubernetes, "mesh", "spark-kubernetes-driver")
    made.run()
    terminated = {"exitCode": 0, "reason": "Completed"}
    status = made.body["status"]["containerStatuses"]
    status.append(
        {**status[0], "name": "spark-kubernetes-driver", "state": {"terminated": terminated}}
    )
    pod: Any = found.find("a")
    assert (has_ended(pod), has_succeeded(pod)) == (True, True)
    made.vanish()
    # A pod template may name the container.
    make(kubernetes, "mine")
    pod = found.find("a")
    assert driver_container(pod) == "mine"
