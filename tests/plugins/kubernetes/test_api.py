"""What is asked of a Kubernetes API server that fails, forgets us, or has changed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memwal_airflow.kubernetes import api
from memwal_airflow.kubernetes.api import Cluster, KubernetesUnavailableError, own_namespace
from support.kubernetes.kubernetes_server import Fault, KubernetesServer

from memwal.errors import InvalidInputError

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:1"}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
"""


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PAUSES_SECONDS", (0.01, 0.01, 0.01))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


@pytest.fixture
def cluster(kubernetes: KubernetesServer) -> Cluster:
    return Cluster(f"k8s://{kubernetes.address}", "spark")


def make(kubernetes: KubernetesServer, name: str, **labels: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "spark-kubernetes-driver"}]}
    return kubernetes.make(
        "pods", "spark", {"metadata": {"name": name, "labels": labels}, "spec": spec}
    )


def test_pods_are_found_by_name_and_by_labels(
    kubernetes: KubernetesServer, cluster: Cluster
) -> None:
    made = make(kubernetes, "a", **{"memwal.io/run": "1"})
    make(kubernetes, "b", **{"memwal.io/run": "2"})
    kubernetes.make("pods", "other", {"metadata": {"name": "c", "labels": {"memwal.io/run": "1"}}})
    assert cluster.pod("a") == made
    assert cluster.pod("c") is None
    assert cluster.pods({"memwal.io/run": "1"}) == [made]
    assert cluster.pods({"memwal.io/run": "3"}) == []


def test_only_the_very_pod_is_deleted(kubernetes: KubernetesServer, cluster: Cluster) -> None:
    first = make(kubernetes, "a")
    kubernetes.pod.vanish()
    second = make(kubernetes, "a")
    cluster.delete(first, grace_seconds=1)
    assert cluster.pod("a") == second
    cluster.delete(second, grace_seconds=1)
    assert cluster.pod("a") is None
    cluster.delete(second, grace_seconds=1)


@pytest.mark.parametrize("status", [500, 503, 429, 0])
def test_what_fails_for_a_moment_is_asked_again(
    kubernetes: KubernetesServer, cluster: Cluster, status: int
) -> None:
    make(kubernetes, "a")
    kubernetes.faults.append(Fault(method="GET", path="/pods/a", status=status, times=3))
    assert cluster.pod("a") is not None
    kubernetes.faults.append(Fault(method="GET", path="/pods/a", status=status, times=4))
    with pytest.raises(KubernetesUnavailableError, match="spark/pods/a"):
        cluster.pod("a")


def test_a_deletion_that_was_done_and_not_answered_is_done(
    kubernetes: KubernetesServer, cluster: Cluster
) -> None:
    made = make(kubernetes, "a")
    kubernetes.faults.append(Fault(method="DELETE", path="/pods/a", status=500, after=True))
    cluster.delete(made, grace_seconds=1)
    assert (kubernetes.pods, kubernetes.asked("DELETE", "/pods/a")) == ([], 2)


def test_a_server_that_does_not_answer_in_time_is_asked_again(
    kubernetes: KubernetesServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "TIMEOUT_SECONDS", (5.0, 1.0))
    make(kubernetes, "a")
    kubernetes.faults.append(Fault(method="GET", path="/pods/a", status=200, seconds=1.5))
    assert cluster.pod("a") is not None
    assert kubernetes.asked("GET", "/pods/a") == 2


def test_a_token_that_has_run_out_is_read_anew(
    kubernetes: KubernetesServer, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(token="first"))
    kubernetes.token = "first"
    # The credentials are those of the kubeconfig, the server that of Spark's master.
    cluster = Cluster(f"k8s://{kubernetes.address}", "spark")
    make(kubernetes, "a")
    assert cluster.pod("a") is not None
    kubernetes.token = "second"
    kubeconfig.write_text(KUBECONFIG.format(token="second"))
    assert cluster.pod("a") is not None
    kubernetes.token = "third"
    with pytest.raises(KubernetesUnavailableError, match="401"):
        cluster.pod("a")


def test_what_is_not_allowed_says_what_is_missing(
    kubernetes: KubernetesServer, cluster: Cluster
) -> None:
    made = make(kubernetes, "a")
    kubernetes.faults += [
        Fault(method="DELETE", path="/pods/a", status=403),
        Fault(method="GET", path="/pods/a/log", status=403),
        Fault(method="GET", path="/configmaps/c", status=403),
    ]
    with pytest.raises(InvalidInputError, match=r"delete pods .*spark"):
        cluster.delete(made, grace_seconds=1)
    with pytest.raises(InvalidInputError, match="pods/log"):
        cluster.log("a", "spark-kubernetes-driver")
    # Nothing depends on this one.
    assert cluster.has_config_map("c") is None
    assert cluster.has_config_map("c") is False


def test_a_container_that_has_not_started_has_no_log(
    kubernetes: KubernetesServer, cluster: Cluster
) -> None:
    make(kubernetes, "a")
    assert cluster.log("a", "spark-kubernetes-driver") == ""
    assert cluster.log("none", "spark-kubernetes-driver") == ""
    kubernetes.pod.run()
    kubernetes.pod.write("one", "two")
    text = cluster.log("a", "spark-kubernetes-driver")
    assert [line.split(" ", 1)[1] for line in text.splitlines()] == ["one", "two"]


def test_a_wrong_context_is_named(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(token="x"))
    with pytest.raises(InvalidInputError, match="elsewhere"):
        Cluster("k8s://127.0.0.1:1", "spark", context="elsewhere")
    assert Cluster("k8s://127.0.0.1:1", "spark", context="here").host == "https://127.0.0.1:1"


def test_the_namespace_of_this_pod(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    assert own_namespace(file) == "default"
    file.write_text("airflow\n")
    assert own_namespace(file) == "airflow"
