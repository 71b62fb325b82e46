"""Name, unit and meaning of a metric."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.telemetry.spans import REGION_ID as REGION_ID
from memwal.telemetry.spans import TABLE_URI as TABLE_URI


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Name, unit and meaning of a metric."""

    name: str
    unit: str
    description: str
