"""Network policies: all is denied, no rule is for everybody; renderings show what is allowed."""

import pytest
from support.kubernetes.chart import (
    matches,
    of_kind,
    pods,
    policies_of,
)
from support.kubernetes.chart_values import MATRIX

WITH_POLICIES = [
    case
    for case, release in MATRIX.items()
    if release.values.get("networkPolicy", {}).get("enabled", True)
]


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


@pytest.mark.parametrize("case", WITH_POLICIES)
def test_no_rule_is_for_everybody(case: str) -> None:
    """A rule without ports, or with an empty list of peers, would be."""
    for policy in of_kind(MATRIX[case].objects(), "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            assert rule["from"]
            assert rule["ports"]
        for rule in policy["spec"].get("egress", []):
            assert rule.get("to", ["anywhere"])
            assert rule["ports"]
