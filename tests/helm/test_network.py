"""Network policies: all is denied, and what each part needs is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from support.kubernetes.chart import (
    Object,
    Release,
    matches,
    named,
    of_kind,
    pods,
    policies_of,
    spark_properties,
)
from support.kubernetes.chart_values import MATRIX

WITH_POLICIES = [
    case
    for case, release in MATRIX.items()
    if release.values.get("networkPolicy", {}).get("enabled", True)
]
DNS = ("dns", (53,))
CATALOG = ("anywhere", (5432,))
STORE = ("anywhere", (443,))
API = ("anywhere", (443, 6443))


def ways_out(policy: Object) -> set[tuple[str, tuple[int, ...]]]:
    """Where a policy lets its pods go: who and which ports."""
    return {(_who(rule.get("to")), _ports(rule)) for rule in policy["spec"].get("egress", [])}


def ways_in(policy: Object) -> set[tuple[str, tuple[int | str, ...]]]:
    """Who a policy lets come to its pods, and to which ports."""
    found = set()
    for rule in policy["spec"].get("ingress", []):
        assert rule["from"], "an empty list is everybody"
        found |= {(_peer(peer), _ports(rule)) for peer in rule["from"]}
    return found


def _who(peers: list[Any] | None) -> str:
    if peers is None:
        return "anywhere"
    assert peers, "an empty list is everybody"
    return " ".join(_peer(peer) for peer in peers)


def _peer(peer: dict[str, Any]) -> str:
    if "ipBlock" in peer:
        return str(peer["ipBlock"]["cidr"])
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    if "tier" in labels:
        return str(labels["tier"])
    if "namespaceSelector" in peer:
        namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        return "dns" if labels == {"k8s-app": "kube-dns"} else str(namespace)
    return str(labels["app.kubernetes.io/component"])


def _ports(rule: dict[str, Any]) -> tuple[Any, ...]:
    assert rule["ports"], "no ports are all ports"
    return tuple(dict.fromkeys(port["port"] for port in rule["ports"]))


@pytest.mark.parametrize("case", WITH_POLICIES)
def test_all_is_denied_to_every_pod_and_something_allowed(case: str) -> None:
    objects = MATRIX[case].objects()
    for name, namespace, pod in pods(objects):
        if name.endswith("-migrate"):
            # A hook: before an install nothing else is there to deny, and its policy denies too.
            (own,) = (
                one
                for one in policies_of(objects, namespace, pod)
                if "helm.sh/hook" in one["metadata"].get("annotations", {})
            )
            assert set(own["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        found = policies_of(objects, namespace, pod)
        assert len(found) == 2, name
        denies = [one for one in found if one["metadata"]["name"].endswith("-deny")]
        assert len(denies) == 1, name
        assert set(denies[0]["spec"]) == {"podSelector", "policyTypes"}
        assert set(denies[0]["spec"]["policyTypes"]) == {"Ingress", "Egress"}


@pytest.mark.parametrize("case", WITH_POLICIES)
def test_every_policy_chooses_somebody(case: str) -> None:
    objects = MATRIX[case].objects()
    chosen = [
        policy["metadata"]["name"]
        for _, namespace, pod in pods(objects)
        for policy in policies_of(objects, namespace, pod)
    ]
    made = {one["metadata"]["name"] for one in of_kind(objects, "NetworkPolicy")}
    # The one that denies is there for whatever may come, too.
    assert {name for name in made if not name.endswith("-deny")} <= set(chosen)


@pytest.mark.parametrize("case", WITH_POLICIES)
def test_peers_of_the_release_exist(case: str) -> None:
    objects = MATRIX[case].objects()
    for policy in of_kind(objects, "NetworkPolicy"):
        rules = [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]
        for rule in rules:
            for peer in [*rule.get("from", []), *rule.get("to", [])]:
                selector = peer.get("podSelector", {})
                if "app.kubernetes.io/name" not in selector.get("matchLabels", {}):
                    continue
                assert any(
                    matches(selector, pod["metadata"]["labels"])
                    for _, namespace, pod in pods(objects)
                    if namespace == policy["metadata"]["namespace"]
                )


def test_what_each_part_needs() -> None:
    objects = MATRIX["everything"].objects()

    def policy(part: str) -> Object:
        return named(objects, "NetworkPolicy", f"prod-{part}")

    assert ways_out(policy("migrate")) == {DNS, CATALOG}
    assert ways_out(policy("metrics")) == {DNS, CATALOG}
    assert ways_out(policy("fleet")) == {DNS, CATALOG, STORE}
    assert ways_out(policy("test")) == {DNS, CATALOG, STORE}
    assert ways_out(policy("driver")) == {DNS, STORE, API, ("executor", (7079,))}
    assert ways_out(policy("executor")) == {
        DNS,
        STORE,
        ("driver", (7078, 7079)),
        ("executor", (7079,)),
    }
    assert ways_in(policy("metrics")) == {
        ("monitoring", ("metrics",)),
        ("ingress-nginx", ("metrics",)),
    }
    assert ways_in(policy("driver")) == {("executor", (7078, 7079))}
    assert ways_in(policy("executor")) == {("driver", (7079,)), ("executor", (7079,))}
    for part in ("migrate", "fleet", "test"):
        assert ways_in(policy(part)) == set()


@pytest.mark.parametrize(
    ("case", "port", "clients"),
    [
        ("Spark Connect", 15002, {"airflow"}),
        ("Spark Connect for the fleet", 15002, {"fleet"}),
        ("Spark Connect for all", 15003, {"airflow", "fleet"}),
    ],
)
def test_only_its_clients_reach_the_connect_server(case: str, port: int, clients: set[str]) -> None:
    objects = MATRIX[case].objects()
    policy = named(objects, "NetworkPolicy", "memwal-connect")
    assert ways_out(policy) == {DNS, STORE}
    assert ways_in(policy) == {(client, (port,)) for client in clients}
    if "fleet" in clients:
        fleet = named(objects, "NetworkPolicy", "memwal-fleet")
        assert ways_out(fleet) == {DNS, CATALOG, STORE, ("connect", (port,))}


def test_the_ports_are_those_of_spark() -> None:
    properties = spark_properties(MATRIX["Spark"].objects())
    assert properties["spark.driver.port"] == "7078"
    assert properties["spark.driver.blockManager.port"] == "7079"
    assert properties["spark.blockManager.port"] == "7079"


def test_an_ingress_controller_comes_in_only_where_there_is_an_ingress() -> None:
    objects = MATRIX["defaults"].objects()
    policy = named(objects, "NetworkPolicy", "memwal-metrics")
    assert ways_in(policy) == {("monitoring", ("metrics",))}


def test_nobody_scrapes() -> None:
    """A rule without peers would let everybody in: there is no rule."""
    policy = named(MATRIX["nobody scrapes"].objects(), "NetworkPolicy", "memwal-metrics")
    assert "ingress" not in policy["spec"]


def test_narrow_ways_out() -> None:
    objects = MATRIX["narrow ways out"].objects()
    fleet = named(objects, "NetworkPolicy", "memwal-fleet")
    database = fleet["spec"]["egress"][1]
    assert database["to"] == [{"podSelector": {"matchLabels": {"app": "db"}}}]
    driver = named(objects, "NetworkPolicy", "memwal-driver")
    assert ways_out(driver) >= {DNS, ("10.1.0.0/16", (9000,)), ("10.0.0.1/32", (443,))}


@pytest.mark.parametrize(
    ("case", "addresses"),
    [
        ("AWS role", set()),
        ("EKS Pod Identity", {("169.254.170.23/32", (80,))}),
        ("Google account", {("169.254.169.252/32", (988,)), ("169.254.169.254/32", (80,))}),
        ("Azure", set()),
    ],
)
def test_whoever_has_an_identity_reaches_the_address_that_gives_tokens(
    case: str, addresses: set[tuple[str, tuple[int, ...]]]
) -> None:
    objects = MATRIX[case].objects()
    for part in ("driver", "executor", "fleet", "test"):
        found = ways_out(named(objects, "NetworkPolicy", f"memwal-{part}"))
        assert {way for way in found if way[0].startswith("169.254.")} == addresses
    for part in ("metrics", "migrate"):
        found = ways_out(named(objects, "NetworkPolicy", f"memwal-{part}"))
        assert found == {DNS, CATALOG}


def test_other_dns() -> None:
    dns = {
        "to": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}
        ],
        "ports": [5353],
    }
    objects = Release(values={"networkPolicy": {"dns": dns}}).objects()
    policy = named(objects, "NetworkPolicy", "memwal-metrics")
    assert ways_out(policy) == {("openshift-dns", (5353,)), CATALOG}


def test_no_policies() -> None:
    assert of_kind(MATRIX["no network policies"].objects(), "NetworkPolicy") == []
