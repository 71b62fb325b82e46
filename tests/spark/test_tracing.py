"""A trace goes on in another process: in a Spark application, and in its workers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.data.tables import MakeTable, base_state, numbered
from support.metrics.otel_collector import Collector, collecting
from support.processes import python_environment, run_python

from memwal.jobs.job import run_in_process
from memwal.spark.runner import trace_environment, with_trace_context
from memwal.spark.session import ensure_java
from memwal.telemetry.spans import span

APPS = Path(__file__).resolve().parents[2] / "spark_apps"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def double(task: int) -> int:
    return 2 * task


class TestWithoutATrace:
    def test_a_child_is_told_nothing(self) -> None:
        assert trace_environment() == {}

    def test_tasks_are_as_they_were(self) -> None:
        given = []

        def run(tasks: Any, function: Any) -> list[Any]:
            given.append(function)
            return run_in_process(tasks, function)

        assert with_trace_context(run)([1, 2], double) == [2, 4]
        assert given == [double]

    def test_of_a_wrong_environment_nothing_is_traced(self) -> None:
        code = "from memwal.spark.runner import start_tracing; start_tracing(); print(2)"
        done = run(code, {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"})
        assert done.stdout == "2\n", done.stderr


class TestWithATrace:
    def test_a_child_is_told(self, traced: Any) -> None:
        with span("memwal.job") as current:
            found = trace_environment()
        context = current.get_span_context()
        ids = f"00-{context.trace_id:032x}-{context.span_id:016x}"
        assert found == {"TRACEPARENT": f"{ids}-{context.trace_flags:02x}"}

    def test_a_program_goes_on_with_it(self, collector: Collector) -> None:
        code = """
from memwal.jobs.job import run_in_process
from memwal.storage.location import TableLocation
from memwal.spark.runner import application_span, with_trace_context

def double(task):
    return 2 * task

with application_span("merge", TableLocation("/lake/flights")):
    print(with_trace_context(run_in_process)([1, 2], double))
"""
        traceparent = {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}
        done = run(code, {**collector.variables, **traceparent})
        assert done.stdout == "[2, 4]\n", done.stderr
        by_name: dict[str, list[Span]] = {}
        for one in collector.spans:
            by_name.setdefault(one.name, []).append(one)
        (application,) = by_name["memwal.application"]
        assert application.trace_id.hex() == TRACE
        assert application.parent_span_id.hex() == PARENT
        assert len(by_name["memwal.task"]) == 2
        for task in by_name["memwal.task"]:
            assert task.trace_id.hex() == TRACE
            assert task.parent_span_id == application.span_id

    @pytest.mark.parametrize(
        "variables",
        [{}, {"OTEL_TRACES_EXPORTER": "none", "TRACEPARENT": f"00-{TRACE}-{PARENT}-01"}],
    )
    def test_nothing_is_set_up_unasked(self, variables: dict[str, str]) -> None:
        code = """
import sys
from memwal.storage.location import TableLocation
from memwal.spark.runner import application_span
with application_span("merge", TableLocation("/lake/flights")):
    print(sorted(name for name in sys.modules if name.startswith("opentelemetry.sdk")))
"""
        assert run(code, variables).stdout == "[]\n"

    def test_an_exporter_that_is_not_there(self) -> None:
        code = """
from memwal.storage.location import TableLocation
from memwal.spark.runner import application_span
with application_span("merge", TableLocation("/lake/flights")):
    print("done")
"""
        done = run(code, {"OTEL_TRACES_EXPORTER": "carrier-pigeon"})
        assert done.stdout == "done\n"
        assert "'carrier-pigeon'" in done.stderr


@pytest.mark.slow
def test_one_trace_from_the_task_to_the_workers_of_spark(
    collector: Collector, make_table: MakeTable
) -> None:
    table = make_table(buckets=2)
    table.upsert(numbered(0, 50))
    environment = {
        **os.environ,
        **collector.variables,
        "TRACEPARENT": f"00-{TRACE}-{PARENT}-01",
    }
    ensure_java(environment)
    command = [sys.executable, str(APPS / "merge.py"), "--table", table.uri]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(base_state(table)) == 50
    spans = {one.name: one for one in collector.spans}
    assert {one.trace_id.hex() for one in collector.spans} == {TRACE}
    application, task = spans["memwal.application"], spans["memwal.task"]
    upsert = spans["memwal.merge.upsert"]
    assert application.parent_span_id.hex() == PARENT
    assert task.parent_span_id == application.span_id
    assert upsert.parent_span_id == task.span_id


def run(code: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program whose environment has these variables of OpenTelemetry, and no others."""
    return run_python(code, env=python_environment(variables, without=("OTEL_", "TRACE")))
