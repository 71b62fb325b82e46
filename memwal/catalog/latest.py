"""The newest of everything, of all tables at once: what a fleet looks like costs a few queries.

Every query jumps from one table to the next in the indexes and reads no more than it returns,
whatever the histories hold: a ``GROUP BY`` would read them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import (
    CTE,
    ColumnElement,
    ScalarSelect,
    and_,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute, aliased, defer

from memwal.catalog.database import database_time
from memwal.catalog.models import BacklogSampleRow, JobRunRow
from memwal.catalog.records import BacklogSample, JobRun, RunState
from memwal.catalog.run_history import RunHistory, as_run

LONGEST_RUN = timedelta(hours=6)
"""Merges that took longer are left out of :meth:`LatestHistory.merges`."""

_AT_ONCE = 3
"""Runs of one job of one table that are looked at, since several can go on at once."""


@dataclass(frozen=True, slots=True)
class MergedRows:
    """What one merge took into the base table.

    Attributes
    ----------
    table : str
        Name of the managed table.
    at : datetime
        When the run ended, in UTC.
    rows : int
        Upserted and deleted.
    """

    table: str
    at: datetime
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestRuns:
    """The newest runs of one table.

    Attributes
    ----------
    newest : dict of str to JobRun
        The run of each job that was started last.
    ended : dict of str to JobRun
        The last one of each job that has ended, however it did.
    succeeded : dict of str to JobRun
        The last one of each job that succeeded.
    failing : dict of str to JobRun
        Of each job whose last run did not succeed, the first one in a row that did not, among its
        latest three.
    running : tuple of JobRun
        By start.
    """

    newest: dict[str, JobRun]
    ended: dict[str, JobRun]
    succeeded: dict[str, JobRun]
    failing: dict[str, JobRun]
    running: tuple[JobRun, ...]


class LatestHistory(RunHistory):
    """The newest samples and runs of a catalog."""

    def latest_samples(self, *, table: str | None = None) -> list[BacklogSample]:
        """Return the newest sample of every table that was ever looked at, by name.

        Parameters
        ----------
        table : str, optional
            Only this one.
        """
        return self._samples(None, newest=True, table=table)

    def first_samples(self, since: datetime, *, table: str | None = None) -> list[BacklogSample]:
        """Return the oldest sample since a moment of every table that has one, by name.

        Parameters
        ----------
        since : datetime
            Aware.
        table : str, optional
            Only of this one.
        """
        return self._samples(since, newest=False, table=table)

    def _samples(
        self, since: datetime | None, *, newest: bool, table: str | None
    ) -> list[BacklogSample]:
        names = _names(BacklogSampleRow.table_name, table)
        row = aliased(BacklogSampleRow)
        wanted = select(row.id).where(row.table_name == names.c.name)
        if since is not None:
            wanted = wanted.where(row.at >= since)
        order = (row.at.desc(), row.id.desc()) if newest else (row.at, row.id)
        one = wanted.order_by(*order).limit(1).correlate(names).scalar_subquery()
        query = (
            select(BacklogSampleRow)
            .where(BacklogSampleRow.id.in_(select(one).select_from(names)))
            .order_by(BacklogSampleRow.table_name)
        )
        with self._database.reading() as session:
            return [as_sample(found) for found in session.scalars(query)]

    def merges(self, since: datetime, *, table: str | None = None) -> list[MergedRows]:
        """Return what the merges took in that have succeeded since a moment, oldest first.

        Parameters
        ----------
        since : datetime
            Aware.
        table : str, optional
            Only of this one.
        """
        jobs = _jobs(table)
        query = (
            select(JobRunRow.table_name, JobRunRow.finished_at, JobRunRow.rows)
            .join(
                jobs,
                and_(JobRunRow.table_name == jobs.c.table_name, JobRunRow.job == jobs.c.job),
            )
            .where(jobs.c.job == "merge", JobRunRow.started_at >= since - LONGEST_RUN)
            .where(JobRunRow.finished_at >= since, JobRunRow.state == RunState.SUCCEEDED.value)
            .order_by(JobRunRow.finished_at)
        )
        with self._database.reading() as session:
            return [
                MergedRows(name, at, rows or 0)
                for name, at, rows in session.execute(query)
                if at is not None
            ]

    def latest_runs(self, *, table: str | None = None) -> dict[str, LatestRuns]:
        """Return the newest runs of every table that has any, without their results.

        Parameters
        ----------
        table : str, optional
            Only of this one.
        """
        jobs = _jobs(table)
        picks = [_pick(jobs, offset=offset) for offset in range(_AT_ONCE)]
        picks.append(_pick(jobs, JobRunRow.state == RunState.SUCCEEDED.value))
        wanted = union_all(*(select(pick).select_from(jobs) for pick in picks)).subquery()
        query = (
            select(JobRunRow)
            .options(defer(JobRunRow.result))
            .where(JobRunRow.id.in_(select(wanted.c[0])))
            .order_by(JobRunRow.started_at, JobRunRow.id)
        )
        found: dict[str, list[JobRun]] = defaultdict(list)
        with self._database.reading() as session:
            now = database_time(session)
            for row in session.scalars(query):
                found[row.table_name].append(as_run(row, now, with_result=False))
        return {
            name: LatestRuns(
                newest={run.job: run for run in runs},
                ended={run.job: run for run in runs if run.state is not RunState.RUNNING},
                succeeded={run.job: run for run in runs if run.state is RunState.SUCCEEDED},
                failing=_failing(runs),
                running=tuple(run for run in runs if run.state is RunState.RUNNING),
            )
            for name, runs in found.items()
        }

    def backlog_points(self, table: str, *, since: datetime, most: int) -> list[BacklogSample]:
        """Return samples of a table since a moment, oldest first: all, or evenly thinned out.

        The newest is always among them.

        Parameters
        ----------
        table : str
            Name of the table; it need not be registered any more.
        since : datetime
            Aware.
        most : int
            Most samples to return; at least 1.
        """
        of_table = and_(BacklogSampleRow.table_name == table, BacklogSampleRow.at >= since)
        newest_first = (BacklogSampleRow.at.desc(), BacklogSampleRow.id.desc())
        place = func.row_number().over(order_by=newest_first).label("place")
        with self._database.reading() as session:
            count = session.scalar(select(func.count()).where(of_table)) or 0
            every = max(1, -(-count // most))
            placed = select(BacklogSampleRow.id, place).where(of_table).subquery()
            chosen = select(placed.c.id).where(placed.c.place % every == 1 % every)
            query = select(BacklogSampleRow).where(BacklogSampleRow.id.in_(chosen))
            return [as_sample(row) for row in session.scalars(query.order_by(*newest_first))][::-1]

    def latest_run_with(self, table: str, key: str, *, since: datetime) -> JobRun | None:
        """Return the newest run of a table whose result has something at this key, or None.

        Parameters
        ----------
        table : str
            Name of the table.
        key : str
            A key of the JSON of results, beyond those that every result has.
        since : datetime
            Aware; runs that were started before are not looked at.
        """
        held = JobRunRow.result[key]
        query = (
            select(JobRunRow)
            .where(JobRunRow.table_name == table, JobRunRow.started_at >= since)
            .where(JobRunRow.state == RunState.SUCCEEDED.value, held.as_string().is_not(None))
            .order_by(JobRunRow.started_at.desc(), JobRunRow.id.desc())
            .limit(1)
        )
        with self._database.reading() as session:
            row = session.scalar(query)
            return None if row is None else as_run(row, database_time(session))


def _failing(runs: Iterable[JobRun]) -> dict[str, JobRun]:
    """By job, the first of the failures at the end of these runs, which are by start."""
    found: dict[str, JobRun] = {}
    for run in runs:
        if run.state is RunState.SUCCEEDED:
            found.pop(run.job, None)
        elif run.state is not RunState.RUNNING:
            found.setdefault(run.job, run)
    return found


def as_sample(row: BacklogSampleRow) -> BacklogSample:
    """What the catalog gives out for a row."""
    return BacklogSample(
        table=row.table_name,
        at=row.at,
        generations=row.generations,
        rows=row.rows,
        bytes=row.bytes,
        wal_entries=row.wal_entries,
        version=row.version,
        base_rows=row.base_rows,
        regions=row.regions,
        oldest_seconds=row.oldest_seconds,
        lag_generations=row.lag_generations,
        lag_rows=row.lag_rows,
        reclaimable_bytes=row.reclaimable_bytes,
    )


def _names(column: InstrumentedAttribute[str], table: str | None) -> CTE:
    """Names of the tables in an indexed column, found one by one; the last may be null."""
    if table is not None:
        return select(literal(table).label("name")).cte("names")
    names = select(func.min(column).label("name")).cte("names", recursive=True)
    further = select(func.min(column)).where(column > names.c.name).correlate(names)
    return names.union_all(select(further.scalar_subquery()).where(names.c.name.is_not(None)))


def _jobs(table: str | None) -> CTE:
    """Tables and their jobs that have runs, found one by one; the last of a table may be null."""
    names = _names(JobRunRow.table_name, table)
    first = select(func.min(JobRunRow.job)).where(JobRunRow.table_name == names.c.name)
    jobs = select(
        names.c.name.label("table_name"),
        first.correlate(names).scalar_subquery().label("job"),
    ).cte("jobs", recursive=True)
    of_table = JobRunRow.table_name == jobs.c.table_name
    further = select(func.min(JobRunRow.job)).where(of_table, JobRunRow.job > jobs.c.job)
    return jobs.union_all(
        select(jobs.c.table_name, further.correlate(jobs).scalar_subquery()).where(
            jobs.c.job.is_not(None)
        )
    )


def _pick(jobs: CTE, *conditions: ColumnElement[bool], offset: int = 0) -> ScalarSelect[int]:
    """Id of a run of each job, the one that was started last."""
    return (
        select(JobRunRow.id)
        .where(JobRunRow.table_name == jobs.c.table_name, JobRunRow.job == jobs.c.job)
        .where(*conditions)
        .order_by(JobRunRow.started_at.desc(), JobRunRow.id.desc())
        .limit(1)
        .offset(offset)
        .correlate(jobs)
        .scalar_subquery()
    )
