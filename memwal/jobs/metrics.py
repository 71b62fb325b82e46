"""OpenTelemetry metrics of the jobs that this process runs or records.

Only the API of OpenTelemetry is used: the process's MeterProvider decides where measurements go.
Without one, they are dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry import metrics
from opentelemetry.metrics import Meter

from memwal.jobs.job import JobRun
from memwal.telemetry import MetricDefinition
from memwal.telemetry.spans import JOB, OUTCOME, TABLE, TABLE_URI, suppress_telemetry_errors


@dataclass(frozen=True, slots=True)
class RunSum(MetricDefinition):
    """A counter to which each ended run adds ``of(run)``; None adds nothing."""

    of: Callable[[JobRun], float | None]


def seconds(run: JobRun) -> float | None:
    """Return the duration of a run; None while it is running."""
    if run.finished_at is None:
        return None
    return max(0.0, (run.finished_at - run.started_at).total_seconds())


def _of_result(name: str) -> Callable[[JobRun], float | None]:
    """Return a function that reads a metric of the result of a run."""
    return lambda run: ((run.result or {}).get("metrics") or {}).get(name)


JOB_RUNS = RunSum("memwal.job.runs", "{run}", "Runs of a job that ended.", lambda run: 1)

JOB_SUMS = (
    RunSum("memwal.job.rows", "{row}", "Rows that runs worked on.", lambda run: run.rows),
    RunSum(
        "memwal.job.bytes",
        "By",
        "Bytes that runs worked on: of a merge in memory, of a collection what it freed.",
        lambda run: run.bytes,
    ),
    RunSum(
        "memwal.job.read",
        "By",
        "Bytes that merges read of base table and indexes.",
        _of_result("bytes_read"),
    ),
    RunSum(
        "memwal.job.written",
        "By",
        "Bytes that merges wrote to the base table.",
        _of_result("bytes_written"),
    ),
    RunSum(
        "memwal.job.commits",
        "{commit}",
        "Commits to the base table.",
        lambda run: (run.result or {}).get("commits"),
    ),
)

JOB_DURATION = MetricDefinition("memwal.job.duration", "s", "Time of one run of a job.")

JOB_CONFLICTS = MetricDefinition(
    "memwal.job.conflicts", "{conflict}", "Tries of a merge's commit that met another commit."
)

DURATION_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
"""Seconds."""


class JobMetrics:
    """Instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        def counter(metric: MetricDefinition) -> metrics.Counter:
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

    @suppress_telemetry_errors()
    def ended(self, run: JobRun) -> None:
        """Count a run of a managed table that ended, whether it succeeded or not."""
        attributes = {TABLE: run.table, JOB: run.job}
        self._runs.add(1, {**attributes, OUTCOME: run.state.value})
        for total, counter in self._sums:
            amount = total.of(run)
            if amount:
                counter.add(amount, attributes)
        duration = seconds(run)
        if duration is not None:
            self._duration.record(duration, attributes)

    @suppress_telemetry_errors()
    def conflict(self, uri: str) -> None:
        """Count a merge commit that met another commit."""
        self._conflicts.add(1, {TABLE_URI: uri, JOB: "merge"})


@functools.cache
def job_metrics() -> JobMetrics:
    """Return the metrics of this process, bound to its current or later MeterProvider."""
    return JobMetrics(metrics.get_meter("memwal"))
