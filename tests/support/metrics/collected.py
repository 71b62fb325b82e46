"""Metrics as OpenTelemetry's own SDK collects them."""

from typing import Any, Literal

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

Points = dict[str, dict[tuple[tuple[str, Any], ...], Any]]


class Collected:
    """What an exporter would be given."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        self.meter = self.provider.get_meter("memwal")

    def points(self, histogram: Literal["count", "sum"] = "count") -> Points:
        """Value, or that figure of a histogram, by metric and attributes."""
        data = self._reader.get_metrics_data()
        return {
            metric.name: {
                tuple(sorted((point.attributes or {}).items())): getattr(
                    point, histogram if isinstance(point, HistogramDataPoint) else "value"
                )
                for point in metric.data.data_points
            }
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
