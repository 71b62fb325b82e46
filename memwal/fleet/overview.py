"""Overview of every table's maintenance, details of one table, and rates of rows.

Everything is computed from the catalog, without opening tables: rates from backlog samples and
merge runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from memwal.boundary.public import public
from memwal.catalog.failures import JobError, job_errors
from memwal.catalog.records import BacklogSample, ManagedTable, TableState
from memwal.fleet.health import (
    Health,
    HealthReason,
    airflow_problems,
    backlog_age,
    health_reasons,
    waiting_jobs,
)
from memwal.fleet.tables import due_jobs
from memwal.jobs.due import Due
from memwal.jobs.job import JobRun
from memwal.util.records import JsonObject, plain_value

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.backoff import FailedJob, SkippedRegionRecord
    from memwal.catalog.history import MergedRowCount
    from memwal.catalog.records import DueJob

# Time window of the current rates.
WINDOW = timedelta(minutes=15)

Record = TypeVar("Record", "MergedRowCount", "FailedJob", "SkippedRegionRecord", "DueJob")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rows per second, over some time.

    ``rows_in`` is the growth of the backlog plus the rows that merges removed from it in the same
    time. Rows of one key that were merged as one count as one. It is never negative, and None with
    fewer than two samples.
    """

    rows_in: float | None  # flushed
    rows_merged: float  # upserted and deleted by merges


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """Backlog sample, with the rates since the previous one."""

    sample: BacklogSample
    rates: Rates | None  # None for the first sample

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        values = plain_value(self.sample)
        omitted = ("table", "version", "regions", "seen_at")
        return {
            **{key: value for key, value in values.items() if key not in omitted},
            "rows_in_per_second": None if self.rates is None else self.rates.rows_in,
            "rows_merged_per_second": None if self.rates is None else self.rates.rows_merged,
        }


def current_rates(
    first: BacklogSample | None,
    last: BacklogSample | None,
    merges: Iterable[MergedRowCount],
) -> Rates:
    """Compute the rates of ``WINDOW`` from the merges and the first and last sample in it."""
    merges = list(merges)
    merged = sum(merge.rows for merge in merges) / WINDOW.total_seconds()
    rows_in = None
    if first is not None and last is not None and last.at > first.at:
        meanwhile = sum(merge.rows for merge in merges if first.at < merge.at <= last.at)
        rows_in = _inflow(first, last, meanwhile)
    return Rates(rows_in=rows_in, rows_merged=merged)


def history_points(
    samples: Sequence[BacklogSample], merges: Sequence[MergedRowCount]
) -> list[HistoryPoint]:
    """Compute the rates between the samples of one table; samples and merges are oldest first."""
    times = [merge.at for merge in merges]
    points = [HistoryPoint(sample=sample, rates=None) for sample in samples[:1]]
    for before, sample in pairwise(samples):
        seconds = (sample.at - before.at).total_seconds()
        if seconds <= 0:
            points.append(HistoryPoint(sample=sample, rates=None))
            continue
        between = merges[bisect_right(times, before.at) : bisect_right(times, sample.at)]
        merged = sum(merge.rows for merge in between)
        rates = Rates(rows_in=_inflow(before, sample, merged), rows_merged=merged / seconds)
        points.append(HistoryPoint(sample=sample, rates=rates))
    return points


