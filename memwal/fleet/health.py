"""Health and conditions of managed tables, computed from the catalog. No table is opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from memwal.catalog.records import BacklogSample, ManagedTable
from memwal.errors import LeaseLostError
from memwal.jobs.job import JobRun, RunState

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.backoff import HeldRecord
    from memwal.catalog.records import BacklogSample
    from memwal.jobs.policy import Policy

_REASON_LENGTH = 300


class Health(StrEnum):
    """How a table is. When several apply, it is the first of them."""

    OFF = "off"
    CRITICAL = "critical"
    TROUBLE = "trouble"
    LATE = "late"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """What a job of a table failed with.

    Attributes
    ----------
    job : str
        ``look`` for the look at the table.
    reason : str
        What went wrong.
    at : datetime
        When the last try ended, or, where only that is known, since when it fails.
    """

    job: str
    reason: str
    at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"job": self.job, "reason": self.reason, "at": self.at.isoformat()}


def backlog_age(sample: BacklogSample | None, now: datetime) -> float | None:
    """Seconds that the oldest generation of the backlog waits by now; None when there is none.

    A backlog ages on after the look at it.
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
    held: int = 0,
    errors: Sequence[JobError] = (),
) -> tuple[Health, tuple[str, ...]]:
    """Tell how a table is, and everything that speaks against it.

    Parameters
    ----------
    policy : Policy
        Whose ``late_seconds`` and ``critical_seconds`` it is held against.
    sample : BacklogSample or None
        The latest.
    now : datetime
        Aware.
    enabled : bool, default True
        Whether it is maintained.
    held : int, default 0
        Regions that merges leave out.
    errors : sequence of JobError
        Jobs that failed, and have not succeeded since.
    """
    if not enabled:
        return Health.OFF, ("it is not maintained",)
    found: list[tuple[Health, str]] = []
    age = backlog_age(sample, now)
    for limit, word in (
        (policy.critical_seconds, Health.CRITICAL),
        (policy.late_seconds, Health.LATE),
    ):
        if age is not None and age >= limit:
            text = f"the oldest generation waits for {duration(age)}"
            found.append((word, f"{text}, {word} is {duration(limit)}"))
            break
    if held:
        regions = "1 region is" if held == 1 else f"{held} regions are"
        found.append((Health.TROUBLE, f"{regions} held"))
    found += [(Health.TROUBLE, f"{one.job} fails: {_short(one.reason)}") for one in errors]
    unseen = _unseen(policy, sample, now)
    if unseen is not None:
        found.append((Health.UNKNOWN, unseen))
    if not found:
        return Health.OK, ()
    order = list(Health)
    found.sort(key=lambda one: order.index(one[0]))
    return found[0][0], tuple(text for _, text in found)


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    left = int(seconds)
    parts: list[str] = []
    for name, size in units:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def _unseen(policy: Policy, sample: BacklogSample | None, now: datetime) -> str | None:
    """Why nobody can tell how late the table is; None when the latest look is fresh enough."""
    if sample is None:
        return "nobody has looked at it yet"
    silent = (now - sample.at).total_seconds()
    # Whatever was flushed since the look cannot be older than the look is.
    return (
        f"nobody has looked at it for {duration(silent)}" if silent >= policy.late_seconds else None
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_LENGTH else f"{line[:_REASON_LENGTH]}…"


POISONED_AFTER: Final = 3
"""A generation that could not be read so often is taken for damaged, not for out of reach."""

SETTLE: Final = timedelta(minutes=1)
"""A failure that the next try mends within this time is nobody's business."""

LEASES_REMEMBERED: Final = timedelta(days=1)

LEASE: Final = "lease"
"""The topic of what happens at one moment and has no end to be told."""

_FAILURES_READ = 1_000
# The catalog keeps the error of a run as its type and its message.
_LEASE_LOST = f"{LeaseLostError.__name__}: "


class Kind(StrEnum):
    """What can be wrong."""

    REGION_HELD = "region_held"
    GENERATION_POISONED = "generation_poisoned"
    BACKLOG_LATE = "backlog_late"
    BACKLOG_CRITICAL = "backlog_critical"
    JOB_FAILED = "job_failed"
    LEASE_LOST = "lease_lost"

    @property
    def is_critical(self) -> bool:
        """Whether somebody has to come, beside knowing of it."""
        return self in (Kind.GENERATION_POISONED, Kind.BACKLOG_CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One thing that is wrong.

    Attributes
    ----------
    kind : Kind
    table, owner : str
        Name of the managed table, and who to ask.
    topic, subject : str
        What it is about: ``region`` and its UUID, ``backlog`` and nothing, ``job`` or ``lease``
        and the job.
    mark : str
        Tells this occurrence from others of its kind.
    since : datetime
        In UTC.
    text : str
        What it is, and what to do, in one line.
    """

    kind: Kind
    table: str
    owner: str
    topic: str
    subject: str
    mark: str
    since: datetime
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Table, topic and subject."""
        return self.table, self.topic, self.subject

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **asdict(self),
            "kind": self.kind.value,
            "critical": self.kind.is_critical,
            "since": self.since.isoformat(),
        }


def conditions(
    catalog: Catalog, *, tables: Collection[str] | None = None, now: datetime | None = None
) -> list[Condition]:
    """Return what is wrong with the enabled tables, the critical first.

    Parameters
    ----------
    catalog : Catalog
    tables : collection of str, optional
        Only these.
    now : datetime, optional
        Aware; by default the present.

    Raises
    ------
    StoreUnavailableError
        The catalog does not answer.
    """
    now = now or datetime.now(UTC)
    watched = {
        table.name: table
        for table in catalog.list(enabled_only=True)
        if tables is None or table.name in tables
    }
    found = [
        *_regions(catalog.setbacks.held(), watched),
        *_backlogs(catalog.latest_samples(), watched, now),
        *_jobs(catalog, watched, tables, now),
        *_leases(catalog, watched, tables, now),
    ]
    return sorted(found, key=lambda one: (not one.kind.is_critical, one.key))


def _regions(
    held: Iterable[HeldRecord], watched: Mapping[str, ManagedTable]
) -> Iterator[Condition]:
    for record in held:
        table = watched.get(record.table)
        if table is None:
            continue
        poisoned = record.attempts >= POISONED_AFTER
        kind = Kind.GENERATION_POISONED if poisoned else Kind.REGION_HELD
        yield Condition(
            kind=kind,
            table=table.name,
            owner=table.owner,
            topic="region",
            subject=record.region_id,
            mark=f"{kind} {record.generation}",
            since=record.since,
            text=_line(
                f"region {record.region_id} waits at generation {record.generation}, which could "
                f"not be read in {record.attempts} tries: {record.reason}"
            ),
        )


def _backlogs(
    samples: Iterable[BacklogSample], watched: Mapping[str, ManagedTable], now: datetime
) -> Iterator[Condition]:
    for sample in samples:
        table = watched.get(sample.table)
        age = backlog_age(sample, now)
        if table is None or age is None or age < table.policy.late_seconds:
            continue
        policy = table.policy
        critical = age >= policy.critical_seconds
        kind = Kind.BACKLOG_CRITICAL if critical else Kind.BACKLOG_LATE
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
                f"the oldest of {sample.generations} unmerged generations is {_hours(age)} old; "
                f"the limit is {_hours(limit)}"
            ),
        )


