"""The guide to the operators keeps its word: its DAGs load, and run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
# All of them are one file, as they import from one another.
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
DAGS = "\n".join(example for example in EXAMPLES if "DAG(" in example)


def test_the_dags_of_the_guide_load(load_dag: Any) -> None:
    assert load_dag(DAGS, "scratch").task_ids == ["merge", "index"]
    for name in ("flights_report", "merge_hourly", "index_nightly"):
        assert load_dag(DAGS, name).dag_id == name


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
