"""Overview of every table's maintenance, details of one table, and rates of rows.

All of it comes from the catalog: no table is opened. Rates are computed from samples of the backlog
and the runs of merges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from memwal.catalog.records import BacklogSample, ManagedTable
from memwal.fleet.health import Health, JobError, backlog_age, health
from memwal.fleet.tables import due_but_held
from memwal.jobs.due import Due
from memwal.jobs.job import JobRun, RunState
from memwal.jobs.status import RegionBacklog, TableStatus

if TYPE_CHECKING:
    from memwal.catalog import Catalog, JobRun, TableState
    from memwal.catalog.backoff import HeldRecord, Trouble
    from memwal.catalog.history import LatestRuns, MergedRows
    from memwal.catalog.records import BacklogSample

WINDOW = timedelta(minutes=15)
"""What the present rates are taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rows per second.

    Attributes
    ----------
    rows_in : float or None
        Flushed: what the backlog grew by, and what merges took out of it meanwhile. Rows of one
        key that were merged as one count as one. Never below 0; None with less than two samples.
    rows_merged : float
        Upserted and deleted by merges.
    """

    rows_in: float | None
    rows_merged: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """A sample, and the rates since the one before.

    Attributes
    ----------
    sample : BacklogSample
    rates : Rates or None
        None for the first.
    """

    sample: BacklogSample
    rates: Rates | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        sample, rates = self.sample, self.rates
        return {
            "at": sample.at.isoformat(),
            "generations": sample.generations,
            "rows": sample.rows,
            "bytes": sample.bytes,
            "wal_entries": sample.wal_entries,
            "oldest_seconds": sample.oldest_seconds,
            "lag_generations": sample.lag_generations,
            "lag_rows": sample.lag_rows,
            "reclaimable_bytes": sample.reclaimable_bytes,
            "base_rows": sample.base_rows,
            "rows_in_per_second": None if rates is None else rates.rows_in,
            "rows_merged_per_second": None if rates is None else rates.rows_merged,
        }


def present_rates(
    first: BacklogSample | None,
    last: BacklogSample | None,
    merges: Iterable[MergedRows],
    *,
    window: timedelta = WINDOW,
) -> Rates:
    """Take the rates of a window.

    Parameters
    ----------
    first, last : BacklogSample or None
        The first and the last sample in the window.
    merges : iterable of MergedRows
        Of this table, in the window.
    window : timedelta, default 15 minutes
        Its length.
    """
    found = list(merges)
    merged = sum(one.rows for one in found) / window.total_seconds()
    rows_in = None
    if first is not None and last is not None and last.at > first.at:
        meanwhile = sum(one.rows for one in found if first.at < one.at <= last.at)
        rows_in = _grown(first, last, meanwhile)
    return Rates(rows_in=rows_in, rows_merged=merged)


def history_points(
    samples: Sequence[BacklogSample], merges: Sequence[MergedRows]
) -> list[HistoryPoint]:
    """Put rates to the samples of one table.

    Parameters
    ----------
    samples : sequence of BacklogSample
        Oldest first.
    merges : sequence of MergedRows
        Of the same table, oldest first.
    """
    times = [one.at for one in merges]
    points = [HistoryPoint(sample=one, rates=None) for one in samples[:1]]
    for before, sample in pairwise(samples):
        seconds = (sample.at - before.at).total_seconds()
        if seconds <= 0:
            points.append(HistoryPoint(sample=sample, rates=None))
            continue
        between = merges[bisect_right(times, before.at) : bisect_right(times, sample.at)]
        merged = sum(one.rows for one in between)
        rates = Rates(rows_in=_grown(before, sample, merged), rows_merged=merged / seconds)
        points.append(HistoryPoint(sample=sample, rates=rates))
    return points


def _grown(first: BacklogSample, last: BacklogSample, merged: int) -> float:
    seconds = (last.at - first.at).total_seconds()
    return max(0.0, (last.rows - first.rows + merged) / seconds)


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


QUALITY = "quality"
"""Key of the results of runs under which checks of the data tell what they found."""

_QUALITY_SINCE = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetail:
    """One managed table.

    Attributes
    ----------
    overview : TableOverview
    state : TableState or None
        The latest status, with ages as of that look; None when nobody has looked yet.
    due : mapping of str to Due
        Which jobs are due by now, by that status and the policy; empty when there is none.
    held : tuple of HeldRecord
        All regions that are held.
    checked : JobRun or None
        The latest run that looked at rows, by the gate of a merge or a check of the base table,
        within a week; with its whole result.
    """

    overview: TableOverview
    state: TableState | None
    due: Mapping[str, Due]
    held: tuple[HeldRecord, ...]
    checked: JobRun | None


def table_detail(catalog: Catalog, name: str, *, now: datetime | None = None) -> TableDetail:
    """Return what the catalog knows of one table.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    StoreUnavailableError
        The catalog does not answer.
    """
    now = now or datetime.now(UTC)
    (found,) = overview(catalog, table=name, now=now)
    state = next(iter(catalog.states(table=name)), None)
    held = tuple(catalog.setbacks.held(name))
    due: dict[str, Due] = {}
    if state is not None:
        status = aged(state.status, max(0.0, (now - state.at).total_seconds()))
        policy = found.managed.policy
        due = due_but_held(status, policy, held, now=now, last_runs=found.last_runs)
    checked = catalog.latest_run_with(name, QUALITY, since=now - _QUALITY_SINCE)
    return TableDetail(overview=found, state=state, due=due, held=held, checked=checked)


def table_history(
    catalog: Catalog, name: str, *, since: datetime, most: int = 500
) -> list[HistoryPoint]:
    """Return how the backlog of a table went, and how fast rows came and were merged.

    Parameters
    ----------
    catalog : Catalog
    name : str
        Of the table.
    since : datetime
        Aware.
    most : int, default 500
        Most points to return: with more samples, some are left out, evenly.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    StoreUnavailableError
        The catalog does not answer.
    """
    catalog.get(name)
    samples = catalog.backlog_points(name, since=since, most=most)
    return history_points(samples, catalog.merges(since, table=name))


def aged(status: TableStatus, seconds: float) -> TableStatus:
    """The same status some time later, if nothing has happened meanwhile."""

    def older(region: RegionBacklog) -> RegionBacklog:
        if region.oldest_backlog_seconds is None:
            return region
        return replace(region, oldest_backlog_seconds=region.oldest_backlog_seconds + seconds)

    snapshot = status.snapshot_age_seconds
    return replace(
        status,
        regions=tuple(older(region) for region in status.regions),
        snapshot_age_seconds=None if snapshot is None else snapshot + seconds,
    )
