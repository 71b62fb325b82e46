"""History of a catalog's tables: job runs, backlog samples, and the latest of each.

The latest samples and runs of all tables together cost a few queries. Every query jumps from one
table to the next in the indexes and reads no more than it returns, however long the histories are:
a ``GROUP BY`` would read them all.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    CursorResult,
    ScalarSelect,
    and_,
    delete,
    func,
    literal,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, defer

from memwal.catalog.database import database_time
from memwal.catalog.models import BacklogSampleRow, JobRunRow, ManagedTableRow, TableStateRow
from memwal.catalog.records import BacklogSample, Pruned, TableState
from memwal.catalog.runs import RunHistory, as_run
from memwal.jobs.job import JobRun, RunState
from memwal.jobs.status import TableStatus

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


class History(LatestHistory):
    """Job runs and backlog samples: what was, beside what is registered."""

    def record_backlog(self, table: str, status: TableStatus) -> BacklogSample:
        """Keep the sums of a status as a sample of now, and the whole of it until the next.

        Parameters
        ----------
        table : str
            Name of the managed table.
        status : TableStatus
            Of all its regions.
        """
        row = BacklogSampleRow(
            table_name=table,
            at=datetime.now(UTC),
            generations=status.backlog_generations,
            rows=status.backlog_rows,
            bytes=status.backlog_bytes,
            wal_entries=status.unflushed_wal_entries,
            version=status.version,
            base_rows=status.base_rows,
            regions=len(status.regions),
            oldest_seconds=status.oldest_backlog_seconds,
            lag_generations=max((index.generations for index in status.indexes), default=None),
            lag_rows=max((index.rows or 0 for index in status.indexes), default=None),
            reclaimable_bytes=status.reclaimable_bytes,
        )
        with self._database.writing() as session:
            session.add(row)
            self._keep_state(session, table, row.at, status.to_dict())
            session.flush()
            return as_sample(row)

    def _keep_state(
        self, session: Session, table: str, at: datetime, status: dict[str, Any]
    ) -> None:
        """Replace the status of a table by a later one."""
        replaced = session.execute(
            update(TableStateRow)
            .where(TableStateRow.table_name == table)
            .values(at=at, status=status)
        )
        if not _count(replaced):
            # Somebody else may just have made it, with a status that is as new.
            with contextlib.suppress(IntegrityError), session.begin_nested():
                session.add(TableStateRow(table_name=table, at=at, status=status))

    def states(self, *, table: str | None = None) -> list[TableState]:
        """Return the latest status of every table that was ever looked at, by name.

        Parameters
        ----------
        table : str, optional
            Only this one.
        """
        query = select(TableStateRow).order_by(TableStateRow.table_name)
        if table is not None:
            query = query.where(TableStateRow.table_name == table)
        with self._database.reading() as session:
            return [
                TableState(
                    table=row.table_name, at=row.at, status=TableStatus.from_dict(row.status)
                )
                for row in session.scalars(query)
            ]

    def backlog_history(
        self, table: str, *, since: datetime | None = None, limit: int = 10_000
    ) -> list[BacklogSample]:
        """Return the latest samples, oldest first.

        Parameters
        ----------
        table : str
            Name of the table; it need not be registered any more.
        since : datetime, optional
            Aware; only samples from then on.
        limit : int, default 10,000
            Most samples to return; the newest are kept.
        """
        query = select(BacklogSampleRow).where(BacklogSampleRow.table_name == table)
        if since is not None:
            query = query.where(BacklogSampleRow.at >= since)
        query = query.order_by(BacklogSampleRow.at.desc(), BacklogSampleRow.id.desc()).limit(limit)
        with self._database.reading() as session:
            return [as_sample(row) for row in session.scalars(query)][::-1]

    def prune_history(
        self, table: str, *, runs_before: datetime, samples_before: datetime
    ) -> Pruned:
        """Forget old runs and samples of a table.

        The latest run that succeeded of each job stays: it tells when the job is due. So does the
        latest sample of a table that is registered: a backlog is not gone because nobody looks.

        Parameters
        ----------
        table : str
            Name of the table; it need not be registered any more.
        runs_before : datetime
            Aware; runs that ended before, or have said nothing since.
        samples_before : datetime
            Aware.
        """
        latest = (
            select(func.max(JobRunRow.id))
            .where(JobRunRow.table_name == table, JobRunRow.state == RunState.SUCCEEDED.value)
            .group_by(JobRunRow.job)
        )
        last_word = func.coalesce(
            JobRunRow.finished_at, JobRunRow.heartbeat_at, JobRunRow.started_at
        )
        with self._database.writing() as session:
            kept = list(session.scalars(latest))
            runs = session.execute(
                delete(JobRunRow)
                .where(JobRunRow.table_name == table, last_word < runs_before)
                .where(JobRunRow.id.not_in(kept))
            )
            newest = session.scalar(
                select(BacklogSampleRow.id)
                .join(ManagedTableRow, ManagedTableRow.name == BacklogSampleRow.table_name)
                .where(BacklogSampleRow.table_name == table)
                .order_by(BacklogSampleRow.at.desc(), BacklogSampleRow.id.desc())
                .limit(1)
            )
            old = delete(BacklogSampleRow).where(
                BacklogSampleRow.table_name == table, BacklogSampleRow.at < samples_before
            )
            if newest is not None:
                old = old.where(BacklogSampleRow.id != newest)
            samples = session.execute(old)
            return Pruned(runs=_count(runs), samples=_count(samples))


def _count(result: Any) -> int:
    return result.rowcount if isinstance(result, CursorResult) else 0
