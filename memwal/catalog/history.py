"""What was done to the tables of a catalog, and how their backlog went."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select, update

from memwal.catalog.database import Database
from memwal.catalog.models import BacklogSampleRow, JobRunRow
from memwal.catalog.records import BacklogSample, JobRun, RunState
from memwal.errors import InvalidInputError, ObjectNotFoundError
from memwal.maintenance.results import JobResult
from memwal.maintenance.status import TableStatus


class ActiveRun:
    """A run that is going on; give it its result before the block of ``record_run`` ends.

    Attributes
    ----------
    run_id : int
        Number of the run in the catalog.
    result : JobResult or None
        What :meth:`finish` was given.
    """

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        self.result: JobResult | None = None

    def finish(self, result: JobResult) -> None:
        """Say what the job did."""
        self.result = result


class History:
    """Job runs and backlog samples; the part of ``Catalog`` that is only ever added to.

    Parameters
    ----------
    database : Database
        Where they are kept.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def start_run(self, table: str, job: str, *, external_id: str | None = None) -> int:
        """Record that a job has started and return the number of the run.

        Runs of the same table, job and external id that are still ``running`` become
        ``abandoned``: the process of an earlier try died without a word.
        """
        row = JobRunRow(
            table_name=table,
            job=job,
            state=RunState.RUNNING.value,
            started_at=datetime.now(UTC),
            external_id=external_id,
        )
        with self._database.writing() as session:
            if external_id is not None:
                session.execute(
                    update(JobRunRow)
                    .where(JobRunRow.table_name == table, JobRunRow.job == job)
                    .where(JobRunRow.external_id == external_id)
                    .where(JobRunRow.state == RunState.RUNNING.value)
                    .values(state=RunState.ABANDONED.value, finished_at=row.started_at)
                )
            session.add(row)
            session.flush()
            return row.id

    def finish_run(
        self, run_id: int, *, result: Mapping[str, Any] | None = None, error: str | None = None
    ) -> JobRun:
        """Record how a run ended: with ``result`` it succeeded, with ``error`` it failed.

        Raises
        ------
        InvalidInputError
            Not exactly one of the two is given.
        ObjectNotFoundError
            There is no such run.
        """
        if (result is None) == (error is None):
            raise InvalidInputError("Give finish_run() either a result or an error.")
        with self._database.writing() as session:
            row = session.get(JobRunRow, run_id)
            if row is None:
                raise ObjectNotFoundError(f"The catalog holds no job run {run_id}.")
            row.state = (RunState.FAILED if result is None else RunState.SUCCEEDED).value
            row.finished_at = datetime.now(UTC)
            row.result = None if result is None else dict(result)
            row.error = error
            session.flush()
            return _run(row)

    @contextlib.contextmanager
    def record_run(
        self, table: str, job: str, *, external_id: str | None = None
    ) -> Iterator[ActiveRun]:
        """Record a run around the block that does it.

        Examples
        --------
        >>> with catalog.record_run("flights", "merge") as run:
        ...     run.finish(memwal.open(uri).merge())

        Raises
        ------
        InvalidInputError
            The block ended without an error and without :meth:`ActiveRun.finish`.
        """
        run = ActiveRun(self.start_run(table, job, external_id=external_id))
        try:
            yield run
            if run.result is None:
                raise InvalidInputError("Call finish(result) inside the block of record_run().")
        except BaseException as error:
            self.finish_run(run.run_id, error=f"{type(error).__name__}: {error}")
            raise
        self.finish_run(run.run_id, result=run.result.to_dict())

    def runs(
        self, *, table: str | None = None, job: str | None = None, limit: int = 100
    ) -> list[JobRun]:
        """Return the latest runs, newest first."""
        query = select(JobRunRow).order_by(JobRunRow.started_at.desc(), JobRunRow.id.desc())
        if table is not None:
            query = query.where(JobRunRow.table_name == table)
        if job is not None:
            query = query.where(JobRunRow.job == job)
        with self._database.reading() as session:
            return [_run(row) for row in session.scalars(query.limit(limit))]

    def record_backlog(self, table: str, status: TableStatus) -> BacklogSample:
        """Keep the sums of a status as a sample of now."""
        row = BacklogSampleRow(
            table_name=table,
            at=datetime.now(UTC),
            generations=status.backlog_generations,
            rows=status.backlog_rows,
            bytes=status.backlog_bytes,
            wal_entries=sum(region.unflushed_wal_entries for region in status.regions),
        )
        with self._database.writing() as session:
            session.add(row)
            session.flush()
            return _sample(row)

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
            return [_sample(row) for row in session.scalars(query)][::-1]


def _run(row: JobRunRow) -> JobRun:
    return JobRun(
        run_id=row.id,
        table=row.table_name,
        job=row.job,
        state=RunState(row.state),
        started_at=row.started_at,
        finished_at=row.finished_at,
        result=row.result,
        error=row.error,
        external_id=row.external_id,
    )


def _sample(row: BacklogSampleRow) -> BacklogSample:
    return BacklogSample(
        table=row.table_name,
        at=row.at,
        generations=row.generations,
        rows=row.rows,
        bytes=row.bytes,
        wal_entries=row.wal_entries,
    )
