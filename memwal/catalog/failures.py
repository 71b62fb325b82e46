"""Lasting failures of a table's maintenance: their begin, reason and remedy.

The page, the command line, the events and the metrics all show these. A failure lasts until the
same thing succeeds once: a job, the reading of the status, or the building of the DAG.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final

from memwal.catalog.records import (
    DAG_JOB,
    LOG_JOB,
    PROGRESS_JOB,
    SENSOR_JOB,
    START_JOB,
    STATUS_JOB,
    DueJob,
    ErrorKind,
    ManagedTable,
    error_kind,
)
from memwal.jobs.job import JobRun, RunState
from memwal.util.records import JsonRecord

if TYPE_CHECKING:
    from memwal.catalog.backoff import FailedJob, SkippedRegionRecord
    from memwal.catalog.history import LatestRuns

# Name under which an unreadable policy is listed, among the names of jobs.
POLICY_JOB: Final = "policy"
# Name under which the skipped regions are listed, likewise.
REGION_JOB: Final = "region"
# Folder of the runbooks in the documentation.
RUNBOOKS: Final = "docs/runbooks"

_DIED = "its process died"
# Jobs that are due for work that they left undone, however they ended.
_DUE_UNTIL_DONE: Final = ("merge", "index")


@dataclass(frozen=True, slots=True)
class Advice:
    """An instruction for one kind of failure, and the section of the runbooks about it."""

    action: str
    runbook: str


_FAILING = "MemwalJobFailing.md"
_DEFAULT: Final = Advice(
    "follow the message; if it does not help, look at the log of the run", f"{_FAILING}#what-to-do"
)
_WENT_BACK: Final = Advice(
    "decide whether the rows of the base table stay, or generations are merged again: memwal "
    "recover TABLE --after-restore",
    "progress-lost.md",
)
ADVICE_BY_JOB: Final[Mapping[str, Advice]] = {
    LOG_JOB: Advice(
        "restore the entry from a backup, or abandon the region's log", "corrupt-log-entry.md"
    ),
    PROGRESS_JOB: _WENT_BACK,
    POLICY_JOB: Advice("set the policy anew", f"{_FAILING}#the-policy-cannot-be-read"),
    REGION_JOB: Advice(
        "repair what the reason names, and then run memwal jobs retry",
        "MemwalRegionSkipped.md#what-to-do",
    ),
    DAG_JOB: Advice(
        "correct what the message names, in the policy or in the DAG file",
        f"{_FAILING}#the-dag-cannot-be-built",
    ),
    START_JOB: Advice(
        "unpause the DAGs memwal_due and that of the table, and start what of Airflow is down",
        "MemwalNotStarted.md#what-to-do",
    ),
    SENSOR_JOB: Advice(
        "see whether a triggerer runs and has a seat left, and what the sensor waited for",
        "MemwalSensorTimeout.md#what-to-do",
    ),
}
ADVICE_BY_ERROR: Final[Mapping[ErrorKind, Advice]] = {
    ErrorKind.ACCESS: Advice(
        "renew the credentials, or extend their rights", f"{_FAILING}#credentials"
    ),
    ErrorKind.FULL: Advice("free space by merging and collecting garbage", "disk-full.md"),
    ErrorKind.LIMIT: Advice(
        "raise the limit of open files, memory or threads, or let the process do less at once",
        f"{_FAILING}#the-process-died",
    ),
    ErrorKind.UNAVAILABLE: Advice(
        "bring back what the message names: the store, the catalog or the table's disk",
        f"{_FAILING}#the-store-does-not-answer",
    ),
    ErrorKind.ABSENT: Advice(
        "check whether the table is still at its address", f"{_FAILING}#the-table-is-not-found"
    ),
    ErrorKind.NEWER_FORMAT: Advice(
        "upgrade memwal and pylance where the job runs", f"{_FAILING}#a-newer-format"
    ),
    ErrorKind.CONFLICT: Advice(
        "wait for the next try; if it lasts, find the other program that writes",
        f"{_FAILING}#conflicts",
    ),
    ErrorKind.DAMAGED: Advice(
        "keep every object, run memwal verify, and follow its findings", f"{_FAILING}#damaged-data"
    ),
    ErrorKind.WENT_BACK: _WENT_BACK,
    ErrorKind.SPARK: Advice("look at the log of the Spark application", f"{_FAILING}#spark"),
    ErrorKind.SPARK_SERVER: Advice(
        "start the Spark Connect server, or correct its address or its token",
        f"{_FAILING}#the-spark-server-does-not-answer",
    ),
    ErrorKind.DIED: Advice(
        "give the job more memory, or smaller commits", f"{_FAILING}#the-process-died"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError(JsonRecord):
    """Failure of a job of a table that has not succeeded since."""

    job: str
    """Name of the job; ``status`` for reading the status of the table, ``log`` for a log that lacks
    an entry, ``progress`` for a base table that went back behind merged generations, ``dag`` for
    building the DAG in Airflow, ``not_started`` for starting its runs, ``sensor_timeout`` for a
    sensor that ended without an answer, ``policy`` for reading the policy, ``region`` for the
    regions that merges skip."""
    reason: str
    """The latest error, with its type. Of several skipped regions, that of the first one."""
    at: datetime
    """When the last try ended, in UTC, or since when the job fails if only that is recorded."""
    since: datetime
    """Since when the job fails, in UTC."""
    error_type: ErrorKind | None = None
    """Its kind, by which the advice is chosen; None if it is not recorded."""
    attempts: int | None = None
    """How often it failed; None if that is not recorded."""
    run_id: int | None = None
    """Number of the latest failed run; None if no run was started."""
    next_try_at: datetime | None = None
    """When it is tried again, in UTC; in the past if that waits for its turn. None if that is not
    recorded."""

    json_properties: ClassVar[tuple[str, ...]] = ("action", "runbook")

    @property
    def action(self) -> str:
        """The instruction for this kind of failure."""
        return self._advice.action

    @property
    def runbook(self) -> str:
        """Path of the runbook in the documentation, with the section of this kind of failure."""
        return f"{RUNBOOKS}/{self._advice.runbook}"

    @property
    def summary(self) -> str:
        """One line: the failing job and the reason."""
        tells_all = self.job in (REGION_JOB, START_JOB, SENSOR_JOB)
        return self.reason if tells_all else f"{self.job} fails: {self.reason}"

    @property
    def _advice(self) -> Advice:
        by_error = ADVICE_BY_ERROR.get(self.error_type) if self.error_type is not None else None
        return ADVICE_BY_JOB.get(self.job) or by_error or _DEFAULT


def job_errors(
    table: ManagedTable,
    runs: LatestRuns | None,
    failed_jobs: Iterable[FailedJob],
    skipped_regions: Sequence[SkippedRegionRecord] = (),
    *,
    due: Iterable[DueJob] = (),
    polled_at: datetime | None = None,
) -> tuple[JobError, ...]:
    """Return one error for each failing job of a table, and one for its regions; newest first.

    ``runs`` are the latest runs of the table, ``failed_jobs`` its recorded failures, and
    ``skipped_regions`` the regions that merges skip. A run that has not ended yet neither adds nor
    ends an error. ``due`` are the jobs that were due when the process that watches the table read
    it, at ``polled_at``. A merge or index build whose process died before, and that is not due any
    more, had done its work.
    """
    undone = {job.job for job in due}
    errors = {
        failed.job: JobError(
            job=failed.job,
            reason=failed.reason,
            at=failed.since,
            since=failed.since,
            error_type=failed.error_type,
            attempts=failed.attempts,
            next_try_at=failed.next_try_at,
        )
        for failed in failed_jobs
    }
    for job, first in (runs.failing if runs is not None else {}).items():
        last = runs.ended[job] if runs is not None else first
        recorded = errors.get(job)
        was_done = (
            table.starts_when_due
            and last.state is RunState.ABANDONED
            and recorded is None
            and job in _DUE_UNTIL_DONE
            and job not in undone
            and polled_at is not None
            and polled_at > _end(last)
        )
        if was_done:
            continue
        errors[job] = JobError(
            job=job,
            reason=last.error or _DIED,
            error_type=ErrorKind.DIED if last.error is None else error_kind(last.error_type),
            at=_end(last),
            since=min(_end(first), recorded.since) if recorded is not None else _end(first),
            attempts=recorded.attempts if recorded is not None else None,
            run_id=last.run_id,
            next_try_at=recorded.next_try_at if recorded is not None else None,
        )
    if skipped_regions:
        errors[REGION_JOB] = _region_error(skipped_regions)
    if table.problem is not None:
        # The status was not read for the same reason.
        errors.pop(STATUS_JOB, None)
        errors[POLICY_JOB] = JobError(
            job=POLICY_JOB, reason=table.problem, at=table.updated_at, since=table.updated_at
        )
    return tuple(sorted(errors.values(), key=lambda error: error.at, reverse=True))


def _region_error(skipped: Sequence[SkippedRegionRecord]) -> JobError:
    first = min(skipped, key=lambda record: (record.since, record.region_id))
    regions = "1 region is" if len(skipped) == 1 else f"{len(skipped)} regions are"
    return JobError(
        job=REGION_JOB,
        reason=(
            f"{regions} skipped: {first.region_id} from generation {first.generation}: "
            f"{first.reason}"
        ),
        at=first.since,
        since=first.since,
        attempts=first.attempts,
        next_try_at=min(record.next_try_at for record in skipped),
    )


def _end(run: JobRun) -> datetime:
    return run.finished_at or run.heartbeat_at or run.started_at
