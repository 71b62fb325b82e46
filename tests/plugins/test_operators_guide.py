"""The guide to the operators keeps its word: its DAGs load, and run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.data.tables import SCHEMA

import memwal
from memwal.catalog import Catalog, Policy

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
# All of them are one file, as they import from one another.
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
DAGS = "\n".join(example for example in EXAMPLES if "DAG(" in example)


def test_the_dags_of_the_guide_load(load_dag: Any) -> None:
    assert load_dag(DAGS, "scratch").task_ids == ["merge", "index"]
    for name in ("flights_report", "merge_hourly", "index_nightly", "each_table"):
        assert load_dag(DAGS, name).dag_id == name


@pytest.mark.usefixtures("without_spark")
def test_tasks_map_over_tables(
    load_dag: Any,
    backlog: Any,
    tmp_path: Path,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "memwal"}))
    other = memwal.create(tmp_path / "other.lance", SCHEMA, primary_key="id")
    for name, uri in (("flights", backlog.uri), ("trains", other.uri)):
        catalog.register(name, uri=uri, policy=Policy(merge_at_generations=4))
    run = load_dag(DAGS, "each_table").test()
    tasks = run.get_task_instances()
    states = {(one.task_id, one.map_index): str(one.state) for one in tasks}
    merged = {"flights": "success", "trains": "skipped"}
    assert states == {
        ("names", -1): "success",
        **{("backlog", number): "success" for number in range(2)},
        **{("merge", number): merged[name] for number, name in enumerate(sorted(merged))},
    }
    told = {one.map_index: one.xcom_pull("backlog", map_indexes=one.map_index) for one in tasks}
    assert (told[0], told[1]) == (5, 0)
    assert [(run.table, run.job) for run in catalog.runs()] == [("flights", "merge")]


@pytest.mark.slow
@pytest.mark.usefixtures("fake_spark")
def test_the_dags_of_the_guide_run(load_dag: Any, backlog: Any, catalog: Any) -> None:
    catalog.register("flights", uri=backlog.uri)
    merged = load_dag(DAGS, "merge_hourly").test()
    assert str(merged.state) == "success"
    assert backlog.table.status().backlog_generations == 1
    run = load_dag(DAGS, "flights_report").test()
    states = {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
    assert states == {"fresh": "success", "report": "success", "check": "success"}
    assert backlog.table.status().backlog_generations == 0
    assert [run.job for run in catalog.runs()] == ["verify", "checkpoint", "merge"]
