"""Definition of a metric."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Name, unit and meaning of a metric."""

    name: str
    unit: str
    description: str
