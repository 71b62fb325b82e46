"""What the catalog knows of every table's maintenance: no table is opened for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from memwal.catalog.records import BacklogSample, JobRun, ManagedTable, RunState
from memwal.fleet.health import Health, JobError, backlog_age, health
from memwal.fleet.rates import WINDOW, Rates, present_rates

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.latest import LatestRuns
    from memwal.catalog.setbacks import Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOverview:
    """Maintenance of one table.

    Attributes
    ----------
    managed : ManagedTable
        What is registered.
    health : Health
    reasons : tuple of str
        Everything that speaks against its health, the worst first.
    backlog : BacklogSample or None
        The latest sample; None when nobody has looked yet.
    oldest_seconds : float or None
        How long the oldest generation of the backlog waits by now.
    rates : Rates
        Over the last 15 minutes.
    running : tuple of JobRun
        What is being done.
    last_runs : dict of str to datetime
        When each job last ended well, in UTC.
    held : int
        Regions that are held.
    troubles : tuple of Trouble
        What failed and is tried again later.
    errors : tuple of JobError
        Why each job fails that has failed last: those in trouble, and those that others run.
    """

    managed: ManagedTable
    health: Health
    reasons: tuple[str, ...]
    backlog: BacklogSample | None
    oldest_seconds: float | None
    rates: Rates
    running: tuple[JobRun, ...]
    last_runs: dict[str, datetime]
    held: int
    troubles: tuple[Trouble, ...]
    errors: tuple[JobError, ...]

    @property
    def table(self) -> str:
        """Name of the table."""
        return self.managed.name

    @property
    def uri(self) -> str:
        """Its address."""
        return self.managed.uri

    @property
    def enabled(self) -> bool:
        """Whether it is maintained."""
        return self.managed.enabled

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        sample = self.backlog
        return {
            "table": self.table,
            "uri": self.uri,
            "owner": self.managed.owner,
            "enabled": self.enabled,
            "tags": list(self.managed.policy.tags),
            "health": self.health.value,
            "reasons": list(self.reasons),
            "backlog": None if sample is None else {**asdict(sample), "at": sample.at.isoformat()},
            "oldest_seconds": self.oldest_seconds,
            "rows_in_per_second": self.rates.rows_in,
            "rows_merged_per_second": self.rates.rows_merged,
            "running": [run.to_dict() for run in self.running],
            "last_runs": {job: at.isoformat() for job, at in self.last_runs.items()},
            "held": self.held,
            "troubles": [trouble.to_dict() for trouble in self.troubles],
            "errors": [error.to_dict() for error in self.errors],
        }


def overview(
    catalog: Catalog, *, table: str | None = None, now: datetime | None = None
) -> list[TableOverview]:
    """Return the maintenance of every table, by name; as many queries for one as for a thousand.

    Parameters
    ----------
    catalog : Catalog
    table : str, optional
        Only this one.
    now : datetime, optional
        Aware; by default the present.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    StoreUnavailableError
        The catalog does not answer.
    """
    now = now or datetime.now(UTC)
    since = now - WINDOW
    tables = catalog.list() if table is None else [catalog.get(table)]
    latest = {one.table: one for one in catalog.latest_samples(table=table)}
    first = {one.table: one for one in catalog.first_samples(since, table=table)}
    merges = _by_table(catalog.merges(since, table=table))
    runs = catalog.latest_runs(table=table)
    troubles = _by_table(catalog.setbacks.troubles())
    held = Counter(record.table for record in catalog.setbacks.held(table))
    found = []
    for managed in tables:
        name = managed.name
        sample = latest.get(name)
        of_table = runs.get(name)
        errors = _errors(of_table, troubles[name])
        state, reasons = health(
            managed.policy,
            sample,
            now=now,
            enabled=managed.enabled,
            held=held[name],
            errors=errors,
        )
        found.append(
            TableOverview(
                managed=managed,
                health=state,
                reasons=reasons,
                backlog=sample,
                oldest_seconds=backlog_age(sample, now),
                rates=present_rates(first.get(name), sample, merges[name]),
                running=of_table.running if of_table else (),
                last_runs=_last_runs(of_table),
                held=held[name],
                troubles=tuple(troubles[name]),
                errors=errors,
            )
        )
    return found


def _by_table(records: Iterable[Any]) -> defaultdict[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for record in records:
        found[record.table].append(record)
    return found


def _last_runs(runs: LatestRuns | None) -> dict[str, datetime]:
    succeeded = runs.succeeded.values() if runs else ()
    return {run.job: run.finished_at for run in succeeded if run.finished_at is not None}


def _errors(runs: LatestRuns | None, troubles: Sequence[Trouble]) -> tuple[JobError, ...]:
    """One for each job, the newest first. What its last run says is better than a trouble."""
    found = {
        trouble.job: JobError(job=trouble.job, reason=trouble.reason, at=trouble.since)
        for trouble in troubles
    }
    for job, run in (runs.newest if runs else {}).items():
        if run.state is RunState.FAILED:
            reason = run.error or "it did not say why"
        elif run.state is RunState.ABANDONED:
            reason = run.error or "its process ended without a word"
        else:
            continue
        at = run.finished_at or run.heartbeat_at or run.started_at
        found[job] = JobError(job=job, reason=reason, at=at)
    return tuple(sorted(found.values(), key=lambda error: error.at, reverse=True))
