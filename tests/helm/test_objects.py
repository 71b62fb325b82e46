"""What the chart renders fits together: names, labels, selectors, references, ports, security."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.kubernetes.chart import (
    Object,
    Release,
    containers,
    matches,
    of_kind,
    pods,
    spark_properties,
)
from support.kubernetes.chart_values import MATRIX
from support.kubernetes.pod_security import insecure

cases = pytest.mark.parametrize("case", MATRIX)

STANDARD_LABELS = {
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
}
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
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


@cases
def test_labels(case: str) -> None:
    release = MATRIX[case]
    common = release.values.get("commonLabels", {})
    labelled = [(one["metadata"]["name"], one["metadata"]) for one in release.objects()]
    labelled += [(name, pod["metadata"]) for name, _, pod in pods(release.objects())]
    for name, metadata in labelled:
        labels = metadata["labels"]
        assert labels.keys() >= STANDARD_LABELS, name
        assert labels.items() >= common.items(), name
        assert labels["app.kubernetes.io/instance"] == release.name
        for key, value in labels.items():
            assert LABEL_KEY.fullmatch(key), key
            assert LABEL_VALUE.fullmatch(value), value


def test_long_names_stay_apart() -> None:
    one = Release(name="x" * 52 + "a", values={"spark": {"enabled": False}})
    other = Release(name="x" * 52 + "b", values={"spark": {"enabled": False}})

    def names(release: Release) -> set[str]:
        return {found["metadata"]["name"] for found in release.objects()}

    assert not names(one) & names(other)


@cases
def test_a_deployment_finds_its_pods(case: str) -> None:
    for one in of_kind(MATRIX[case].objects(), "Deployment"):
        assert matches(one["spec"]["selector"], one["spec"]["template"]["metadata"]["labels"])


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
def test_a_service_leads_to_one_kind_of_pod_and_a_port_of_it(case: str) -> None:
    objects = MATRIX[case].objects()
    for service in of_kind(objects, "Service"):
        chosen = [
            pod
            for _, namespace, pod in pods(objects)
            if namespace == service["metadata"]["namespace"]
            and matches({"matchLabels": service["spec"]["selector"]}, pod["metadata"]["labels"])
        ]
        assert len(chosen) == 1
        ports = _ports(chosen[0])
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


@cases
def test_probes_ask_ports_that_are_there(case: str) -> None:
    for _, _, pod in pods(MATRIX[case].objects()):
        for container in containers(pod):
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = container.get(kind, {})
                for way in ("httpGet", "tcpSocket"):
                    if way in probe:
                        assert probe[way]["port"] in _ports(pod)


@cases
def test_accounts_that_are_named_exist(case: str) -> None:
    release = MATRIX[case]
    objects = release.objects()
    known = {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in of_kind(objects, "ServiceAccount")
    }
    given = {one["name"] for one in release.values.get("serviceAccounts", {}).values()}
    for name, namespace, pod in pods(objects):
        account = pod["spec"]["serviceAccountName"]
        assert (namespace, account) in known or account in given, name
    for _, account in known:
        assert account not in given


@cases
def test_secrets_are_named_in_the_values_and_config_maps_are_made(case: str) -> None:
    release = MATRIX[case]
    objects = release.objects()
    store = release.values.get("objectStore", {})
    keys = {
        "memwal-catalog": {"url"},
        **{one["secret"]: None for one in store.get("secretFiles", [])},
    }
    for one in store.get("secretEnv", {}).values():
        keys.setdefault(one["secret"], set()).add(one["key"])
    for name, _, pod in pods(objects):
        for reference in _secrets(pod["spec"]):
            secret = str(reference.get("name", reference.get("secretName")))
            assert secret in keys, name
            if "key" in reference:
                assert reference["key"] in (keys[secret] or set()), name
        maps = {
            volume["configMap"]["name"]
            for volume in pod["spec"].get("volumes", [])
            if "configMap" in volume
        }
        assert maps <= {one["metadata"]["name"] for one in of_kind(objects, "ConfigMap")}
        pull = {one["name"] for one in pod["spec"].get("imagePullSecrets", [])}
        assert pull <= set(release.values.get("images", {}).get("pullSecrets", []))


@cases
def test_volumes_that_are_mounted_are_there(case: str) -> None:
    for name, _, pod in pods(MATRIX[case].objects()):
        volumes = {one["name"] for one in pod["spec"].get("volumes", [])}
        mounted = [
            mount for container in containers(pod) for mount in container.get("volumeMounts", [])
        ]
        assert {mount["name"] for mount in mounted} == volumes, name
        paths = [mount["mountPath"] for mount in mounted]
        assert len(set(paths)) == len(paths), name


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


def test_secrets_of_spark_are_references() -> None:
    for name, value in spark_properties(MATRIX["everything"].objects()).items():
        if re.search(r"secret|password|token|key", name, re.IGNORECASE):
            assert re.fullmatch(
                r"spark\.kubernetes\.(driver|executor)\.secretKeyRef\.[A-Z_]+"
                r"|spark\.kubernetes\.driver\.secrets\.lake-options"
                r"|spark\.kubernetes\.container\.image\.pullSecrets",
                name,
            ), name
            assert value in {"lake:access-key", "lake:secret-key", "/etc/memwal/lake", "registry"}


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


def _ports(pod: Object) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in containers(pod)
        for port in container.get("ports", [])
    }


def _secrets(part: Any) -> Iterator[dict[str, Any]]:
    """References to Secrets, however deep."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in {"secretKeyRef", "secretRef", "secret"} and isinstance(value, dict):
                yield value
            else:
                yield from _secrets(value)
    elif isinstance(part, list):
        for one in part:
            yield from _secrets(one)