def _jobs(
    catalog: Catalog,
    watched: Mapping[str, ManagedTable],
    tables: Collection[str] | None,
    now: datetime,
) -> Iterator[Condition]:
    resting = {(one.table, one.job): one for one in catalog.setbacks.troubles()}
    for (name, job), trouble in resting.items():
        if name in watched:
            yield _failed(
                watched[name],
                job,
                since=trouble.since,
                text=f"{job} failed {trouble.attempts} times: {trouble.reason}",
            )
    only = next(iter(tables)) if tables is not None and len(tables) == 1 else None
    for runs in catalog.latest_runs(table=only).values():
        for job, first in runs.failing.items():
            # Later failures do not put off what the first one began.
            settled = (first.finished_at or first.heartbeat_at or first.started_at) + SETTLE <= now
            if settled and first.table in watched and (first.table, job) not in resting:
                run = runs.ended[job]
                why = run.error or "its process died without a word"
                yield _failed(
                    watched[run.table],
                    job,
                    since=first.started_at,
                    text=f"the last run of {job} ({run.run_id}) failed: {why}",
                )


def _failed(table: ManagedTable, job: str, *, since: datetime, text: str) -> Condition:
    return Condition(
        kind=Kind.JOB_FAILED,
        table=table.name,
        owner=table.owner,
        topic="job",
        subject=job,
        # However often it is tried, it is told once.
        mark=Kind.JOB_FAILED.value,
        since=since,
        text=_line(text),
    )


def _leases(
    catalog: Catalog,
    watched: Mapping[str, ManagedTable],
    tables: Collection[str] | None,
    now: datetime,
) -> Iterator[Condition]:
    newest: dict[tuple[str, str], JobRun] = {}
    only = next(iter(tables)) if tables is not None and len(tables) == 1 else None
    for run in catalog.runs(
        table=only, state=RunState.FAILED, since=now - LEASES_REMEMBERED, limit=_FAILURES_READ
    ):
        if run.table in watched and (run.error or "").startswith(_LEASE_LOST):
            newest.setdefault((run.table, run.job), run)
    for run in newest.values():
        yield Condition(
            kind=Kind.LEASE_LOST,
            table=run.table,
            owner=watched[run.table].owner,
            topic=LEASE,
            subject=run.job,
            mark=str(run.run_id),
            since=run.finished_at or run.started_at,
            text=_line(f"run {run.run_id} of {run.job} lost its lease: {run.error}"),
        )


def _line(text: str) -> str:
    return " ".join(text.split())


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
