"""Health and alert conditions of managed tables, computed from the catalog without opening tables.

Health is computed from the policy, the latest backlog sample and the failures that last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from memwal.boundary.text import age as shown
from memwal.catalog.failures import RUNBOOKS, JobError, job_errors
from memwal.catalog.records import BacklogSample, ManagedTable
from memwal.errors import LeaseLostError
from memwal.jobs.job import JobRun, RunState
from memwal.jobs.policy import Policy
from memwal.util.records import JsonRecord

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.backoff import FailedJob, SkippedRegionRecord

_REASON_LENGTH = 300


class Health(StrEnum):
    """Overall health. If several conditions hold, the member declared first wins."""

    OFF = "off"
    CRITICAL = "critical"
    FAILING = "failing"
    LATE = "late"
    UNKNOWN = "unknown"
    OK = "ok"


def backlog_age(sample: BacklogSample | None, now: datetime) -> float | None:
    """Return the age of the oldest unmerged generation in seconds; None without a backlog.

    The time since the sample was taken counts as well.
    """
    if sample is None or not sample.generations or sample.oldest_seconds is None:
        return None
    return sample.oldest_seconds + max(0.0, (now - sample.at).total_seconds())


def health(
    policy: Policy,
    sample: BacklogSample | None,
    *,
    now: datetime,
    enabled: bool = True,
    errors: Sequence[JobError] = (),
) -> tuple[Health, tuple[str, ...]]:
    """Compute the health of a table, and all reasons for it, the worst first.

    ``errors`` are the failures that last, as of :func:`memwal.catalog.failures.job_errors`.
    """
    if not enabled:
        return Health.OFF, ("it is not maintained",)
    reasons: list[tuple[Health, str]] = []
    age = backlog_age(sample, now)
    for limit, state in (
        (policy.critical_seconds, Health.CRITICAL),
        (policy.late_seconds, Health.LATE),
    ):
        if age is not None and age >= limit:
            text = f"the oldest generation waits for {shown(age)}"
            reasons.append((state, f"{text}, {state} is {shown(limit)}"))
            break
    reasons += [(Health.FAILING, _truncated(error.summary)) for error in errors]
    stale = _stale_reason(policy, sample, now)
    if stale is not None:
        reasons.append((Health.UNKNOWN, stale))
    if not reasons:
        return Health.OK, ()
    order = list(Health)
    reasons.sort(key=lambda reason: order.index(reason[0]))
    return reasons[0][0], tuple(text for _, text in reasons)


def _stale_reason(policy: Policy, sample: BacklogSample | None, now: datetime) -> str | None:
    """Return why the age of the backlog is unknown; None if the latest sample is recent enough."""
    if sample is None:
        return "its status has not been read yet"
    silent = (now - sample.at).total_seconds()
    # A generation flushed since the sample cannot be older than the sample.
    if silent < policy.late_seconds:
        return None
    return f"its status has not been read for {shown(silent)}"


def _truncated(text: str) -> str:
    line = _single_line(text)
    return line if len(line) <= _REASON_LENGTH else f"{line[:_REASON_LENGTH]}…"


# After so many failed reads, a generation is reported as damaged, not as unreachable.
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

    @property
    def is_critical(self) -> bool:
        """True if the condition needs a person immediately."""
        return self in (ConditionKind.GENERATION_POISONED, ConditionKind.BACKLOG_CRITICAL)


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
    """``region``, ``backlog``, ``job`` or ``lease``."""
    subject: str
    """UUID of the region; empty for the backlog; the job."""
    mark: str
    """Distinguishes this occurrence from others of its kind."""
    since: datetime
    """When the condition began, in UTC."""
    text: str
    """Description, and what to do, in one line."""
    runbook: str = ""
    """Path of the runbook in the documentation; empty when the condition has ended."""

    json_properties: ClassVar[tuple[str, ...]] = ("critical",)

    @property
    def key(self) -> tuple[str, str, str]:
        """Table, topic and subject."""
        return self.table, self.topic, self.subject

    @property
    def critical(self) -> bool:
        """True if the condition needs a person immediately."""
        return self.kind.is_critical


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
    present = [
        *_region_conditions(catalog.backoffs.skipped_regions(), watched),
        *_backlog_conditions(catalog.latest_samples(), watched, now),
        *_job_conditions(catalog, watched, tables, now),
        *_lease_conditions(catalog, watched, tables, now),
    ]
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
    samples: Iterable[BacklogSample], watched: Mapping[str, ManagedTable], now: datetime
) -> Iterator[Condition]:
    for sample in samples:
        table = watched.get(sample.table)
        age = backlog_age(sample, now)
        if table is None or age is None or age < table.policy.late_seconds:
            continue
        policy = table.policy
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
    catalog: Catalog,
    watched: Mapping[str, ManagedTable],
    tables: Collection[str] | None,
    now: datetime,
) -> Iterator[Condition]:
    only = next(iter(tables)) if tables is not None and len(tables) == 1 else None
    runs = catalog.latest_runs(table=only)
    failed_jobs: defaultdict[str, list[FailedJob]] = defaultdict(list)
    for failed in catalog.backoffs.failed_jobs():
        failed_jobs[failed.table].append(failed)
    for table in watched.values():
        for error in job_errors(table, runs.get(table.name), failed_jobs[table.name]):
            # A run may be retried at once; what is recorded as failed is not.
            if error.run_id is None or error.attempts or error.since + RETRY_GRACE <= now:
                yield _job_failed(table, error)


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
    tables: Collection[str] | None,
    now: datetime,
) -> Iterator[Condition]:
    newest: dict[tuple[str, str], JobRun] = {}
    only = next(iter(tables)) if tables is not None and len(tables) == 1 else None
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
