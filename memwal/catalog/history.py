"""History of a catalog's tables: job runs, backlog samples, and the latest of each.

The latest samples and runs of all tables together cost a few queries. Every query jumps from one
table to the next in the indexes and reads no more than it returns, however long the histories are:
a ``GROUP BY`` would read them all.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, defer

from memwal.boundary.public import public
from memwal.catalog.backoff import Backoffs, SkippedRegionRecord, read_skipped_regions
from memwal.catalog.database import database_time
from memwal.catalog.models import (
    BacklogSampleRow,
    JobRunRow,
    ManagedTableRow,
    TableStateRow,
    record_of,
)
from memwal.catalog.records import (
    LOG_JOB,
    PROGRESS_JOB,
    STATUS_JOB,
    BacklogSample,
    Pruned,
    TableState,
)
from memwal.catalog.runs import RunHistory, as_run, forget_failure
from memwal.jobs.job import JobRun, RunState
from memwal.jobs.status import TableStatus
from memwal.util.records import JsonObject

logger = logging.getLogger(__name__)

# Merges that took longer are left out of History.merges.
LONGEST_RUN = timedelta(hours=6)
# Latest runs that are read of one job of one table, since several can run at once.
_RUNS_PER_JOB = 3


@dataclass(frozen=True, slots=True)
class MergedRowCount:
    """Rows that one merge wrote to the base table."""

    table: str
    at: datetime  # when the run ended, in UTC
    rows: int  # upserted and deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestRuns:
    """The newest runs of one table, by job."""

    newest: dict[str, JobRun]  # the run that started last
    ended: dict[str, JobRun]  # the last run that has ended, successfully or not
    succeeded: dict[str, JobRun]  # the last run that succeeded
    # if the last ended run failed: the first of its failures in a row, of the latest 3 runs
    failing: dict[str, JobRun]
    running: tuple[JobRun, ...]  # active runs, ordered by start
    unindexable_rows: int = 0  # that an index cannot hold, by the last build that succeeded


_NO_RUNS = LatestRuns(newest={}, ended={}, succeeded={}, failing={}, running=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """Runs and skipped regions of one table, from one read of many tables."""

    runs: LatestRuns
    skipped_regions: tuple[SkippedRegionRecord, ...]  # whether their next try is due or not

    @property
    def last_runs(self) -> dict[str, datetime]:
        """When each job last succeeded, in UTC, without jobs that never did."""
        ended = {job: run.finished_at for job, run in self.runs.succeeded.items()}
        return {job: at for job, at in ended.items() if at is not None}


@public
class History(RunHistory):
    """Job runs, backlog samples and the latest status of tables."""

    def latest_samples(self, *, table: str | None = None) -> list[BacklogSample]:
        """Return the newest sample of every table that has one, or only of ``table``, by name."""
        return self._samples(None, newest=True, table=table)

    def first_samples(self, since: datetime, *, table: str | None = None) -> list[BacklogSample]:
        """Return the oldest sample since a time of every table that has one, or only of ``table``.

        They are ordered by name. ``since`` is aware.
        """
        return self._samples(since, newest=False, table=table)

    def _samples(
        self, since: datetime | None, *, newest: bool, table: str | None
    ) -> list[BacklogSample]:
        names = _table_names(BacklogSampleRow.table, table)
        row = aliased(BacklogSampleRow)
        samples = sa.select(row.id).where(row.table == names.c.name)
        if since is not None:
            samples = samples.where(row.at >= since)
        order = (row.at.desc(), row.id.desc()) if newest else (row.at, row.id)
        first = samples.order_by(*order).limit(1).correlate(names).scalar_subquery()
        query = (
            sa.select(BacklogSampleRow)
            .where(BacklogSampleRow.id.in_(sa.select(first).select_from(names)))
            .order_by(BacklogSampleRow.table)
        )
        with self._database.reading() as session:
            return [record_of(BacklogSample, row) for row in session.scalars(query)]

    def merges(self, since: datetime, *, table: str | None = None) -> list[MergedRowCount]:
        """Return the rows of each merge (of ``table``) that succeeded since a time, oldest first.

        ``since`` is aware.
        """
        jobs = _table_jobs(_table_names(JobRunRow.table, table))
        query = (
            sa.select(JobRunRow.table, JobRunRow.finished_at, JobRunRow.rows)
            .join(jobs, sa.and_(JobRunRow.table == jobs.c.table, JobRunRow.job == jobs.c.job))
            .where(jobs.c.job == "merge", JobRunRow.started_at >= since - LONGEST_RUN)
            .where(JobRunRow.finished_at >= since, JobRunRow.state == RunState.SUCCEEDED.value)
            .order_by(JobRunRow.finished_at)
        )
        with self._database.reading() as session:
            return [
                MergedRowCount(name, at, rows or 0)
                for name, at, rows in session.execute(query)
                if at is not None
            ]

    def latest_runs(self, *, table: str | None = None) -> dict[str, LatestRuns]:
        """Return the newest runs of every table, or only of ``table``, without their results."""
        with self._database.reading() as session:
            jobs = _table_jobs(_table_names(JobRunRow.table, table))
            return _latest_runs(session, jobs, database_time(session))

    def work_of(self, tables: Collection[str]) -> dict[str, TableWork]:
        """Return the work of registered ``tables``, in as many queries for all as for one."""
        names = sa.select(ManagedTableRow.name).where(ManagedTableRow.name.in_(tables)).cte("names")
        skipped: dict[str, list[SkippedRegionRecord]] = defaultdict(list)
        with self._database.reading() as session:
            now = database_time(session)
            runs = _latest_runs(session, _table_jobs(names), now)
            for record in read_skipped_regions(session, tables, now):
                skipped[record.table].append(record)
        return {
            name: TableWork(runs=runs.get(name, _NO_RUNS), skipped_regions=tuple(skipped[name]))
            for name in tables
        }

    def backlog_points(self, table: str, *, since: datetime, most: int) -> list[BacklogSample]:
        """Return samples of ``table`` since a time, oldest first, thinned out evenly to ``most``.

        The newest sample is always included. The table need not be registered any more. ``since``
        is aware, ``most`` at least 1.
        """
        of_table = sa.and_(BacklogSampleRow.table == table, BacklogSampleRow.at >= since)
        newest_first = (BacklogSampleRow.at.desc(), BacklogSampleRow.id.desc())
        place = sa.func.row_number().over(order_by=newest_first).label("place")
        with self._database.reading() as session:
            count = session.scalar(sa.select(sa.func.count()).where(of_table)) or 0
            every = max(1, -(-count // most))
            placed = sa.select(BacklogSampleRow.id, place).where(of_table).subquery()
            chosen = sa.select(placed.c.id).where(placed.c.place % every == 1 % every)
            query = sa.select(BacklogSampleRow).where(BacklogSampleRow.id.in_(chosen))
            rows = list(session.scalars(query.order_by(*newest_first)))
            return [record_of(BacklogSample, row) for row in reversed(rows)]

    def latest_run_with(self, table: str, key: str, *, since: datetime) -> JobRun | None:
        """Return the newest successful run of ``table`` whose result has a ``key``, or None.

        The key is one of the result's JSON, beyond the keys that every result has. ``since`` is
        aware; earlier runs are ignored.
        """
        value = JobRunRow.result[key]
        query = (
            sa.select(JobRunRow)
            .where(JobRunRow.table == table, JobRunRow.started_at >= since)
            .where(JobRunRow.state == RunState.SUCCEEDED.value, value.as_string().is_not(None))
            .order_by(JobRunRow.started_at.desc(), JobRunRow.id.desc())
            .limit(1)
        )
        with self._database.reading() as session:
            row = session.scalar(query)
            return None if row is None else as_run(row, database_time(session))

    def record_backlog(
        self, table: str, status: TableStatus, *, probe: JsonObject | None = None
    ) -> BacklogSample:
        """Store the sums of a status as a sample of now, and the status as the latest of its table.

        ``status`` covers all regions of ``table``; a later poll compares itself with ``probe``. A
        recorded failure to read the status is over; a log that lacks an entry is recorded as one,
        until none does.
        """
        row = BacklogSampleRow(
            table=table,
            at=datetime.now(UTC),
            generations=status.backlog_generations,
            rows=status.backlog_rows,
            bytes=status.backlog_bytes,
            wal_entries=status.unflushed_wal_entries,
            version=status.version,
            base_rows=status.base_rows,
            regions=status.region_count,
            oldest_seconds=status.oldest_backlog_seconds,
            lag_generations=max((index.generations for index in status.indexes), default=None),
            lag_rows=max((index.rows or 0 for index in status.indexes), default=None),
            reclaimable_bytes=status.reclaimable_bytes,
        )
        problems = {LOG_JOB: status.log_problem, PROGRESS_JOB: status.lost_progress}
        with self._database.writing() as session:
            session.add(row)
            _replace_state(session, table, row.at, status.to_dict(), probe)
            forget_failure(session, table, STATUS_JOB)
            for job, problem in problems.items():
                if problem is None:
                    forget_failure(session, table, job)
            session.flush()
            sample = record_of(BacklogSample, row)
        for job, problem in problems.items():
            if problem is not None:
                Backoffs(self._database).record_failure(table, job, problem)
        return sample

    def record_seen(self, tables: Collection[str]) -> None:
        """Record that ``tables`` were polled now, and are as their newest samples say.

        One statement for all tables. A table without a sample is left out.
        """
        names = sa.select(ManagedTableRow.name).where(ManagedTableRow.name.in_(tables)).cte("names")
        newest = (
            sa.select(BacklogSampleRow.id)
            .where(BacklogSampleRow.table == names.c.name)
            .order_by(BacklogSampleRow.at.desc(), BacklogSampleRow.id.desc())
            .limit(1)
            .correlate(names)
            .scalar_subquery()
        )
        now = datetime.now(UTC)
        update = sa.update(BacklogSampleRow).where(
            BacklogSampleRow.id.in_(sa.select(newest).select_from(names)),
            # Taken by another process after the look.
            BacklogSampleRow.at < now,
        )
        with self._database.writing() as session:
            session.execute(update.values(seen_at=now).execution_options(synchronize_session=False))

    def states(self, *, table: str | None = None) -> list[TableState]:
        """Return the latest status of every table that has one, or only of ``table``, by name.

        A status that cannot be read counts as none.
        """
        query = sa.select(TableStateRow).order_by(TableStateRow.table)
        if table is not None:
            query = query.where(TableStateRow.table == table)
        with self._database.reading() as session:
            states = ((row, _read_status(row)) for row in session.scalars(query))
            return [
                record_of(TableState, row, status=status)
                for row, status in states
                if status is not None
            ]

    def prune_history(
        self, table: str, *, runs_before: datetime, samples_before: datetime
    ) -> Pruned:
        """Delete old runs and samples of ``table``, which need not be registered any more.

        Runs are deleted that ended before ``runs_before``, or whose last heartbeat was before it,
        and samples that were taken before ``samples_before``; both times are aware. The latest
        successful run of each job stays, since it decides when the job is due. So does the latest
        sample of a registered table: a backlog does not vanish because no newer sample was taken.
        """
        latest = (
            sa.select(sa.func.max(JobRunRow.id))
            .where(JobRunRow.table == table, JobRunRow.state == RunState.SUCCEEDED.value)
            .group_by(JobRunRow.job)
        )
        last_active = sa.func.coalesce(
            JobRunRow.finished_at, JobRunRow.heartbeat_at, JobRunRow.started_at
        )
        with self._database.writing() as session:
            retained = list(session.scalars(latest))
            runs = session.execute(
                sa.delete(JobRunRow)
                .where(JobRunRow.table == table, last_active < runs_before)
                .where(JobRunRow.id.not_in(retained))
            )
            newest = session.scalar(
                sa.select(BacklogSampleRow.id)
                .join(ManagedTableRow, ManagedTableRow.name == BacklogSampleRow.table)
                .where(BacklogSampleRow.table == table)
                .order_by(BacklogSampleRow.at.desc(), BacklogSampleRow.id.desc())
                .limit(1)
            )
            old = sa.delete(BacklogSampleRow).where(
                BacklogSampleRow.table == table, BacklogSampleRow.at < samples_before
            )
            if newest is not None:
                old = old.where(BacklogSampleRow.id != newest)
            samples = session.execute(old)
            return Pruned(runs=_row_count(runs), samples=_row_count(samples))


def _latest_runs(session: Session, jobs: sa.CTE, now: datetime) -> dict[str, LatestRuns]:
    """Read the newest runs of tables and jobs, without their results."""
    picks = [_latest_run_id(jobs, offset=offset) for offset in range(_RUNS_PER_JOB)]
    picks.append(_latest_run_id(jobs, JobRunRow.state == RunState.SUCCEEDED.value))
    run_ids = sa.union_all(*(sa.select(pick).select_from(jobs) for pick in picks)).subquery()
    refused = JobRunRow.result[("metrics", "unindexable_rows")].as_integer()
    query = (
        sa.select(JobRunRow, refused)
        .options(defer(JobRunRow.result))
        .where(JobRunRow.id.in_(sa.select(run_ids.c[0])))
        .order_by(JobRunRow.started_at, JobRunRow.id)
    )
    runs_by_table: dict[str, list[JobRun]] = defaultdict(list)
    unindexable: dict[str, int] = {}
    for row, rows in session.execute(query):
        run = as_run(row, now, result=None)
        runs_by_table[row.table].append(run)
        if run.job == "index" and run.state is RunState.SUCCEEDED:
            unindexable[row.table] = rows or 0
    return {
        name: LatestRuns(
            newest={run.job: run for run in runs},
            ended={run.job: run for run in runs if run.state is not RunState.RUNNING},
            succeeded={run.job: run for run in runs if run.state is RunState.SUCCEEDED},
            failing=_failing(runs),
            running=tuple(run for run in runs if run.state is RunState.RUNNING),
            unindexable_rows=unindexable.get(name, 0),
        )
        for name, runs in runs_by_table.items()
    }


def _read_status(row: TableStateRow) -> TableStatus | None:
    try:
        return TableStatus.from_dict(row.status)
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("the status of %s in the catalog cannot be read: %r", row.table, error)
        return None


def _failing(runs: Iterable[JobRun]) -> dict[str, JobRun]:
    """Return the first of the trailing failures of each job; the runs are ordered by start."""
    failing: dict[str, JobRun] = {}
    for run in runs:
        if run.state is RunState.SUCCEEDED:
            failing.pop(run.job, None)
        elif run.state is not RunState.RUNNING:
            failing.setdefault(run.job, run)
    return failing


def _table_names(column: InstrumentedAttribute[str], table: str | None) -> sa.CTE:
    """Select the distinct table names of an indexed column one by one; the last may be null."""
    if table is not None:
        return sa.select(sa.literal(table).label("name")).cte("names")
    names = sa.select(sa.func.min(column).label("name")).cte("names", recursive=True)
    further = sa.select(sa.func.min(column)).where(column > names.c.name).correlate(names)
    return names.union_all(sa.select(further.scalar_subquery()).where(names.c.name.is_not(None)))


def _table_jobs(names: sa.CTE) -> sa.CTE:
    """Select the jobs of tables that have runs one by one; a table's last job may be null."""
    first = sa.select(sa.func.min(JobRunRow.job)).where(JobRunRow.table == names.c.name)
    jobs = sa.select(
        names.c.name.label("table"), first.correlate(names).scalar_subquery().label("job")
    ).cte("jobs", recursive=True)
    of_table = JobRunRow.table == jobs.c.table
    further = sa.select(sa.func.min(JobRunRow.job)).where(of_table, JobRunRow.job > jobs.c.job)
    return jobs.union_all(
        sa.select(jobs.c.table, further.correlate(jobs).scalar_subquery()).where(
            jobs.c.job.is_not(None)
        )
    )


def _latest_run_id(
    jobs: sa.CTE, *conditions: sa.ColumnElement[bool], offset: int = 0
) -> sa.ScalarSelect[int]:
    """Select the id of the latest run of each job, or of an earlier one with ``offset``."""
    return (
        sa.select(JobRunRow.id)
        .where(JobRunRow.table == jobs.c.table, JobRunRow.job == jobs.c.job)
        .where(*conditions)
        .order_by(JobRunRow.started_at.desc(), JobRunRow.id.desc())
        .limit(1)
        .offset(offset)
        .correlate(jobs)
        .scalar_subquery()
    )


def _replace_state(
    session: Session, table: str, at: datetime, status: JsonObject, probe: JsonObject | None
) -> None:
    query = sa.update(TableStateRow).where(TableStateRow.table == table)
    if not _row_count(session.execute(query.values(at=at, status=status, probe=probe))):
        # Another process may have inserted it just now, with a status that is as new.
        with contextlib.suppress(sa.exc.IntegrityError), session.begin_nested():
            session.add(TableStateRow(table=table, at=at, status=status, probe=probe))


def _row_count(result: object) -> int:
    return result.rowcount if isinstance(result, sa.CursorResult) else 0
