"""The metrics, as Markdown: name, instrument, unit and meaning of each, by their source."""

from __future__ import annotations

from typing import Final

from memwal.exporter import collector
from memwal.exporter.metrics import INDEX_GAUGES, TABLE_GAUGES
from memwal.jobs.metrics import JOB_CONFLICTS, JOB_DURATION, JOB_RUNS, JOB_SUMS
from memwal.telemetry import MetricDefinition
from memwal.writer.metrics import COUNTERS, GAUGES, HISTOGRAMS

Metrics = tuple[tuple[MetricDefinition, str], ...]

WRITERS: Final[Metrics] = (
    *((metric, "counter") for metric in COUNTERS),
    *((metric, "gauge" if metric.largest else "up-down counter") for metric in GAUGES),
    *((metric, "histogram") for metric in HISTOGRAMS),
)
JOBS: Final[Metrics] = (
    (JOB_RUNS, "counter"),
    *((metric, "counter") for metric in JOB_SUMS),
    (JOB_CONFLICTS, "counter"),
    (JOB_DURATION, "histogram"),
)
TABLES: Final[Metrics] = (
    *((metric, "gauge") for metric in TABLE_GAUGES),
    *((metric, "gauge") for metric in INDEX_GAUGES),
    (collector.TABLE_HEALTH, "gauge"),
    (collector.TABLE_INFO, "gauge"),
    (collector.REGION_CLAIMS, "counter"),
    (collector.JOB_SUCCESS_AGE, "gauge"),
    (collector.JOB_ATTEMPTS, "gauge"),
    (collector.JOB_FAILING, "gauge"),
    (collector.JOB_RUNNING, "gauge"),
    (collector.CATALOG_UP, "gauge"),
    (collector.CATALOG_READ, "gauge"),
)


def markdown() -> str:
    """A section for each source."""
    sources = {"Writers": WRITERS, "Jobs": JOBS, "Tables": TABLES}
    return "\n".join(_section(title, metrics) for title, metrics in sources.items())


def _section(title: str, metrics: Metrics) -> str:
    lines = [f"## {title}\n", "| name | instrument | unit | meaning |", "|---|---|---|---|"]
    for metric, kind in metrics:
        lines.append(
            f"| `{metric.name}` | {kind} | `{metric.unit or '1'}` | {metric.description} |"
        )
    return "\n".join([*lines, ""])
