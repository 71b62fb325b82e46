"""Kubernetes understands whatever the chart renders, in every version that it allows."""

import json

import pytest
from support.kubernetes.chart import CHART, Release, helm, of_kind, spark_template
from support.kubernetes.chart_values import EVERYTHING, MATRIX
from support.kubernetes.kubernetes_schemas import NEWEST, VERSIONS, problem, problem_of_part


@pytest.mark.parametrize("case", MATRIX)
def test_every_object_is_valid(case: str) -> None:
    found = MATRIX[case].objects()
    assert found
    problems = {f"{one['kind']} {one['metadata']['name']}": problem(one, NEWEST) for one in found}
    assert {name: text for name, text in problems.items() if text is not None} == {}


@pytest.mark.parametrize(
    "version",
    [VERSIONS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in VERSIONS[1:-1]), NEWEST],
)
def test_in_every_version_of_kubernetes(version: str) -> None:
    values = {**EVERYTHING, "fleet": {"enabled": True, "schedule": "@daily"}}
    for each in (EVERYTHING, values):
        for one in Release(values=each, kubernetes=f"{version}.0").objects():
            assert problem(one, version) is None, one["metadata"]["name"]


@pytest.mark.parametrize("case", ["Spark", "everything"])
@pytest.mark.parametrize("part", ["driver", "executor"])
def test_templates_of_spark_are_pods(case: str, part: str) -> None:
    assert problem(spark_template(MATRIX[case].objects(), part), NEWEST) is None


def test_a_wrong_object_is_found() -> None:
    """The schemas are strict: what they do not know is a problem."""
    (deployment,) = of_kind(MATRIX["defaults"].objects(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert problem_of_part(pod, "io.k8s.api.core.v1.PodSpec", NEWEST) is None
    pod["containers"][0]["ressources"] = {}
    assert "ressources" in str(problem(deployment, NEWEST))


def test_an_older_kubernetes_is_refused() -> None:
    assert "1.29.0" in Release(kubernetes="1.28.9").refusal()


@pytest.mark.parametrize("case", ["defaults", "everything", "long names"])
def test_lint_finds_nothing(case: str) -> None:
    printed = helm(
        "lint", "--strict", str(CHART), "--values", "-", values=json.dumps(MATRIX[case].values)
    )
    assert "0 chart(s) failed" in printed
    assert "[WARNING]" not in printed
    assert "[ERROR]" not in printed
