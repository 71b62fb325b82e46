"""The examples of docs/airflow.md, as Airflow loads and runs them."""

import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import memwal
from memwal.catalog import Catalog

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "airflow.md").read_text()
EXAMPLES = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL))


@pytest.fixture
def flights(tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> memwal.Table:
    """The table that the examples are about."""
    monkeypatch.chdir(tmp_path)
    table = memwal.create(
        "flights.lance",
        pa.schema([("id", pa.int64()), ("state", pa.string())]),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx"],
    )
    catalog.register("flights", uri=table.uri)
    monkeypatch.setenv("MEMWAL_CATALOG_SNAPSHOT", str(tmp_path / "tables.json"))
    catalog.export_snapshot(tmp_path / "tables.json")
    return table


def test_the_examples_are_dags(flights: memwal.Table, load_dag: Any) -> None:
    report = load_dag(EXAMPLES, "report")
    (asset,) = report.schedule
    assert asset.uri == "memwal://flights/merged"
    (changed,) = load_dag(EXAMPLES, "embed").schedule
    assert changed.uri == "memwal://flights/changed/embeddings"
    names = {"memwal__flights", "memwal_fleet", "memwal_due", "report", "load", "embed"}
    assert {load_dag(EXAMPLES, name).dag_id for name in names} == names


def test_the_bundles_are_those_of_airflow_and_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    (example,) = re.findall(r"dag_bundle_config_list = (\[.*?\])\n```", GUIDE, flags=re.DOTALL)
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", example)
    bundles = {bundle.name: bundle for bundle in DagBundlesManager().get_all_dag_bundles()}
    assert list(bundles) == ["dags-folder", "memwal"]
    names = {path.name for path in bundles["memwal"].path.glob("*.py")}
    assert names == {"memwal_tables.py", "memwal_fleet.py"}


@pytest.mark.slow
def test_what_is_written_is_waited_for_and_counted(flights: memwal.Table, load_dag: Any) -> None:
    dag = load_dag(EXAMPLES, "load")
    over = threading.Event()

    def maintain() -> None:
        while not over.wait(0.5):
            flights.merge()
            flights.build_indexes()

    maintainer = threading.Thread(target=maintain)
    maintainer.start()
    try:
        run = dag.test()
    finally:
        over.set()
        maintainer.join()
    assert run.state == "success"
    assert flights.base().dataset.count_rows() == 100
