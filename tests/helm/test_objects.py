"""What the chart renders fits together: names, labels, selectors, references, ports, security."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.kubernetes.chart import (
    Object,
    Release,
    airflow_values,
    containers,
    matches,
    named,
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


def test_annotations() -> None:
    for one in MATRIX["everything"].objects():
        assert one["metadata"]["annotations"]["example.com/owner"] == "data"


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
def test_what_leads_to_the_metrics_finds_them(case: str) -> None:
    objects = MATRIX[case].objects()
    for ingress in of_kind(objects, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                target = path["backend"]["service"]
                service = named(objects, "Service", target["name"])
                assert target["port"]["name"] in {one["name"] for one in service["spec"]["ports"]}
    for monitor in of_kind(objects, "ServiceMonitor"):
        (service,) = (
            one
            for one in of_kind(objects, "Service")
            if matches(monitor["spec"]["selector"], one["metadata"]["labels"])
            and one["metadata"]["namespace"] == monitor["metadata"]["namespace"]
        )
        for endpoint in monitor["spec"]["endpoints"]:
            assert endpoint["port"] in {one["name"] for one in service["spec"]["ports"]}


@cases
def test_a_budget_protects_somebody(case: str) -> None:
    objects = MATRIX[case].objects()
    for budget in of_kind(objects, "PodDisruptionBudget"):
        chosen = [
            name
            for name, namespace, pod in pods(objects)
            if namespace == budget["metadata"]["namespace"]
            and matches(budget["spec"]["selector"], pod["metadata"]["labels"])
        ]
        assert len(chosen) == 1, budget["metadata"]["name"]


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_budget_never_blocks_the_fleet(replicas: int) -> None:
    objects = Release(values={"fleet": {"enabled": True, "replicas": replicas}}).objects()
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_budget_of_drivers_counts_what_has_no_controller() -> None:
    """For pods without one Kubernetes takes nothing but a number of those that must stay."""
    (budget,) = of_kind(MATRIX["Spark"].objects(), "PodDisruptionBudget")
    assert isinstance(budget["spec"]["minAvailable"], int)
    assert "maxUnavailable" not in budget["spec"]


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
def test_no_account_is_useless(case: str) -> None:
    objects = MATRIX[case].objects()
    used = {(namespace, pod["spec"]["serviceAccountName"]) for _, namespace, pod in pods(objects)}
    made = {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in of_kind(objects, "ServiceAccount")
    }
    assert made <= used


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


@cases
def test_resources(case: str) -> None:
    """Spark's are in its properties; Spark writes them into the pods."""
    for name, _, pod in pods(MATRIX[case].objects()):
        if name not in {"driver", "executor"}:
            for container in containers(pod):
                assert set(container["resources"]["requests"]) == {"cpu", "memory"}
                assert "memory" in container["resources"]["limits"]
    if any("values.yaml" in one.get("data", {}) for one in MATRIX[case].objects()):
        for container in _airflow_containers(MATRIX[case].objects()):
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_placement() -> None:
    for name, _, pod in pods(MATRIX["placement"].objects()):
        spec = pod["spec"]
        assert spec["nodeSelector"] == {"disk": "ssd"}, name
        assert spec["tolerations"][0]["key"] == "jobs", name
        assert "nodeAffinity" in spec["affinity"], name
        assert spec["topologySpreadConstraints"][0]["maxSkew"] == 1, name
        assert spec["priorityClassName"] == "batch", name
        assert pod["metadata"]["labels"]["cost-centre"] == "4711", name
        assert pod["metadata"]["annotations"]["example.com/reason"] == "upkeep", name
        (container,) = spec["containers"]
        assert {"name": "MEMWAL_EXTRA", "value": "yes"} in container["env"], name
        assert {"name": "extra", "mountPath": "/extra"} in container["volumeMounts"], name


def test_placement_of_one_part_wins() -> None:
    values = {
        "pod": {"nodeSelector": {"disk": "ssd", "zone": "a"}, "priorityClassName": "batch"},
        "metrics": {"pod": {"nodeSelector": {"disk": "none"}, "priorityClassName": "urgent"}},
    }
    found = {name: pod["spec"] for name, _, pod in pods(Release(values=values).objects())}
    assert found["memwal-metrics"]["nodeSelector"] == {"disk": "none", "zone": "a"}
    assert found["memwal-metrics"]["priorityClassName"] == "urgent"
    assert found["memwal-migrate"]["nodeSelector"] == {"disk": "ssd", "zone": "a"}
    assert found["memwal-migrate"]["priorityClassName"] == "batch"


