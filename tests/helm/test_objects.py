"""What the chart renders fits together: names, labels, selectors, references, ports, security."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from support.kubernetes.chart import (
    Release,
    containers,
    of_kind,
    pods,
)
from support.kubernetes.chart_values import MATRIX
from support.kubernetes.pod_security import insecure

cases = pytest.mark.parametrize("case", MATRIX)

DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# Of a CronJob, so that the names of its Jobs still fit.
LONGEST = {"CronJob": 52}


@cases
def test_names(case: str) -> None:
    objects = MATRIX[case].objects()
    keys = Counter(
        (one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in objects
    )
    assert [key for key, count in keys.items() if count > 1] == []
    for kind, namespace, name in keys:
        assert DNS_NAME.fullmatch(name), name
        assert len(name) <= LONGEST.get(kind, 63), name
        assert namespace in {MATRIX[case].namespace, _spark_namespace(MATRIX[case])}


def test_selectors_do_not_change() -> None:
    """A Deployment whose selector changes cannot be upgraded: these three, for ever."""
    for case in ("everything", "fleet"):
        for one in of_kind(MATRIX[case].objects(), "Deployment"):
            assert set(one["spec"]["selector"]["matchLabels"]) == {
                "app.kubernetes.io/name",
                "app.kubernetes.io/instance",
                "app.kubernetes.io/component",
            }


@cases
def test_there_is_no_secret(case: str) -> None:
    """The chart makes none, and no variable that sounds like one has a value in the open."""
    objects = MATRIX[case].objects()
    assert of_kind(objects, "Secret") == []
    sounds = re.compile(r"secret|password|token|access_key|credential", re.IGNORECASE)
    for name, _, pod in pods(objects):
        for container in containers(pod):
            for variable in container.get("env", []):
                if sounds.search(variable["name"]):
                    assert "valueFrom" in variable, name
    for one in of_kind(objects, "ConfigMap"):
        for key in one.get("data", {}):
            assert not sounds.search(key)


@cases
def test_pods_are_restricted(case: str) -> None:
    for name, _, pod in pods(MATRIX[case].objects()):
        assert list(insecure(pod)) == [], name


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"securityContext": {"runAsUser": 0}}, "root"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "volume hostPath"),
        ({"containers": [{"securityContext": {"runAsNonRoot": True}}]}, "escalation"),
        ({"containers": [{}]}, "writes to its root"),
        ({"containers": [{}], "securityContext": {}}, "seccomp"),
        ({"containers": [{"ports": [{"hostPort": 80}]}]}, "host port"),
    ],
)
def test_the_check_of_security_finds(change: Mapping[str, Any], found: str) -> None:
    _, _, pod = next(pods(MATRIX["defaults"].objects()))
    assert found in set(insecure({**pod, "spec": {**pod["spec"], **change}}))


@cases
def test_only_drivers_have_a_token(case: str) -> None:
    objects = MATRIX[case].objects()
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for name, _, pod in pods(objects):
        assert pod["spec"]["automountServiceAccountToken"] is (name == "driver"), name


def test_nothing_is_left_when_all_is_off() -> None:
    off = {"enabled": False}
    values = dict.fromkeys(("airflow", "migrations", "metrics", "networkPolicy", "tests"), off)
    assert Release(values=values).text().strip() == ""


def _spark_namespace(release: Release) -> str:
    return str(release.values.get("spark", {}).get("namespace") or release.namespace)
