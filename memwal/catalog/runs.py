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
from typing import TypedDict, Unpack

from sqlalchemy import ColumnElement, and_, delete, func, literal, or_, select, update
from sqlalchemy.orm import Session

from memwal.boundary.public import public
from memwal.catalog.database import Database, database_time
from memwal.catalog.leases import Lease
from memwal.catalog.models import FailedJobRow, JobRunRow, record_of
from memwal.catalog.records import describe_error
from memwal.errors import InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.jobs.job import JobResult, JobRun, Result, RunState, Task, run_in_process
from memwal.jobs.metrics import job_metrics
from memwal.util.records import JsonMapping

logger = logging.getLogger(__name__)

# Interval of the heartbeats of a run.
BEAT_SECONDS = 15.0
# Minimal interval between two writes of the progress of a run.
PROGRESS_SECONDS = 1.0
# A run with heartbeats whose last one is older than this counts as dead.
RUN_SILENCE = timedelta(seconds=4 * BEAT_SECONDS)


class Progress(TypedDict, total=False):
    """Tasks that are done, and all tasks; rows and bytes that were processed so far."""

    done: int
    total: int
    rows: int
    bytes: int


class ActiveRun:
    """Active run; call :meth:`finish` before the block of ``record_run`` ends.

    A thread writes the progress and heartbeats. While the catalog does not answer, the run goes on
    and a warning is logged.
    """

    def __init__(self, history: RunHistory, run_id: int) -> None:
        self.run_id = run_id
        self.result: JobResult | None = None
        self._history = history
        self._lock = threading.Lock()
        self._progress: Progress = {}
        self._changed = False
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._write_progress, name=f"run {run_id}", daemon=True
        )
        self._thread.start()

    def progress(self, **progress: Unpack[Progress]) -> None:
        """Set parts of the progress; cheap enough to call for every task."""
        with self._lock:
            self._progress.update(progress)
            self._changed = True

    def run_tasks(self, tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        """Run tasks in this process and count them; pass this as ``run`` to a job's methods."""
        self.progress(done=0, total=len(tasks))
        done = 0

        def step(task: Task) -> Result:
            nonlocal done
            result = function(task)
            done += 1
            self.progress(done=done, total=len(tasks))
            return result

        return run_in_process(tasks, step)

    def finish(self, result: JobResult) -> None:
        """Set the result of the run."""
        self.result = result

    def stop(self) -> Progress:
        """Stop writing, and return the progress so far."""
        self._over.set()
        self._thread.join()
        return self._progress.copy()

    def _write_progress(self) -> None:
        written_at = time.monotonic()
        while not self._over.wait(PROGRESS_SECONDS):
            with self._lock:
                changed, self._changed = self._changed, False
                progress = self._progress.copy()
            if not changed and time.monotonic() - written_at < BEAT_SECONDS:
                continue
            try:
                self._history.update_run(self.run_id, **progress)
                written_at = time.monotonic()
            except MemWalError as error:
                logger.warning("the progress of run %d was not written: %s", self.run_id, error)


# A literal in the statement: with a parameter, a database cannot use the partial index of running
# runs.
_RUNNING = JobRunRow.state == literal(RunState.RUNNING.value, literal_execute=True)


@public
class RunHistory:
    """Job runs in the ``database`` of a catalog."""

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
        ``abandoned``: the process of an earlier try died. So do runs of the table whose heartbeats
        stopped.

        Parameters
        ----------
        table, job : str
            Name of the managed table, and ``merge``, ``index``, ``snapshot``, ``gc`` ...
        external_id : str, optional
            Id of the run in the system that started it, such as Airflow.
        version_before : int, optional
            Version of the base table.
        lease_token : int, optional
            Token of the lease that the run holds.
        beats : bool, default False
            Whether :meth:`update_run` will be called at least every 15 s. The run then counts as
            dead after a minute without a call. :meth:`record_run` makes these calls.
        """
        with self._database.writing() as session:
            now = database_time(session)
            row = JobRunRow(
                table=table,
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
                .where(JobRunRow.table == table, _RUNNING, dead)
                .values(state=RunState.ABANDONED.value, finished_at=now)
            )
            session.add(row)
            session.flush()
            return row.id

    def update_run(self, run_id: int, **progress: Unpack[Progress]) -> None:
        """Store the progress of the run ``run_id``, and a heartbeat.

        ``progress`` is any of ``done`` and ``total`` (tasks that are done, and all tasks), ``rows``
        and ``bytes`` (processed so far). An ``abandoned`` run becomes ``running`` again; a run that
        has ended does not change.
        """
        with self._database.writing() as session:
            session.execute(
                update(JobRunRow)
                .where(JobRunRow.id == run_id)
                .where(or_(_RUNNING, JobRunRow.state == RunState.ABANDONED.value))
                .values(
                    **progress,
                    state=RunState.RUNNING.value,
                    finished_at=None,
                    heartbeat_at=database_time(session),
                )
            )

    def finish_run(
        self,
        run_id: int,
        *,
        result: JsonMapping | None = None,
        error: BaseException | str | None = None,
        progress: Progress | None = None,
    ) -> JobRun:
        """Record the end of the run ``run_id``: success with ``result``, failure with ``error``.

        Of an error that is not given as a text, its kind is stored, and a text without data. A
        success ends a recorded failure of the job. ``result`` is ``JobResult.to_dict()``; it
        provides the version after the run, its rows and bytes. ``progress`` is the last ``done``,
        ``total``, ``rows`` and ``bytes``.

        Raises
        ------
        InvalidInputError
            Not exactly one of result and error is given.
        ObjectNotFoundError
            No run has this number.
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
            row.error, row.error_type = (None, None) if error is None else describe_error(error)
            for name, value in {**(progress or {}), **_totals(result or {})}.items():
                setattr(row, name, value)
            if result is not None:
                forget_failure(session, row.table, row.job)
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
        """Record a run around the block that executes it, with its progress.

        When the process dies, the run becomes ``abandoned`` about a minute later.

        Parameters
        ----------
        table, job, external_id, version_before
            As in :meth:`start_run`.
        lease : Lease, optional
            The lease that the run holds.

        Raises
        ------
        InvalidInputError
            The block ended without an error and without :meth:`ActiveRun.finish`.

        Examples
        --------
        >>> with catalog.record_run("flights", "merge") as run:
        ...     run.finish(memwal.open(uri).merge(run=run.run_tasks))
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
            try:
                self.finish_run(run_id, error=error, progress=progress)
            except MemWalError as second:
                # The caller must get the first error.
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
        """Return the latest runs, newest first, at most ``limit``.

        ``table``, ``job`` and ``state`` select runs with these values, and ``since``, which is
        aware, runs that started at this time or later.
        """
        query = select(JobRunRow).order_by(JobRunRow.started_at.desc(), JobRunRow.id.desc())
        if table is not None:
            query = query.where(JobRunRow.table == table)
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
        """Return the run with the number ``run_id``, or raise ``ObjectNotFoundError``."""
        with self._database.reading() as session:
            row = session.get(JobRunRow, run_id)
            if row is None:
                raise _no_run(run_id)
            return as_run(row, database_time(session))

    def last_runs(self, table: str) -> dict[str, datetime]:
        """Return when each job of ``table`` last succeeded, in UTC, without jobs that never did."""
        query = (
            select(JobRunRow.job, func.max(JobRunRow.finished_at))
            .where(JobRunRow.table == table)
            .where(JobRunRow.state == RunState.SUCCEEDED.value)
            .group_by(JobRunRow.job)
        )
        with self._database.reading() as session:
            return {job: at for job, at in session.execute(query) if at is not None}


def forget_failure(session: Session, table: str, job: str) -> None:
    """Delete the record that a job of a table failed, if there is one."""
    session.execute(
        delete(FailedJobRow).where(FailedJobRow.table == table, FailedJobRow.job == job)
    )


def _totals(result: JsonMapping) -> dict[str, int]:
    """Return the rows, bytes and version of a result, as columns of its run."""
    metrics: Mapping[str, int] = result.get("metrics") or {}
    totals: dict[str, int] = {}
    rows = [count for name, count in metrics.items() if name == "rows" or name[:5] == "rows_"]
    if rows:
        totals["rows"] = sum(rows)
    if "bytes" in metrics:
        totals["bytes"] = metrics["bytes"]
    if result.get("version") is not None:
        totals["version_after"] = result["version"]
    return totals


def _silent(now: datetime) -> ColumnElement[bool]:
    return and_(JobRunRow.heartbeat_at.is_not(None), JobRunRow.heartbeat_at < now - RUN_SILENCE)


def _no_run(run_id: int) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"The catalog holds no job run {run_id}.")


def as_run(row: JobRunRow, now: datetime, **computed: object) -> JobRun:
    """Convert a row to a run, abandoned if its heartbeats stopped; ``computed`` wins."""
    state = RunState(row.state)
    beat = row.heartbeat_at
    if state is RunState.RUNNING and beat is not None and beat < now - RUN_SILENCE:
        state = RunState.ABANDONED
    return record_of(JobRun, row, run_id=row.id, state=state, **computed)


# Number of the latest runs among which the first call searches running ones.
_LOOK_BACK = 10_000
_ENDED = (RunState.SUCCEEDED.value, RunState.FAILED.value, RunState.ABANDONED.value)


class RunFeed:
    """Feed of ended runs: each call returns the runs that ended since the call before.

    A call reads by number of the run, so its cost does not depend on the length of the history.
    Runs that ended before the first call are not returned.

    A number is assigned before its run becomes visible: a run may appear after others with higher
    numbers. Every call therefore reads the ``late`` latest runs again.
    """

    def __init__(self, database: Database, *, late: int = 200) -> None:
        self._database = database
        self._late = late
        self._newest: int | None = None
        self._unfinished: set[int] = set()
        self._returned: set[int] = set()

    def ended(self) -> list[JobRun]:
        """Return the runs that ended since the last call; nothing at the first one.

        After a ``StoreUnavailableError`` no run is lost: the next call returns it.
        """
        with self._database.reading() as session:
            first = self._newest is None
            newest = session.scalar(select(func.max(JobRunRow.id))) or 0
            start = newest - _LOOK_BACK if self._newest is None else self._newest - self._late
            candidates = session.execute(
                select(JobRunRow.id, JobRunRow.state).where(
                    or_(JobRunRow.id > start, JobRunRow.id.in_(self._unfinished))
                )
            ).all()
            ended = {number for number, state in candidates if state in _ENDED}
            new = set() if first else ended - self._returned
            rows = session.scalars(select(JobRunRow).where(JobRunRow.id.in_(new)))
            now = database_time(session)
            runs = sorted((as_run(row, now) for row in rows), key=lambda run: run.run_id)
        self._newest = max([newest, *(number for number, _ in candidates)])
        # Drops runs that were pruned since then.
        self._unfinished = {number for number, _ in candidates} - ended
        self._returned = {n for n in self._returned | ended if n > self._newest - self._late}
        return runs
