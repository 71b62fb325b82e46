"""Request for a job, the spec that it is resolved into, and its execution in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

from memwal.boundary.public import public
from memwal.catalog.records import ManagedTable
from memwal.jobs.arguments import to_arguments
from memwal.jobs.due import Due
from memwal.jobs.job import Guard, JobResult, TaskRunner, run_in_process
from memwal.jobs.options import JobOptions, MergeOptions, RunOptions
from memwal.jobs.progress import ProgressOption
from memwal.util.clock import Duration
from memwal.util.records import JsonObject, JsonRecord

if TYPE_CHECKING:
    from memwal.fleet.tables import Survey
    from memwal.jobs.status import TableStatus
    from memwal.table import Table


class SkipReason(StrEnum):
    """Reason for skipping a job."""

    NOT_DUE = "not due"
    QUIET = "quiet hours"
    RUNNING = "running"
    BACKOFF = "backoff"
    DRY_RUN = "dry run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(JsonRecord):
    """A job that was not done, and need not be tried again at once."""

    job: str
    """The job."""
    table: str
    """Name of the managed table."""
    reason_code: SkipReason
    """Code for programs."""
    reason: str
    """The same for people, with figures."""

    def __str__(self) -> str:
        return f"{self.job} of {self.table} skipped: {self.reason}"

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {
            "job": self.job,
            "table": self.table,
            "skipped": self.reason_code.value,
            "reason": self.reason,
        }


@public
@dataclass(frozen=True, slots=True)
class JobRequest:
    """Request of a caller of :func:`memwal.fleet.run_job`."""

    table: str
    """Name of the managed table."""
    job: str
    """One of :data:`memwal.jobs.due.JOBS`."""
    _: KW_ONLY
    force: bool = False
    """Run it now: due or not, in quiet hours, and also the regions that are skipped."""
    dry_run: bool = False
    """Change nothing: a collection counts, other jobs are skipped, and the reason names their work.
    """
    regions: Collection[UUID] | None = None
    """Merge only these, as far as they are due."""
    index: str | None = None
    """Build only this index, under a lease of its own: several can be built at once. A build of all
    indexes may run at the same time, which costs work and nothing else."""
    max_tasks: int | None = None
    """Maximal number of tasks that the job is divided into; None leaves the number to the task
    runner.
    """
    run_bytes: int | None = None
    """Most bytes that a merge takes in, beside the policy's ``merge_run_bytes``."""
    due: Due | None = None
    """Why the job is due, if the caller knows; by default it follows from the table's status and
    policy."""
    survey: Survey | None = None
    """Survey of the table by which it is due. The table is surveyed anew if the job has succeeded
    since, or without one."""
    wait: Duration | None = None
    """How long to wait for the lease if another process runs the job. None does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job that is to run, with all of its options."""

    job: str
    """The job."""
    table: ManagedTable
    """The managed table."""
    options: JobOptions
    """Options of this job, from the policy of the table and from the request."""
    status: TableStatus | None = None
    """Status by which the job is due; None for one that was forced, or whose caller said why it is
    due."""

    @property
    def regions(self) -> tuple[UUID, ...] | None:
        """The regions that a merge is restricted to; None for all, and for other jobs."""
        if isinstance(self.options, MergeOptions) and self.options.regions is not None:
            return tuple(self.options.regions)
        return None

    def arguments(self) -> list[str]:
        """Return the arguments of ``spark_apps/{job}.py``, without table and credentials."""
        return to_arguments(self.options)


# Executes a job spec, calling the guard whenever it can; None leaves the job to this process.
JobExecutor = Callable[[JobSpec, Guard], JobResult | None]


def run_locally(
    table: Table,
    spec: JobSpec,
    *,
    run: TaskRunner = run_in_process,
    guard: Guard | None = None,
    progress: ProgressOption = None,
) -> JobResult:
    """Execute a job spec, with its tasks on a runner."""
    options = spec.options
    if isinstance(options, RunOptions):
        options = replace(options, run=run, guard=guard, progress=progress)
    return _entry_points()[spec.job](table.location, options)


def _entry_points() -> dict[str, Callable[..., JobResult]]:
    # Lance is loaded when a job is run, and not before.
    from memwal.jobs.gc import collect_garbage
    from memwal.jobs.index.job import build_indexes
    from memwal.jobs.merge.job import merge
    from memwal.jobs.table.compact import compact
    from memwal.jobs.table.quality_check import check_quality
    from memwal.jobs.table.recover import recover
    from memwal.jobs.table.snapshot import build_snapshot

    return {
        "recover": recover,
        "merge": merge,
        "index": build_indexes,
        "compact": compact,
        "snapshot": build_snapshot,
        "gc": collect_garbage,
        "quality": check_quality,
    }
