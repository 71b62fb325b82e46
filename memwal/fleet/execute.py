"""Execute a job spec in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from memwal.fleet.job_spec import JobSpec
from memwal.jobs.job import Guard, JobResult, TaskRunner, run_in_process
from memwal.jobs.options import RunOptions

if TYPE_CHECKING:
    from memwal.table import Table

JobExecutor = Callable[[JobSpec, Guard], JobResult]
"""Executes a job spec, calling the guard whenever it can."""


def run_locally(
    table: Table, spec: JobSpec, *, run: TaskRunner = run_in_process, guard: Guard | None = None
) -> JobResult:
    """Execute a job spec, with its tasks on a runner."""
    options = spec.options
    if isinstance(options, RunOptions):
        options = replace(options, run=run, guard=guard)
    return _entry_points()[spec.job](table.location, options)


def _entry_points() -> dict[str, Callable[..., JobResult]]:
    # Lance is loaded when a job is run, and not before.
    from memwal.jobs.gc import collect_garbage
    from memwal.jobs.index.job import build_indexes
    from memwal.jobs.merge.job import merge
    from memwal.jobs.table.compact import compact
    from memwal.jobs.table.quality_check import check_quality
    from memwal.jobs.table.snapshot import build_snapshot

    return {
        "merge": merge,
        "index": build_indexes,
        "compact": compact,
        "snapshot": build_snapshot,
        "gc": collect_garbage,
        "quality": check_quality,
    }
