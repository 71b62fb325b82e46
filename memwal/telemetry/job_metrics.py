"""OpenTelemetry metrics of the jobs that this process runs or records.

Only the API is used: where the numbers go is for the process's MeterProvider to say. While there is
none, they go nowhere and are not kept.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from opentelemetry import metrics
from opentelemetry.metrics import Meter

from memwal.telemetry.attributes import JOB, OUTCOME, TABLE, TABLE_URI
from memwal.telemetry.harmless import harmless
from memwal.telemetry.job_list import (
    DURATION_BUCKETS,
    JOB_CONFLICTS,
    JOB_DURATION,
    JOB_RUNS,
    JOB_SUMS,
    seconds,
)
from memwal.writer.metric_list import Metric

if TYPE_CHECKING:
    from memwal.catalog.records import JobRun


class JobMetrics:
    """The instruments of one meter.

    Parameters
    ----------
    meter : opentelemetry.metrics.Meter
    """

    def __init__(self, meter: Meter) -> None:
        def counter(metric: Metric) -> metrics.Counter:
            return meter.create_counter(metric.name, metric.unit, metric.description)

        self._runs = counter(JOB_RUNS)
        self._sums = [(total, counter(total)) for total in JOB_SUMS]
        self._conflicts = counter(JOB_CONFLICTS)
        self._duration = meter.create_histogram(
            JOB_DURATION.name,
            JOB_DURATION.unit,
            JOB_DURATION.description,
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        )

    @harmless()
    def ended(self, run: JobRun) -> None:
        """Count a run of a managed table that ended, one way or another."""
        attributes = {TABLE: run.table, JOB: run.job}
        self._runs.add(1, {**attributes, OUTCOME: run.state.value})
        for total, counter in self._sums:
            amount = total.of(run)
            if amount:
                counter.add(amount, attributes)
        took = seconds(run)
        if took is not None:
            self._duration.record(took, attributes)

    @harmless()
    def conflict(self, uri: str) -> None:
        """Count a commit of a merge that has to be tried again."""
        self._conflicts.add(1, {TABLE_URI: uri, JOB: "merge"})


@functools.cache
def job_metrics() -> JobMetrics:
    """The metrics of this process, given to whatever MeterProvider it has or will have."""
    return JobMetrics(metrics.get_meter("memwal"))
