"""The tables of docs/metrics.md say what the code says."""

from __future__ import annotations

from pathlib import Path

from memwal.telemetry import attributes, exposition
from memwal.telemetry.exposition import prometheus_name
from memwal.telemetry.job_list import JOB_CONFLICTS, JOB_DURATION, JOB_RUNS, JOB_SUMS
from memwal.telemetry.table_list import INDEX_GAUGES, TABLE_GAUGES
from memwal.writer.metric_list import HISTOGRAMS, LEVELS, SUMS, Metric

TEXT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()

PROCESS: list[tuple[Metric, str]] = [
    (JOB_RUNS, "counter"),
    *((one, "counter") for one in JOB_SUMS),
    (JOB_CONFLICTS, "counter"),
    (JOB_DURATION, "histogram"),
]
SINGLE: list[tuple[Metric, str]] = [
    (exposition.TABLE_INFO, "gauge"),
    (exposition.CATCHUP_AGE, "gauge"),
    (exposition.REGION_CLAIMS, "counter"),
    (exposition.MOST_CLAIMS, "gauge"),
    (exposition.JOB_SUCCESS_AGE, "gauge"),
    (exposition.JOB_ATTEMPTS, "gauge"),
    (exposition.JOB_RUNNING, "gauge"),
    (exposition.CATALOG_UP, "gauge"),
    (exposition.CATALOG_READ, "gauge"),
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


def line(metric: Metric, kind: str) -> str:
    return f"| `{metric.name}` | {kind} | `{metric.unit or '1'}` | {metric.description} |"


def test_jobs() -> None:
    assert lines("Jobs") == [line(metric, kind) for metric, kind in PROCESS]


def test_tables() -> None:
    assert lines("Tables") == [line(metric, kind) for metric, kind in ENDPOINT]


def test_attributes() -> None:
    names = {value for name, value in vars(attributes).items() if name.isupper()}
    assert all(f"`{name}`" in TEXT for name in names)


def test_names_are_said_once() -> None:
    metrics = [*SUMS, *LEVELS, *HISTOGRAMS, *(metric for metric, _ in (*PROCESS, *ENDPOINT))]
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    assert len({prometheus_name(metric) for metric in metrics}) == len(names)


def test_nothing_is_left_out() -> None:
    known = {metric for metric, _ in (*PROCESS, *ENDPOINT)}
    assert {one for one in vars(exposition).values() if isinstance(one, Metric)} <= known
