"""Request for a job, the spec that it is resolved into, and the reason when a job is skipped."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.jobs.arguments import to_arguments
from memwal.jobs.options import JobOptions, MergeOptions

if TYPE_CHECKING:
    from memwal.catalog.records import ManagedTable
    from memwal.jobs.due import Due


class SkipReason(StrEnum):
    """Reason for skipping a job."""

    NOT_DUE = "not due"
    QUIET = "quiet hours"
    AT_WORK = "at work"
    HELD = "held"
    DRY_RUN = "dry run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A job that was not done, and need not be tried again at once.

    Attributes
    ----------
    job, table : str
        Which job of which managed table.
    reason_code : SkipReason
    reason : str
        The same for people, with figures.
    """

    job: str
    table: str
    reason_code: SkipReason
    reason: str

    def __str__(self) -> str:
        return f"{self.job} of {self.table} skipped: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "job": self.job,
            "table": self.table,
            "skipped": self.reason_code.value,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What the caller of :func:`memwal.fleet.run_job` asks for.

    Attributes
    ----------
    table : str
        Name of the managed table.
    job : str
        One of :data:`memwal.jobs.due.JOBS`.
    force : bool, default False
        Do it now: due or not, in quiet hours, and also the regions that are held.
    dry_run : bool, default False
        Change nothing: a collection counts, other jobs are skipped with what they would do.
    regions : collection of UUID or None
        Merge only these, as far as they are due.
    index : str or None
        Build only this index, under a lease of its own: several can be built at once. It does not
        keep a build of all of them from going on beside it, which costs work and nothing else.
    max_tasks : int or None
        Into how many tasks it is divided at most; None leaves that to what runs the job.
    run_bytes : int or None
        Most bytes that a merge takes in, beside the policy's ``merge_run_bytes``.
    due : Due or None
        What the caller knows to be due; by default the table's status is held against its policy.
    wait : timedelta or None
        How long to wait when the job is being run already. None does not wait.
    """

    table: str
    job: str
    _: KW_ONLY
    force: bool = False
    dry_run: bool = False
    regions: Collection[UUID] | None = None
    index: str | None = None
    max_tasks: int | None = None
    run_bytes: int | None = None
    due: Due | None = None
    wait: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job that is to run, with all of its options.

    Attributes
    ----------
    job : str
        One of :data:`memwal.jobs.due.JOBS`.
    table : ManagedTable
    options : JobOptions
        Options of this job, from the policy of the table and from the request.
    """

    job: str
    table: ManagedTable
    options: JobOptions

    @property
    def regions(self) -> tuple[UUID, ...] | None:
        """The regions that a merge is restricted to; None for all, and for other jobs."""
        if isinstance(self.options, MergeOptions) and self.options.regions is not None:
            return tuple(self.options.regions)
        return None

    def arguments(self) -> list[str]:
        """Return the arguments of ``spark_apps/{job}.py``, without table and credentials."""
        return to_arguments(self.options)
