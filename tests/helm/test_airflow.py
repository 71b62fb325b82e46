"""What the chart makes for the official Airflow chart, held against the names that chart documents
and against what stands in the cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kubernetes.chart import Object, airflow_values, of_kind
from support.kubernetes.chart_values import MATRIX
from support.kubernetes.kubernetes_schemas import NEWEST, problem_of_part

ROOT = Path(__file__).resolve().parents[2]
WITH_AIRFLOW = [
    case
    for case, release in MATRIX.items()
    if release.values.get("airflow", {}).get("enabled", True)
]

# Values of the official chart, from 1.18 on (Airflow 3), that are used here, and their types.
DOCUMENTED: dict[str, type] = {
    "airflowVersion": str,
    "executor": str,
    "images.airflow.repository": str,
    "images.airflow.tag": str,
    "images.airflow.pullPolicy": str,
    "imagePullSecrets": list,
    "secret": list,
    "extraEnvFrom": str,
    "volumes": list,
    "volumeMounts": list,
    "dagProcessor.enabled": bool,
    **{
        f"{part}.{name}": kind
        for part in ("scheduler", "workers", "triggerer", "apiServer", "dagProcessor")
        for name, kind in (
            ("extraInitContainers", list),
            ("serviceAccount.annotations", dict),
            ("labels", dict),
        )
    },
}


def leaves(values: Object, path: str = "") -> dict[str, Any]:
    """Values by their paths, as deep as the official chart documents them."""
    found = {}
    for key, value in values.items():
        name = f"{path}{key}"
        if name in DOCUMENTED or not isinstance(value, dict):
            found[name] = value
        else:
            found |= leaves(value, f"{name}.")
    return found


@pytest.mark.few(12)
@pytest.mark.parametrize("case", WITH_AIRFLOW)
def test_the_official_chart_knows_the_values(case: str) -> None:
    for name, value in leaves(airflow_values(MATRIX[case].objects())).items():
        assert name in DOCUMENTED, name
        assert isinstance(value, DOCUMENTED[name]), name


@pytest.mark.parametrize("case", WITH_AIRFLOW)
def test_what_is_named_is_there(case: str) -> None:
    """Config maps and Secrets, in the namespace in which Airflow is."""
    release = MATRIX[case]
    objects = release.objects()
    values = airflow_values(objects)
    maps = {
        one["metadata"]["name"]
        for one in of_kind(objects, "ConfigMap")
        if one["metadata"]["namespace"] == release.namespace
    }
    store = release.values.get("objectStore", {})
    secrets = {("memwal-catalog", "url")}
    secrets |= {(one["secret"], one["key"]) for one in store.get("secretEnv", {}).values()}
    files = {one["secret"] for one in store.get("secretFiles", [])}
    for reference in yaml.safe_load(values["extraEnvFrom"]):
        assert reference["configMapRef"]["name"] in maps
    for one in values["secret"]:
        assert set(one) == {"envName", "secretName", "secretKey"}
        assert (one["secretName"], one["secretKey"]) in secrets
    for volume in values["volumes"]:
        if "configMap" in volume:
            assert volume["configMap"]["name"] in maps
        elif "secret" in volume:
            assert volume["secret"]["secretName"] in files
        else:
            assert volume["emptyDir"] == {}
    assert {one["name"] for one in values["volumes"]} == {
        one["name"] for one in values["volumeMounts"]
    }


@pytest.mark.parametrize("case", WITH_AIRFLOW)
def test_parts_that_go_into_pods_are_valid(case: str) -> None:
    values = airflow_values(MATRIX[case].objects())
    for volume in values["volumes"]:
        assert problem_of_part(volume, "io.k8s.api.core.v1.Volume", NEWEST) is None
    for mount in values["volumeMounts"]:
        assert problem_of_part(mount, "io.k8s.api.core.v1.VolumeMount", NEWEST) is None
    names = {one["name"] for one in values["volumes"]}
    for part in ("dagProcessor", "scheduler", "workers"):
        for container in values.get(part, {}).get("extraInitContainers", []):
            assert problem_of_part(container, "io.k8s.api.core.v1.Container", NEWEST) is None
            assert {mount["name"] for mount in container["volumeMounts"]} <= names
            # A container that goes on beside the main one, before which it must have started.
            assert container["restartPolicy"] == "Always"
            assert "startupProbe" in container


@pytest.mark.parametrize("case", WITH_AIRFLOW)
def test_nothing_in_it_is_a_template(case: str) -> None:
    """The official chart runs most of its values through its own templates."""
    (found,) = (one for one in MATRIX[case].objects() if "values.yaml" in one.get("data", {}))
    assert "{{" not in found["data"]["values.yaml"]


def environment(objects: list[Object]) -> dict[str, str]:
    data: dict[str, str]
    (data,) = (one["data"] for one in objects if "MEMWAL_CATALOG_SNAPSHOT" in one.get("data", {}))
    assert all(isinstance(value, str) for value in data.values())
    return data


@pytest.mark.slow
def test_airflow_finds_both_folders_of_dags(tmp_path: Path) -> None:
    name = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
    asks = (
        "from airflow.dag_processing.bundles.manager import DagBundlesManager as Manager\n"
        "print(*(f'{one.name}={one.path}' for one in Manager().get_all_dag_bundles()))"
    )
    said = subprocess.run(
        [sys.executable, "-c", asks],
        env={
            # Without the settings of the Airflow that tests in this process use.
            **{key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")},
            name: environment(MATRIX["defaults"].objects())[name],
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        },
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    assert said.splitlines()[-1] == f"dags-folder={tmp_path}/dags memwal=/opt/memwal/dags"


def test_the_version_is_that_of_the_lock() -> None:
    lock = (ROOT / "requirements" / "dev.lock").read_text()
    (version,) = re.findall(r"^apache-airflow==(\S+)", lock, flags=re.MULTILINE)
    assert airflow_values(MATRIX["defaults"].objects())["airflowVersion"] == version
