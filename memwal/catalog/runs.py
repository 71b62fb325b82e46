"""Runs of maintenance jobs: progress while active, results, and a feed of runs that ended.

A run that has not reported for too long counts as abandoned.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import ColumnElement, and_, func, literal, or_, select, update

from memwal.catalog.database import Database, database_time
from memwal.catalog.leases import Lease
from memwal.catalog.models import JobRunRow
from memwal.errors import InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.jobs.job import JobResult, JobRun, RunState, run_in_process
from memwal.jobs.metrics import job_metrics

logger = logging.getLogger(__name__)

BEAT_SECONDS = 15.0
"""How often a run says that its process lives."""

PROGRESS_SECONDS = 1.0
"""How often its progress is written, at most."""


class RunBook(Protocol):
    """Where the progress of runs is written down."""

    def update_run(
        self,
        run_id: int,
        *,
        done: int | None = None,
        total: int | None = None,
        rows: int | None = None,
        bytes: int | None = None,
    ) -> None:
        """Keep what is given, and that the run is alive."""


class ActiveRun:
    """A run that is going on; give it its result before the block of ``record_run`` ends.

    A thread writes its progress and that it is alive. When the catalog does not answer, the run
    goes on and the log says so.

    Attributes
    ----------
    run_id : int
        Number of the run in the catalog.
    result : JobResult or None
        What :meth:`finish` was given.
    """

    def __init__(self, book: RunBook, run_id: int) -> None:
        self.run_id = run_id
        self.result: JobResult | None = None
        self._book = book
        self._lock = threading.Lock()
        self._progress: dict[str, int] = {}
        self._changed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name=f"run {run_id}", daemon=True)
        self._thread.start()

    def progress(
        self, *, done: int, total: int, rows: int | None = None, bytes: int | None = None
    ) -> None:
        """Say how far the run is; costs nothing, and may be called for every task.

        Parameters
        ----------
        done, total : int
            Tasks.
        rows, bytes : int, optional
            What went through them so far.
        """
        found = {"done": done, "total": total, "rows": rows, "bytes": bytes}
        with self._lock:
            self._progress |= {key: value for key, value in found.items() if value is not None}
            self._changed = True

    def run_tasks(self, tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        """Run tasks in this process and count them: the ``run`` of a job's methods."""
        self.progress(done=0, total=len(tasks))
        done = 0

        def step(task: Any) -> Any:
            nonlocal done
            result = function(task)
            done += 1
            self.progress(done=done, total=len(tasks))
            return result

        return run_in_process(tasks, step)

    def finish(self, result: JobResult) -> None:
        """Say what the job did."""
        self.result = result

    def stop(self) -> dict[str, int]:
        """Tell no more, and return the progress that was made."""
        self._over.set()
        self._thread.join()
        return dict(self._progress)

    def _tell(self) -> None:
        told_at = time.monotonic()
        while not self._over.wait(PROGRESS_SECONDS):
            with self._lock:
                changed, self._changed = self._changed, False
                progress = dict(self._progress)
            if not changed and time.monotonic() - told_at < BEAT_SECONDS:
                continue
            try:
                self._book.update_run(self.run_id, **progress)
                told_at = time.monotonic()
            except MemWalError as error:
                logger.warning("the progress of run %d was not written: %s", self.run_id, error)


RUN_SILENCE = timedelta(seconds=4 * BEAT_SECONDS)
"""A run that says it is alive, and then says nothing for so long, is taken for dead."""

# Spelled out in the statement, since a database cannot tell of a parameter that the index of such
# runs has them.
_RUNNING = JobRunRow.state == literal(RunState.RUNNING.value, literal_execute=True)


