"""Rights in the cluster: exactly these, for exactly those."""

import pytest
from support.kubernetes.chart import Object, named, of_kind
from support.kubernetes.chart_rights import DRIVER, SUBMIT
from support.kubernetes.chart_values import MATRIX


def rights(objects: list[Object]) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """What each account may do in the namespace of Spark, by namespace and name of the account."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["roleRef"]["kind"] == "Role"
        role = named(objects, "Role", binding["roleRef"]["name"])
        assert role["metadata"]["namespace"] == binding["metadata"]["namespace"]
        for subject in binding["subjects"]:
            assert subject["kind"] == "ServiceAccount"
            account = (subject["namespace"], subject["name"])
            for rule in role["rules"]:
                assert set(rule) == {"apiGroups", "resources", "verbs"}
                assert rule["apiGroups"] == [""]
                found.setdefault(account, set()).update(
                    (resource, verb) for resource in rule["resources"] for verb in rule["verbs"]
                )
    return found


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("defaults", {}),
        (
            "Spark in a namespace of its own",
            {
                ("jobs", "memwal-spark"): DRIVER,
                ("data", "airflow-worker"): SUBMIT,
            },
        ),
        (
            "another Airflow",
            {
                ("data", "memwal-spark"): DRIVER,
                ("data", "tasks"): SUBMIT,
                ("data", "more-tasks"): SUBMIT,
            },
        ),
    ],
)
def test_rights(case: str, expected: dict[tuple[str, str], set[tuple[str, str]]]) -> None:
    assert rights(MATRIX[case].objects()) == expected


@pytest.mark.parametrize("case", MATRIX)
def test_rights_end_at_the_namespace_and_reach_no_secret(case: str) -> None:
    objects = MATRIX[case].objects()
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    assert len(of_kind(objects, "Role")) == len(of_kind(objects, "RoleBinding"))
    for found in rights(objects).values():
        assert {resource for resource, _ in found} <= {
            "pods",
            "pods/log",
            "configmaps",
            "services",
        }
