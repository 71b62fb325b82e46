"""Health of managed tables, computed from the catalog without opening tables.

A table can be in several states at once: its health is the worst of them. A state has one name, on
the page, in ``memwal fleet status``, as a label of the metrics, in events, and in the names of its
alert and of its runbook. The states follow from the policy, the latest backlog sample, the failures
that last, the jobs that are due, and the report of Airflow. Without a report (no Airflow, or none
whose API server reaches the catalog), ``run_failed``, ``run_queued`` and ``no_heartbeat`` never
apply.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from memwal.boundary.text import age as shown
from memwal.catalog.failures import RUNBOOKS, JobError
from memwal.catalog.records import (
    SENSOR_JOB,
    START_JOB,
    AirflowProblem,
    AirflowReport,
    BacklogSample,
    DueJob,
    ManagedTable,
)
from memwal.fleet.schedule import interval_seconds
from memwal.jobs.job import RunState
from memwal.jobs.policy import Policy
from memwal.util.records import JsonRecord

if TYPE_CHECKING:
    from memwal.catalog.history import LatestRuns

_REASON_LENGTH = 300
# Longest delay of a run that starts by its schedule, and of the start of a run for a due job.
SCHEDULE_GRACE_SECONDS: Final = 600.0
# An API server reports every 10 s.
REPORT_LIMIT: Final = timedelta(minutes=1)
REPORT_FORGOTTEN: Final = timedelta(days=7)


class Health(StrEnum):
    """State of a table. If several hold, its health is the member declared first."""

    OFF = "off"
    CRITICAL = "critical"
    FAILING = "failing"
    RUN_FAILED = "run_failed"
    NO_HEARTBEAT = "no_heartbeat"
    UNWATCHED = "unwatched"
    NOT_STARTED = "not_started"
    RUN_QUEUED = "run_queued"
    SENSOR_TIMEOUT = "sensor_timeout"
    LATE = "late"
    DUE = "due"
    OK = "ok"

    @property
    def runbook(self) -> str:
        """Path of its runbook in the documentation; empty if nothing is to be done."""
        name = _RUNBOOKS.get(self)
        return "" if name is None else f"{RUNBOOKS}/{name}.md"


_RUNBOOKS: Final = {
    Health.CRITICAL: "MemwalBacklogCritical",
    Health.FAILING: "MemwalJobFailing",
    Health.RUN_FAILED: "MemwalRunFailed",
    Health.NO_HEARTBEAT: "MemwalNoHeartbeat",
    Health.UNWATCHED: "MemwalUnwatched",
    Health.NOT_STARTED: "MemwalNotStarted",
    Health.RUN_QUEUED: "MemwalRunQueued",
    Health.SENSOR_TIMEOUT: "MemwalSensorTimeout",
    Health.LATE: "MemwalBacklogLate",
}
# States that hold whether a job is due or not.
_OF_COMPONENTS: Final = (Health.NO_HEARTBEAT, Health.UNWATCHED)
# States that failures of other things than jobs put a table in.
STATE_OF_JOB: Final = {
    START_JOB: Health.NOT_STARTED,
    SENSOR_JOB: Health.SENSOR_TIMEOUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReason(JsonRecord):
    """A state that a table is in, and why."""

    health: Health
    """The state."""
    text: str
    """The reason, in one line."""
    since: datetime | None = None
    """Since when, in UTC; None if that is not known."""
    runbook: str
    """Path of the runbook in the documentation; empty if nothing is to be done."""


def backlog_age(sample: BacklogSample | None, now: datetime) -> float | None:
    """Return the age of the oldest unmerged generation in seconds; None without a backlog.

    The time since the sample was taken counts as well.
    """
    if sample is None or not sample.generations or sample.oldest_seconds is None:
        return None
    return sample.oldest_seconds + max(0.0, (now - sample.at).total_seconds())


def health_reasons(
    table: ManagedTable,
    sample: BacklogSample | None,
    *,
    now: datetime,
    errors: Sequence[JobError] = (),
    waiting: Sequence[DueJob] = (),
    problems: Iterable[AirflowProblem] = (),
) -> tuple[HealthReason, ...]:
    """Return the states of a table, the worst first; none if all is well.

    Parameters
    ----------
    table : ManagedTable
    sample : BacklogSample, optional
        The latest one.
    now : datetime
        Aware.
    errors : sequence of JobError
        The failures that last, as of :func:`memwal.catalog.failures.job_errors`.
    waiting : sequence of DueJob
        The due jobs that wait for a run, as of :func:`waiting_jobs`.
    problems : iterable of AirflowProblem
        Those of this table, as of :func:`airflow_problems`.
    """
    if not table.enabled:
        return (_reason(Health.OFF, "it is not maintained"),)
    reasons = [
        *_backlog_reasons(table.policy, sample, now),
        *(
            HealthReason(
                health=STATE_OF_JOB.get(error.job, Health.FAILING),
                text=_truncated(error.summary),
                since=error.since,
                runbook=error.runbook,
            )
            for error in errors
        ),
        *(
            _reason(Health(one.state), _truncated(one.reason), one.since)
            for one in problems
            # A run that serves all tables concerns the tables that wait for it.
            if one.table is not None or one.state in _OF_COMPONENTS or waiting
        ),
        *_unwatched_reasons(table, sample, now),
        *_waiting_reasons(table, errors, waiting, now),
    ]
    order = list(Health)
    return tuple(sorted(reasons, key=lambda reason: order.index(reason.health)))


def _reason(state: Health, text: str, since: datetime | None = None) -> HealthReason:
    return HealthReason(health=state, text=text, since=since, runbook=state.runbook)


def _backlog_reasons(
    policy: Policy, sample: BacklogSample | None, now: datetime
) -> Iterator[HealthReason]:
    age = backlog_age(sample, now)
    for limit, state in (
        (policy.critical_seconds, Health.CRITICAL),
        (policy.late_seconds, Health.LATE),
    ):
        if age is not None and age >= limit:
            text = f"the oldest generation waits for {shown(age)}, {state} is {shown(limit)}"
            yield _reason(state, text, now - timedelta(seconds=age - limit))
            return


def _unwatched_reasons(
    table: ManagedTable, sample: BacklogSample | None, now: datetime
) -> Iterator[HealthReason]:
    """Yield why the state of the table is unknown, unless it was polled recently enough.

    A table that could not be read fails, which is another state.
    """
    if sample is None:
        yield _reason(Health.UNWATCHED, "its status has not been read yet", table.created_at)
        return
    limit, silent = watch_limit(table), (now - sample.known_at).total_seconds()
    if limit is not None and silent >= limit:
        text = f"it has not been looked at for {shown(silent)}, the limit is {shown(limit)}"
        yield _reason(Health.UNWATCHED, text, sample.known_at)


def watch_limit(table: ManagedTable) -> float | None:
    """Return the age of the latest status, in seconds, from which a table counts as unwatched.

    None if its schedule tells no interval: it has none, or a cron expression that only Airflow
    reads.
    """
    interval = interval_seconds(table.policy.schedule)
    return None if interval is None else 2 * interval + SCHEDULE_GRACE_SECONDS


def is_unwatched(table: ManagedTable, known_at: datetime | None, now: datetime) -> bool:
    """Return whether the latest status, of ``known_at``, is older than the limit.

    Of a table without a status, which may have been registered just now, its registration counts.
    """
    limit = watch_limit(table)
    return limit is not None and (now - (known_at or table.created_at)).total_seconds() >= limit


def _waiting_reasons(
    table: ManagedTable, errors: Sequence[JobError], waiting: Sequence[DueJob], now: datetime
) -> Iterator[HealthReason]:
    """Yield one reason for the jobs that wait for longer than the schedule, and one for others."""
    if any(error.job == START_JOB for error in errors):
        return
    failing = {error.job for error in errors}
    limit = _start_limit(table)
    groups: defaultdict[Health, list[DueJob]] = defaultdict(list)
    for due in waiting:
        # A failed job is tried again after a pause.
        if due.job not in failing:
            late = limit is not None and (now - due.since).total_seconds() >= limit
            groups[Health.NOT_STARTED if late else Health.DUE].append(due)
    for state, jobs in groups.items():
        first = min(jobs, key=lambda due: due.since)
        names = ", ".join(due.job for due in jobs)
        age = shown(max(0.0, (now - first.since).total_seconds()))
        verb = "is" if len(jobs) == 1 else "are"
        text = f"{names} {verb} due ({first.reason}) and not started for {age}"
        yield _reason(state, _truncated(text), first.since)


def _start_limit(table: ManagedTable) -> float | None:
    """Return the seconds that a due job may wait for its start; None without an interval."""
    if table.starts_when_due:
        return SCHEDULE_GRACE_SECONDS
    interval = interval_seconds(table.policy.schedule)
    return None if interval is None else interval + SCHEDULE_GRACE_SECONDS


def waiting_jobs(due: Iterable[DueJob], runs: LatestRuns | None) -> list[DueJob]:
    """Return the due jobs of a table that no run serves, with the time since when that is so.

    A job that ran since it became due waits since the end of that run: the watcher sees that it is
    not due any more a moment later.
    """
    waiting = []
    for job in due:
        newest = None if runs is None else runs.newest.get(job.job)
        if newest is not None and newest.finished_at is None and newest.state is RunState.RUNNING:
            continue
        ended = newest.finished_at if newest is not None else None
        since = job.since if ended is None else max(job.since, ended)
        waiting.append(replace(job, since=since))
    return waiting


def airflow_problems(
    report: AirflowReport | None, now: datetime
) -> Callable[[ManagedTable], list[AirflowProblem]]:
    """Return a function that gives the problems of a table in the latest report of Airflow.

    A report that is older than :data:`REPORT_LIMIT` says only that its API server is silent, and
    after :data:`REPORT_FORGOTTEN` nothing: then this Airflow is not used any more.
    """
    of_all: list[AirflowProblem] = []
    by_table: defaultdict[str, list[AirflowProblem]] = defaultdict(list)
    if report is not None and REPORT_LIMIT <= now - report.at < REPORT_FORGOTTEN:
        text = (
            f"no API server of Airflow has reported for {shown((now - report.at).total_seconds())}"
        )
        silent = AirflowProblem(
            state=Health.NO_HEARTBEAT.value, table=None, since=report.at, reason=text
        )
        of_all.append(silent)
    elif report is not None and now - report.at < REPORT_LIMIT:
        for problem in report.problems:
            if problem.table is None:
                of_all.append(problem)
            else:
                by_table[problem.table].append(problem)

    def problems_of(table: ManagedTable) -> list[AirflowProblem]:
        common = [
            problem
            for problem in of_all
            if problem.state != Health.UNWATCHED or table.starts_when_due
        ]
        return [*common, *by_table.get(table.name, ())]

    return problems_of


def _truncated(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_LENGTH else f"{line[:_REASON_LENGTH]}…"