class RunHistory:
    """The runs of a catalog.

    Parameters
    ----------
    database : Database
        Where they are kept.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def start_run(
        self,
        table: str,
        job: str,
        *,
        external_id: str | None = None,
        version_before: int | None = None,
        lease_token: int | None = None,
        beats: bool = False,
    ) -> int:
        """Record that a job has started and return the number of the run.

        Runs of the same table, job and external id that are still ``running`` become
        ``abandoned``: the process of an earlier try died without a word. So do runs of the table
        that have been silent for too long.

        Parameters
        ----------
        table, job : str
            Name of the managed table, and ``merge``, ``index``, ``snapshot``, ``gc`` ...
        external_id : str, optional
            Id of the run where it was started.
        version_before : int, optional
            Version of the base table.
        lease_token : int, optional
            Token of the lease that it runs under.
        beats : bool, default False
            Whether :meth:`update_run` will be called at least every 15 s, and the run taken for
            dead when it is not for a minute. :meth:`record_run` does.
        """
        with self._database.writing() as session:
            now = database_time(session)
            row = JobRunRow(
                table_name=table,
                job=job,
                state=RunState.RUNNING.value,
                started_at=now,
                external_id=external_id,
                version_before=version_before,
                lease_token=lease_token,
                heartbeat_at=now if beats else None,
            )
            dead = _silent(now)
            if external_id is not None:
                dead = or_(dead, and_(JobRunRow.job == job, JobRunRow.external_id == external_id))
            session.execute(
                update(JobRunRow)
                .where(JobRunRow.table_name == table, _RUNNING, dead)
                .values(state=RunState.ABANDONED.value, finished_at=now)
            )
            session.add(row)
            session.flush()
            return row.id

    def update_run(
        self,
        run_id: int,
        *,
        done: int | None = None,
        total: int | None = None,
        rows: int | None = None,
        bytes: int | None = None,
    ) -> None:
        """Keep the progress that is given, and that the run is alive.

        One that was taken for dead meanwhile and is not, is ``running`` again; one that has ended
        is left as it is.

        Parameters
        ----------
        run_id : int
            Number of the run.
        done, total : int, optional
            Tasks that are done, and of how many.
        rows, bytes : int, optional
            Worked on so far.
        """
        found = {"done": done, "total": total, "rows": rows, "bytes": bytes}
        with self._database.writing() as session:
            values: dict[str, Any] = {k: v for k, v in found.items() if v is not None}
            session.execute(
                update(JobRunRow)
                .where(JobRunRow.id == run_id)
                .where(or_(_RUNNING, JobRunRow.state == RunState.ABANDONED.value))
                .values(
                    **values,
                    state=RunState.RUNNING.value,
                    finished_at=None,
                    heartbeat_at=database_time(session),
                )
            )

    def finish_run(
        self,
        run_id: int,
        *,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
        progress: Mapping[str, int] | None = None,
    ) -> JobRun:
        """Record how a run ended: with ``result`` it succeeded, with ``error`` it failed.

        Parameters
        ----------
        run_id : int
            As of :meth:`start_run`.
        result : mapping, optional
            ``JobResult.to_dict()``; the version after the run, its rows and bytes are taken from
            it.
        error : str, optional
            What went wrong.
        progress : mapping, optional
            The last ``done``, ``total``, ``rows`` and ``bytes``.

        Raises
        ------
        InvalidInputError
            Not exactly one of result and error is given.
        ObjectNotFoundError
            There is no such run.
        """
        if (result is None) == (error is None):
            raise InvalidInputError("Give finish_run() either a result or an error.")
        with self._database.writing() as session:
            row = session.get(JobRunRow, run_id)
            if row is None:
                raise _no_run(run_id)
            row.state = (RunState.FAILED if result is None else RunState.SUCCEEDED).value
            row.finished_at = now = database_time(session)
            row.result = None if result is None else dict(result)
            row.error = error
            for name, value in {**(progress or {}), **_measured(result or {})}.items():
                setattr(row, name, value)
            session.flush()
            run = as_run(row, now)
        job_metrics().ended(run)
        return run

    @contextlib.contextmanager
    def record_run(
        self,
        table: str,
        job: str,
        *,
        external_id: str | None = None,
        version_before: int | None = None,
        lease: Lease | None = None,
    ) -> Iterator[ActiveRun]:
        """Record a run around the block that does it, with its progress.

        When the process dies, the run becomes ``abandoned`` about a minute later.

        Parameters
        ----------
        table : str
            Name of the managed table.
        job : str
            ``merge``, ``index`` ...
        external_id : str, optional
            Name of the run for whoever started it, such as an id of Airflow.
        version_before : int, optional
            Version of the base table before the run.
        lease : Lease, optional
            The lease that it runs under.

        Examples
        --------
        >>> with catalog.record_run("flights", "merge") as run:
        ...     run.finish(memwal.open(uri).merge(run=run.run_tasks))

        Raises
        ------
        InvalidInputError
            The block ended without an error and without :meth:`ActiveRun.finish`.
        """
        run_id = self.start_run(
            table,
            job,
            external_id=external_id,
            version_before=version_before,
            lease_token=lease.token if lease is not None else None,
            beats=True,
        )
        run = ActiveRun(self, run_id)
        try:
            try:
                yield run
            finally:
                progress = run.stop()
            if run.result is None:
                raise InvalidInputError("Call finish(result) inside the block of record_run().")
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            try:
                self.finish_run(run_id, error=reason, progress=progress)
            except MemWalError as second:
                # What went wrong first is what the caller must hear of.
                logger.warning("the failure of run %d was not written: %s", run_id, second)
            raise
        self.finish_run(run_id, result=run.result.to_dict(), progress=progress)

    def runs(
        self,
        *,
        table: str | None = None,
        job: str | None = None,
        state: RunState | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[JobRun]:
        """Return the latest runs, newest first.

        Parameters
        ----------
        table, job, state : optional
            Only these.
        since : datetime, optional
            Aware; only runs that were started from then on.
        limit : int, default 100
            Most runs to return.
        """
        query = select(JobRunRow).order_by(JobRunRow.started_at.desc(), JobRunRow.id.desc())
        if table is not None:
            query = query.where(JobRunRow.table_name == table)
        if job is not None:
            query = query.where(JobRunRow.job == job)
        if since is not None:
            query = query.where(JobRunRow.started_at >= since)
        with self._database.reading() as session:
            now = database_time(session)
            if state is RunState.RUNNING:
                query = query.where(_RUNNING, ~_silent(now))
            elif state is RunState.ABANDONED:
                silent = and_(_RUNNING, _silent(now))
                query = query.where(or_(JobRunRow.state == state.value, silent))
            elif state is not None:
                query = query.where(JobRunRow.state == state.value)
            return [as_run(row, now) for row in session.scalars(query.limit(limit))]

    def run(self, run_id: int) -> JobRun:
        """Return one run.

        Parameters
        ----------
        run_id : int
            Number of the run.

        Raises
        ------
        ObjectNotFoundError
            There is none with this number.
        """
        with self._database.reading() as session:
            row = session.get(JobRunRow, run_id)
            if row is None:
                raise _no_run(run_id)
            return as_run(row, database_time(session))

    def last_runs(self, table: str) -> dict[str, datetime]:
        """When each job of a table last ended well, in UTC; jobs that never did are absent.

        Parameters
        ----------
        table : str
            Name of the managed table.
        """
        query = (
            select(JobRunRow.job, func.max(JobRunRow.finished_at))
            .where(JobRunRow.table_name == table)
            .where(JobRunRow.state == RunState.SUCCEEDED.value)
            .group_by(JobRunRow.job)
        )
        with self._database.reading() as session:
            return {job: at for job, at in session.execute(query) if at is not None}


def _measured(result: Mapping[str, Any]) -> dict[str, int]:
    """What a result tells of rows, bytes and the version."""
    figures: Mapping[str, int] = result.get("figures") or {}
    found: dict[str, int] = {}
    rows = [count for name, count in figures.items() if name == "rows" or name[:5] == "rows_"]
    if rows:
        found["rows"] = sum(rows)
    if "bytes" in figures:
        found["bytes"] = figures["bytes"]
    if result.get("version") is not None:
        found["version_after"] = result["version"]
    return found


def _silent(now: datetime) -> ColumnElement[bool]:
    return and_(JobRunRow.heartbeat_at.is_not(None), JobRunRow.heartbeat_at < now - RUN_SILENCE)


def _no_run(run_id: int) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"The catalog holds no job run {run_id}.")


def as_run(row: JobRunRow, now: datetime, *, with_result: bool = True) -> JobRun:
    """What the catalog gives out for a row; one that has been silent for too long is abandoned."""
    state = RunState(row.state)
    beat = row.heartbeat_at
    if state is RunState.RUNNING and beat is not None and beat < now - RUN_SILENCE:
        state = RunState.ABANDONED
    return JobRun(
        run_id=row.id,
        table=row.table_name,
        job=row.job,
        state=state,
        started_at=row.started_at,
        finished_at=row.finished_at,
        result=row.result if with_result else None,
        error=row.error,
        external_id=row.external_id,
        done=row.done,
        total=row.total,
        rows=row.rows,
        bytes=row.bytes,
        version_before=row.version_before,
        version_after=row.version_after,
        lease_token=row.lease_token,
        heartbeat_at=beat,
    )


# Runs that were still going on at the first look are found among so many of the latest.
_LOOK_BACK = 10_000
_ENDED = (RunState.SUCCEEDED.value, RunState.FAILED.value, RunState.ABANDONED.value)


class RunFeed:
    """Tells of every run that ended since the last look, once.

    A look reads by number of the run, so that it costs the same however long the history is. What
    ended before the first look is not told of.

    Parameters
    ----------
    database : Database
        Of a catalog, :attr:`memwal.catalog.Catalog.database`.
    late : int, default 200
        How many of the latest runs every look reads again. Numbers are given before they are seen:
        a run may turn up after others with higher ones.
    """

    def __init__(self, database: Database, *, late: int = 200) -> None:
        self._database = database
        self._late = late
        self._newest: int | None = None
        self._open: set[int] = set()
        self._told: set[int] = set()

    def ended(self) -> list[JobRun]:
        """Return the runs that ended since the last call; nothing at the first one.

        Raises
        ------
        StoreUnavailableError
            The database does not answer. Nothing is lost: the next call tells of it.
        """
        with self._database.reading() as session:
            first = self._newest is None
            newest = session.scalar(select(func.max(JobRunRow.id))) or 0
            start = newest - _LOOK_BACK if self._newest is None else self._newest - self._late
            found = session.execute(
                select(JobRunRow.id, JobRunRow.state).where(
                    or_(JobRunRow.id > start, JobRunRow.id.in_(self._open))
                )
            ).all()
            ended = {number for number, state in found if state in _ENDED}
            new = set() if first else ended - self._told
            rows = session.scalars(select(JobRunRow).where(JobRunRow.id.in_(new)))
            now = database_time(session)
            runs = sorted((as_run(row, now) for row in rows), key=lambda run: run.run_id)
        self._newest = max([newest, *(number for number, _ in found)])
        # A run that was pruned meanwhile is forgotten.
        self._open = {number for number, _ in found} - ended
        self._told = {n for n in self._told | ended if n > self._newest - self._late}
        return runs
