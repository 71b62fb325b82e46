"""The tables of docs/metrics.md say what the code says."""

from __future__ import annotations

from pathlib import Path

from memwal.exporter import collector
from memwal.exporter.collector import prometheus_name
from memwal.exporter.metrics import INDEX_GAUGES, TABLE_GAUGES
from memwal.jobs.metrics import JOB_CONFLICTS, JOB_DURATION, JOB_RUNS, JOB_SUMS
from memwal.telemetry import MetricDefinition, spans
from memwal.writer.metrics import COUNTERS, GAUGES, HISTOGRAMS

TEXT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()

PROCESS: list[tuple[MetricDefinition, str]] = [
    (JOB_RUNS, "counter"),
    *((one, "counter") for one in JOB_SUMS),
    (JOB_CONFLICTS, "counter"),
    (JOB_DURATION, "histogram"),
]
SINGLE: list[tuple[MetricDefinition, str]] = [
    (collector.TABLE_HEALTH, "gauge"),
    (collector.TABLE_INFO, "gauge"),
    (collector.CATCHUP_AGE, "gauge"),
    (collector.REGION_CLAIMS, "counter"),
    (collector.MOST_CLAIMS, "gauge"),
    (collector.JOB_SUCCESS_AGE, "gauge"),
    (collector.JOB_ATTEMPTS, "gauge"),
    (collector.JOB_FAILING, "gauge"),
    (collector.JOB_RUNNING, "gauge"),
    (collector.CATALOG_UP, "gauge"),
    (collector.CATALOG_READ, "gauge"),
]
ENDPOINT = [
    *((one, "gauge") for one in TABLE_GAUGES),
    *((one, "gauge") for one in INDEX_GAUGES),
    *SINGLE,
]


def lines(section: str) -> list[str]:
    """Lines of the table below a heading."""
    below = TEXT.split(f"## {section}\n")[1].split("\n## ")[0]
    return [line for line in below.splitlines() if line.startswith("| `memwal.")]


def line(metric: MetricDefinition, kind: str) -> str:
    return f"| `{metric.name}` | {kind} | `{metric.unit or '1'}` | {metric.description} |"


def test_jobs() -> None:
    assert lines("Jobs") == [line(metric, kind) for metric, kind in PROCESS]


def test_tables() -> None:
    assert lines("Tables") == [line(metric, kind) for metric, kind in ENDPOINT]


def test_attributes() -> None:
    values = {value for name, value in vars(spans).items() if name.isupper()}
    names = {value for value in values if value.startswith("memwal.")}
    assert all(f"`{name}`" in TEXT for name in names)


def test_names_are_said_once() -> None:
    metrics = [*COUNTERS, *GAUGES, *HISTOGRAMS, *(metric for metric, _ in (*PROCESS, *ENDPOINT))]
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    assert len({prometheus_name(metric) for metric in metrics}) == len(names)


def test_nothing_is_left_out() -> None:
    known = {metric for metric, _ in (*PROCESS, *ENDPOINT)}
    assert {one for one in vars(collector).values() if isinstance(one, MetricDefinition)} <= known
