"""The names, units and meanings of the metrics of jobs: what docs/metrics.md shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memwal.writer.metric_list import Metric

if TYPE_CHECKING:
    from memwal.catalog.records import JobRun


@dataclass(frozen=True, slots=True)
class RunSum(Metric):
    """A counter that every run which ended adds to; None adds nothing."""

    of: Callable[[JobRun], float | None]


def seconds(run: JobRun) -> float | None:
    """How long a run took; None while it goes on."""
    if run.finished_at is None:
        return None
    return max(0.0, (run.finished_at - run.started_at).total_seconds())


def _commits(run: JobRun) -> float | None:
    found = (run.result or {}).get("commits")
    return float(found) if found else None


JOB_RUNS = RunSum("memwal.job.runs", "{run}", "Runs of a job that ended.", lambda run: 1)

JOB_SUMS = (
    RunSum("memwal.job.rows", "{row}", "Rows that runs worked on.", lambda run: run.rows),
    RunSum(
        "memwal.job.bytes",
        "By",
        "Bytes that runs worked on: of a merge in memory, of a collection what it freed.",
        lambda run: run.bytes,
    ),
    RunSum("memwal.job.commits", "{commit}", "Commits to the base table.", _commits),
)

JOB_DURATION = Metric("memwal.job.duration", "s", "Time of one run of a job.")

JOB_CONFLICTS = Metric(
    "memwal.job.conflicts", "{conflict}", "Tries of a merge's commit that met another commit."
)

DURATION_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
"""Seconds."""
