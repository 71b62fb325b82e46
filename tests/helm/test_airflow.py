"""What the chart makes for the official Airflow chart, held against the names that chart documents
and against what stands in the cluster."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.kubernetes.chart import Object, airflow_values
from support.kubernetes.chart_values import MATRIX
from support.processes import python_environment, run_python

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
    "triggerer.replicas": int,
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


@pytest.mark.few(6)
@pytest.mark.parametrize("case", WITH_AIRFLOW)
def test_the_official_chart_knows_the_values(case: str) -> None:
    for name, value in leaves(airflow_values(MATRIX[case].objects())).items():
        assert name in DOCUMENTED, name
        assert isinstance(value, DOCUMENTED[name]), name


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
    settings = {
        name: environment(MATRIX["defaults"].objects())[name],
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    # Without the settings of the Airflow that tests in this process use.
    said = run_python(asks, env=python_environment(without="AIRFLOW") | settings).stdout
    assert said.splitlines()[-1] == f"dags-folder={tmp_path}/dags memwal=/opt/memwal/dags"


def test_the_version_is_that_of_the_lock() -> None:
    lock = (ROOT / "requirements" / "dev.lock").read_text()
    (version,) = re.findall(r"^apache-airflow==(\S+)", lock, flags=re.MULTILINE)
    assert airflow_values(MATRIX["defaults"].objects())["airflowVersion"] == version