IDENTITIES = {
    "AWS role": ({"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/memwal"}, {}),
    "EKS Pod Identity": ({}, {}),
    "Google account": (
        {"iam.gke.io/gcp-service-account": "memwal@lake.iam.gserviceaccount.com"},
        {},
    ),
    "Google, directly": ({}, {}),
    "Azure": (
        {"azure.workload.identity/client-id": "00000000-1111-2222-3333-444444444444"},
        {"azure.workload.identity/use": "true"},
    ),
}


@pytest.mark.parametrize("case", IDENTITIES)
def test_whoever_touches_tables_has_the_identity_and_nobody_else(case: str) -> None:
    annotations, labels = IDENTITIES[case]
    objects = MATRIX[case].objects()
    with_tables = {"driver", "executor", "memwal-fleet", "memwal-test-verify"}
    accounts = {
        one["metadata"]["name"]: one["metadata"].get("annotations", {})
        for one in of_kind(objects, "ServiceAccount")
    }
    seen = set()
    for name, _, pod in pods(objects):
        seen.add(name)
        found = {
            key: value
            for key, value in accounts[pod["spec"]["serviceAccountName"]].items()
            if not key.startswith("helm.sh/")
        }
        assert found == (annotations if name in with_tables else {}), name
        marked = {
            key: value
            for key, value in pod["metadata"]["labels"].items()
            if key.startswith("azure.")
        }
        assert marked == (labels if name in with_tables else {}), name
    assert with_tables < seen
    for part in ("workers", "triggerer", "apiServer"):
        values = airflow_values(objects).get(part, {})
        assert values.get("serviceAccount", {}).get("annotations", {}) == annotations
        assert values.get("labels", {}) == labels


def test_images() -> None:
    plain = {
        container["image"]
        for _, _, pod in pods(MATRIX["defaults"].objects())
        for container in containers(pod)
    }
    assert {image.partition(":")[0] for image in plain} == {"memwal"}
    for name, _, pod in pods(MATRIX["everything"].objects()):
        for container in containers(pod):
            if name not in {"driver", "executor"}:
                assert container["image"] == "registry.example/data/memwal:1.2.3"
        if name not in {"driver", "executor"}:
            assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    properties = spark_properties(MATRIX["everything"].objects())
    assert (
        properties["spark.kubernetes.container.image"] == "registry.example/data/memwal-spark:1.2.3"
    )
    assert airflow_values(MATRIX["everything"].objects())["images"]["airflow"] == {
        "repository": "registry.example/data/memwal-airflow",
        "tag": "1.2.3",
        "pullPolicy": "IfNotPresent",
    }


def test_migrations_need_nothing_that_comes_later() -> None:
    """Before an install only hooks are there, those of lower weight first; later they are gone."""
    objects = MATRIX["everything"].objects()
    hooks = {
        (one["kind"], one["metadata"]["name"]): one["metadata"]["annotations"]
        for one in objects
        if "pre-install" in one["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    }
    assert set(hooks) == {
        ("ServiceAccount", "prod-migrate"),
        ("NetworkPolicy", "prod-migrate"),
        ("Job", "prod-migrate"),
    }
    for hook in hooks.values():
        assert hook["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert hook["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    weights = {kind: int(found["helm.sh/hook-weight"]) for (kind, _), found in hooks.items()}
    assert weights["ServiceAccount"] == weights["NetworkPolicy"] < weights["Job"]
    job = named(objects, "Job", "prod-migrate")
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "prod-migrate"


def test_large_numbers_stay_whole() -> None:
    values = {
        "fleet": {"enabled": True, "bytes": 1 << 40},
        "migrations": {"activeDeadlineSeconds": 86_400_000},
    }
    objects = Release(values=values).objects()
    (fleet,) = (
        one for one in of_kind(objects, "Deployment") if one["metadata"]["name"] == "memwal-fleet"
    )
    assert str(1 << 40) in fleet["spec"]["template"]["spec"]["containers"][0]["args"]
    (job,) = of_kind(objects, "Job")
    assert job["spec"]["activeDeadlineSeconds"] == 86_400_000


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


def _airflow_containers(objects: list[Object]) -> Iterator[dict[str, Any]]:
    for part in airflow_values(objects).values():
        if isinstance(part, dict):
            yield from part.get("extraInitContainers", [])


def test_everything_has_all_kinds() -> None:
    """What is tested above is really there."""
    kinds = {one["kind"] for one in MATRIX["everything"].objects()}
    assert kinds == {
        "ConfigMap",
        "Deployment",
        "Ingress",
        "Job",
        "NetworkPolicy",
        "Pod",
        "PodDisruptionBudget",
        "PrometheusRule",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
        "ServiceMonitor",
    }