def _inflow(first: BacklogSample, last: BacklogSample, merged: int) -> float:
    seconds = (last.at - first.at).total_seconds()
    return max(0.0, (last.rows - first.rows + merged) / seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOverview:
    """Maintenance state of one table."""

    managed: ManagedTable
    """The managed table."""
    reasons: tuple[HealthReason, ...]
    """All states that it is in, the worst first; none if all is well."""
    backlog: BacklogSample | None
    """Latest sample; None if none was taken yet."""
    oldest_seconds: float | None
    """Current age of the oldest unmerged generation; None without a backlog."""
    rates: Rates
    """Over the last 15 minutes."""
    running: tuple[JobRun, ...]
    """Active runs."""
    last_runs: dict[str, datetime]
    """When each job last succeeded, in UTC."""
    skipped_regions: int
    """Number of skipped regions."""
    unindexable_rows: int
    """Rows that an index cannot hold, as of the last index build that succeeded."""
    failed_jobs: tuple[FailedJob, ...]
    """Failed jobs that are retried after a delay."""
    errors: tuple[JobError, ...]
    """Failures that last, newest first: of the failed jobs, of jobs whose last run failed, of the
    skipped regions, and of the policy if it cannot be read."""

    @property
    def health(self) -> Health:
        """Its worst state."""
        return self.reasons[0].health if self.reasons else Health.OK

    @property
    def states(self) -> frozenset[Health]:
        """All states that hold."""
        return frozenset(reason.health for reason in self.reasons) or frozenset({Health.OK})

    @property
    def table(self) -> str:
        """Name of the table."""
        return self.managed.name

    @property
    def uri(self) -> str:
        """Address of the table."""
        return self.managed.uri

    @property
    def enabled(self) -> bool:
        """Return whether the table is maintained."""
        return self.managed.enabled

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {
            "table": self.table,
            "uri": self.uri,
            "owner": self.managed.owner,
            "enabled": self.enabled,
            "tags": list(self.managed.policy.tags),
            "health": self.health.value,
            "reasons": plain_value(self.reasons),
            "backlog": plain_value(self.backlog),
            "oldest_seconds": self.oldest_seconds,
            "rows_in_per_second": self.rates.rows_in,
            "rows_merged_per_second": self.rates.rows_merged,
            "running": [run.to_dict() for run in self.running],
            "last_runs": plain_value(self.last_runs),
            "skipped_regions": self.skipped_regions,
            "unindexable_rows": self.unindexable_rows,
            "failed_jobs": plain_value(self.failed_jobs),
            "errors": plain_value(self.errors),
        }


@public
def overview(
    catalog: Catalog, *, table: str | None = None, now: datetime | None = None
) -> list[TableOverview]:
    """Return the state of the tables of a ``catalog`` by name, in a constant number of queries.

    With ``table`` only of this one; ``ObjectNotFoundError`` if no table has this name. ``now`` is
    aware, by default the present.
    """
    now = now or datetime.now(UTC)
    since = now - WINDOW
    tables = catalog.list() if table is None else [catalog.get(table, allow_problem=True)]
    latest = {sample.table: sample for sample in catalog.latest_samples(table=table)}
    first = {sample.table: sample for sample in catalog.first_samples(since, table=table)}
    merges = _group_by_table(catalog.merges(since, table=table))
    runs = catalog.latest_runs(table=table)
    failed_jobs = _group_by_table(catalog.backoffs.failed_jobs())
    due = _group_by_table(catalog.reports.due_jobs(table))
    problems_of = airflow_problems(catalog.reports.airflow(), now)
    skipped_regions = _group_by_table(catalog.backoffs.skipped_regions(table))
    overviews = []
    for managed in tables:
        name = managed.name
        sample = latest.get(name)
        of_table = runs.get(name)
        succeeded = of_table.succeeded.values() if of_table else ()
        errors = job_errors(
            managed,
            of_table,
            failed_jobs[name],
            skipped_regions[name],
            due=due[name],
            polled_at=sample.at if sample is not None else None,
        )
        reasons = health_reasons(
            managed,
            sample,
            now=now,
            errors=errors,
            waiting=waiting_jobs(due[name], of_table),
            problems=problems_of(managed),
        )
        overviews.append(
            TableOverview(
                managed=managed,
                reasons=reasons,
                backlog=sample,
                oldest_seconds=backlog_age(sample, now),
                rates=current_rates(first.get(name), sample, merges[name]),
                running=of_table.running if of_table else (),
                last_runs={r.job: r.finished_at for r in succeeded if r.finished_at is not None},
                skipped_regions=len(skipped_regions[name]),
                unindexable_rows=of_table.unindexable_rows if of_table else 0,
                failed_jobs=tuple(failed_jobs[name]),
                errors=errors,
            )
        )
    return overviews


def _group_by_table(records: Iterable[Record]) -> defaultdict[str, list[Record]]:
    groups: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.table].append(record)
    return groups


# Key of run results under which data quality checks store their findings.
QUALITY = "quality"
_QUALITY_SINCE = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetail:
    """Details of one managed table."""

    overview: TableOverview
    # latest status, with ages as of now; None if none was recorded yet
    state: TableState | None
    due: Mapping[str, Due]  # computed from the status and the policy; empty without a status
    skipped_regions: tuple[SkippedRegionRecord, ...]  # all skipped regions
    # latest run within a week that checked rows, at the gate of a merge or in the base table;
    # with its whole result
    checked: JobRun | None


def table_detail(catalog: Catalog, name: str, *, now: datetime | None = None) -> TableDetail:
    """Return the details of one table; ``ObjectNotFoundError`` if no table has this name."""
    now = now or datetime.now(UTC)
    (table,) = overview(catalog, table=name, now=now)
    state = next(iter(catalog.states(table=name)), None)
    skipped_regions = tuple(catalog.backoffs.skipped_regions(name))
    due: dict[str, Due] = {}
    if state is not None:
        status = state.status.aged(max(0.0, (now - state.at).total_seconds()))
        state = replace(state, status=status)
        policy = table.managed.policy
        due = due_jobs(status, policy, skipped_regions, now=now, last_runs=table.last_runs)
    checked = catalog.latest_run_with(name, QUALITY, since=now - _QUALITY_SINCE)
    return TableDetail(
        overview=table, state=state, due=due, skipped_regions=skipped_regions, checked=checked
    )


def table_history(
    catalog: Catalog, name: str, *, since: datetime, most: int = 500
) -> list[HistoryPoint]:
    """Return the backlog samples of a table, with the rates of rows flushed and merged.

    More than ``most`` samples are thinned out evenly. Raises ``ObjectNotFoundError`` if no table
    has this name.
    """
    catalog.get(name, allow_problem=True)
    samples = catalog.backlog_points(name, since=since, most=most)
    return history_points(samples, catalog.merges(since, table=name))
