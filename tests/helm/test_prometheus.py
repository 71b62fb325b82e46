"""Alert rules and dashboard: those that come with memwal, not copies of them."""

import json
from pathlib import Path
from typing import Any

import yaml
from support.kubernetes.chart import CHART, Object, Release, helm, named, of_kind
from support.kubernetes.chart_values import MATRIX

from memwal.exporter import DASHBOARD, RULES, shipped

GROUPS = yaml.safe_load(shipped(RULES))["groups"]


def rules(**values: Any) -> Object:
    """The rules that the chart makes."""
    release = Release(values={"prometheus": {"rules": {"enabled": True, **values}}})
    (found,) = of_kind(release.objects(), "PrometheusRule")
    return found


def test_rules_are_those_that_are_shipped() -> None:
    assert rules()["spec"]["groups"] == GROUPS


def test_the_dashboard_is_the_one_that_is_shipped() -> None:
    found = named(MATRIX["Prometheus operator"].objects(), "ConfigMap", "memwal-dashboard")
    assert json.loads(found["data"]["memwal.json"]) == json.loads(shipped(DASHBOARD))
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_files_are_not_copies() -> None:
    for name in (RULES, DASHBOARD):
        file = CHART / "files" / name
        assert file.is_symlink()
        assert file.resolve() == CHART.parents[1] / "memwal" / "exporter" / "shipped" / name


def test_a_package_holds_the_files(tmp_path: Path) -> None:
    """Outside of the repository there is nothing that a link could lead to."""
    helm("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("memwal-*.tgz")
    values = MATRIX["Prometheus operator"].values
    assert Release(values=values, chart=package).objects() == Release(values=values).objects()


def test_labels_and_runbooks() -> None:
    found = rules(
        labels={"release": "prometheus"},
        alertLabels={"team": "data"},
        runbookUrl="https://docs.example/runbooks/{alert}.html",
    )
    assert found["metadata"]["labels"]["release"] == "prometheus"
    for group, shipped_group in zip(found["spec"]["groups"], GROUPS, strict=True):
        for rule, original in zip(group["rules"], shipped_group["rules"], strict=True):
            assert rule["expr"] == original["expr"]
            assert rule["labels"] == {**original["labels"], "team": "data"}
            assert rule["annotations"] == {
                **original["annotations"],
                "runbook_url": f"https://docs.example/runbooks/{rule['alert']}.html",
            }
