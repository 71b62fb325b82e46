"""Spans and metric definitions over OpenTelemetry's API, which reads and writes do not need.

Metrics are in :mod:`memwal.writer.metrics`, :mod:`memwal.jobs.metrics` and
:mod:`memwal.exporter.metrics`. :mod:`memwal.spark.runner` sets up OpenTelemetry's SDK in the
programs of memwal if the environment configures it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Name, unit and meaning of a metric."""

    name: str
    unit: str
    description: str
