"""Airflow's traces go on in the Spark application that a task starts."""

from pathlib import Path
from typing import Any

import pytest
from airflow_demo.standalone import AirflowStandalone
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.metrics.otel_collector import Collector, collecting
from support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "memwal__flights"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def spans(collector: Collector, name: str) -> list[Span]:
    return [one for one in collector.spans if one.name == name]


def test_one_trace_from_the_task_to_the_commit(tmp_path: Path, registered: Any) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "memwal_tables.py").symlink_to(REPOSITORY / "dags" / "memwal_tables.py")
    for start in (0, 100):
        registered.write(*range(start, start + 100))
    with (
        collecting() as collector,
        AirflowStandalone(
            tmp_path / "airflow",
            dags_folder=dags,
            env={**registered.env, **collector.variables, "AIRFLOW__TRACES__OTEL_ON": "True"},
            settings={"memwal": {"local_below_bytes": "0"}},
        ) as airflow,
    ):
        run_id = airflow.trigger(DAG_ID, {"jobs": ["merge"]})
        assert airflow.wait_run(DAG_ID, run_id, timeout=400) == "success"
        # The worker sends the span of a task when its process ends.
        until(lambda: spans(collector, "worker.merge"))
        (worker,) = spans(collector, "worker.merge")
        upserts = spans(collector, "memwal.merge.upsert")
    by_id = {one.span_id: one for one in collector.spans}
    assert upserts
    for upsert in upserts:
        above, line = upsert, []
        while above.parent_span_id in by_id:
            above = by_id[above.parent_span_id]
            line.append(above.name)
        assert upsert.trace_id == worker.trace_id
        assert line[:2] == ["memwal.task", "memwal.application"]
        assert "worker.merge" in line
