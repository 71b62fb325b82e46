"""Alert conditions of managed tables, computed from the catalog without opening tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from memwal.boundary.text import age as shown
from memwal.catalog.failures import REGION_JOB, RUNBOOKS, JobError
from memwal.catalog.records import BacklogSample, ManagedTable
from memwal.errors import LeaseLostError
from memwal.fleet.health import (
    STATE_OF_JOB,
    Health,
    HealthReason,
    backlog_age,
    is_unwatched,
)
from memwal.fleet.overview import overview
from memwal.jobs.job import JobRun, RunState
from memwal.util.records import JsonRecord

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.backoff import SkippedRegionRecord

# Failed reads after which a generation is reported as damaged, not as unreachable.
POISONED_AFTER: Final = 3
# A job is reported only once it has failed for this long without a success.
RETRY_GRACE: Final = timedelta(minutes=1)
LEASE_LOSS_WINDOW: Final = timedelta(days=1)
# Topic of lease losses, which happen at one moment: no end is reported.
LEASE_TOPIC: Final = "lease"
_FAILURES_READ = 1_000
# The catalog keeps the error of a run as its type and its message.
_LEASE_LOST = f"{LeaseLostError.__name__}: "


class ConditionKind(StrEnum):
    """Kinds of conditions."""

    REGION_SKIPPED = "region_skipped"
    GENERATION_POISONED = "generation_poisoned"
    BACKLOG_LATE = "backlog_late"
    BACKLOG_CRITICAL = "backlog_critical"
    JOB_FAILED = "job_failed"
    LEASE_LOST = "lease_lost"
    RUN_FAILED = "run_failed"
    NO_HEARTBEAT = "no_heartbeat"
    UNWATCHED = "unwatched"
    NOT_STARTED = "not_started"
    RUN_QUEUED = "run_queued"
    SENSOR_TIMEOUT = "sensor_timeout"

    @property
    def is_critical(self) -> bool:
        """True if the condition needs a person immediately."""
        return self in (
            ConditionKind.GENERATION_POISONED,
            ConditionKind.BACKLOG_CRITICAL,
            ConditionKind.NO_HEARTBEAT,
        )


# The states that are conditions by themselves; the others have kinds that say more.
_CONDITION_STATES: Final = frozenset(state for state in Health if state.value in set(ConditionKind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition(JsonRecord):
    """A problem of a managed table."""

    kind: ConditionKind
    """Kind of the problem."""
    table: str
    """Name of the managed table."""
    owner: str
    """Person or team to ask."""
    topic: str
    """``region``, ``backlog``, ``job``, ``lease`` or ``state``."""
    subject: str
    """UUID of the region; empty for the backlog; the job; the kind of a state."""
    mark: str
    """Distinguishes this occurrence from others of its kind."""
    since: datetime
    """When the condition began, in UTC."""
    text: str
    """Description, and what to do, in one line."""
    runbook: str = ""
    """Path of the runbook in the documentation; empty when the condition has ended."""
    over: bool = False
    """True if the condition has ended; its owner is empty then. A condition that is sent to a
    channel and is not over has begun, or its ``mark`` has changed."""

    json_properties: ClassVar[tuple[str, ...]] = ("critical",)

    @property
    def key(self) -> tuple[str, str, str]:
        """Table, topic and subject."""
        return self.table, self.topic, self.subject

    @property
    def critical(self) -> bool:
        """True if the condition needs a person immediately."""
        return self.kind.is_critical and not self.over


def conditions(
    catalog: Catalog, *, tables: Collection[str] | None = None, now: datetime | None = None
) -> list[Condition]:
    """Return the conditions of the enabled tables of a ``catalog``, critical ones first.

    ``tables`` restricts them to these tables. ``now`` is aware, by default the present.
    """
    now = now or datetime.now(UTC)
    watched = {
        table.name: table
        for table in catalog.list(enabled_only=True)
        if tables is None or table.name in tables
    }
    if not watched:
        return []
    only = next(iter(tables)) if tables is not None and len(tables) == 1 else None
    present = [
        *_region_conditions(catalog.backoffs.skipped_regions(only), watched),
        *_lease_conditions(catalog, watched, only, now),
    ]
    for state in overview(catalog, table=only, now=now):
        table = watched.get(state.table)
        if table is not None:
            present += _backlog_conditions(table, state.backlog, now)
            present += _job_conditions(table, state.errors, now)
            present += _state_conditions(table, state.backlog, state.reasons, now)
    return sorted(present, key=lambda item: (not item.kind.is_critical, item.key))


def _region_conditions(
    skipped_regions: Iterable[SkippedRegionRecord], watched: Mapping[str, ManagedTable]
) -> Iterator[Condition]:
    for record in skipped_regions:
        table = watched.get(record.table)
        if table is None:
            continue
        poisoned = record.attempts >= POISONED_AFTER
        kind = ConditionKind.GENERATION_POISONED if poisoned else ConditionKind.REGION_SKIPPED
        yield Condition(
            kind=kind,
            table=table.name,
            owner=table.owner,
            topic="region",
            subject=record.region_id,
            mark=f"{kind} {record.generation}",
            since=record.since,
            text=_single_line(
                f"region {record.region_id} waits at generation {record.generation}, which could "
                f"not be read in {record.attempts} tries: {record.reason}"
            ),
            runbook=f"{RUNBOOKS}/MemwalRegionSkipped.md",
        )


def _backlog_conditions(
    table: ManagedTable, sample: BacklogSample | None, now: datetime
) -> Iterator[Condition]:
    policy, age = table.policy, backlog_age(sample, now)
    if sample is None or age is None or age < policy.late_seconds:
        return
    critical = age >= policy.critical_seconds
    kind = ConditionKind.BACKLOG_CRITICAL if critical else ConditionKind.BACKLOG_LATE
    limit = policy.critical_seconds if critical else policy.late_seconds
    yield Condition(
        kind=kind,
        table=table.name,
        owner=table.owner,
        topic="backlog",
        subject="",
        mark=kind.value,
        since=now - timedelta(seconds=age),
        text=(
            f"the oldest of {sample.generations} unmerged generations is {shown(age)} old; "
            f"the limit is {shown(limit)}"
        ),
        runbook=f"{RUNBOOKS}/MemwalBacklog{'Critical' if critical else 'Late'}.md",
    )


def _job_conditions(
    table: ManagedTable, errors: Iterable[JobError], now: datetime
) -> Iterator[Condition]:
    for error in errors:
        # A run may be retried at once; a job that is recorded as failed is not.
        lasts = error.run_id is None or error.attempts or error.since + RETRY_GRACE <= now
        # Skipped regions have conditions of their own.
        if lasts and error.job not in (*STATE_OF_JOB, REGION_JOB):
            yield _job_failed(table, error)


def _state_conditions(
    table: ManagedTable,
    sample: BacklogSample | None,
    reasons: Iterable[HealthReason],
    now: datetime,
) -> Iterator[Condition]:
    """Yield one condition for each state; the first reason tells it."""
    texts: dict[Health, HealthReason] = {}
    for reason in reasons:
        if reason.health in _CONDITION_STATES:
            texts.setdefault(reason.health, reason)
    if sample is None and not is_unwatched(table, None, now):
        # It is looked at for the first time soon.
        texts.pop(Health.UNWATCHED, None)
    for state, reason in texts.items():
        yield Condition(
            kind=ConditionKind(state.value),
            table=table.name,
            owner=table.owner,
            topic="state",
            subject=state.value,
            mark=state.value,
            since=reason.since or now,
            text=_single_line(reason.text),
            runbook=reason.runbook,
        )


def _job_failed(table: ManagedTable, error: JobError) -> Condition:
    if error.run_id is not None:
        what = f"the last run of {error.job} ({error.run_id}) failed"
    else:
        what = f"{error.job} failed" + (f" {error.attempts} times" if error.attempts else "")
    return Condition(
        kind=ConditionKind.JOB_FAILED,
        table=table.name,
        owner=table.owner,
        topic="job",
        subject=error.job,
        # One mark for all tries, so that a channel is notified once.
        mark=ConditionKind.JOB_FAILED.value,
        since=error.since,
        text=_single_line(f"{what}: {error.reason}; what to do: {error.action}"),
        runbook=error.runbook,
    )


def _lease_conditions(
    catalog: Catalog,
    watched: Mapping[str, ManagedTable],
    only: str | None,
    now: datetime,
) -> Iterator[Condition]:
    newest: dict[tuple[str, str], JobRun] = {}
    for run in catalog.runs(
        table=only, state=RunState.FAILED, since=now - LEASE_LOSS_WINDOW, limit=_FAILURES_READ
    ):
        if run.table in watched and (run.error or "").startswith(_LEASE_LOST):
            newest.setdefault((run.table, run.job), run)
    for run in newest.values():
        yield Condition(
            kind=ConditionKind.LEASE_LOST,
            table=run.table,
            owner=watched[run.table].owner,
            topic=LEASE_TOPIC,
            subject=run.job,
            mark=str(run.run_id),
            since=run.finished_at or run.started_at,
            text=_single_line(f"run {run.run_id} of {run.job} lost its lease: {run.error}"),
            runbook=f"{RUNBOOKS}/stuck-lease.md",
        )


def _single_line(text: str) -> str:
    return " ".join(text.split())
