"""Report problems that only Airflow's database shows to the catalog, from the API server.

Every :data:`REPORT_SECONDS`, an API server reads from Airflow's database which components have no
heartbeat, which runs of tables failed, which runs and tasks nothing takes, and which shards of the
tables no trigger watches. The number of statements does not depend on the number of tables. The
report replaces the one before, of any process, so that a process that was paused, or that repeats a
report, is corrected by the next report within seconds. A report that grows old counts as a missing
heartbeat of the API server, see :func:`memwal.fleet.health.airflow_problems`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.jobs.job import most_recent_job
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from memwal.catalog import Catalog
from memwal.catalog.records import AirflowProblem
from memwal.errors import MemWalError
from memwal.fleet.health import Health
from memwal_airflow import DAG_PREFIX
from memwal_airflow.due_dag import DUE_DAG_ID
from memwal_airflow.links import DRAIN_DAG_ID
from memwal_airflow.provider.settings import DUE_WATCHERS
from memwal_airflow.seats import watched_shards
from memwal_airflow.triggers.due_tables import shard_of

REPORT_SECONDS: Final = 10.0
"""Pause between two reports."""

QUEUED_TIME: Final = timedelta(minutes=2)
"""Time after which a run or a task that nothing takes is reported."""

TIMEOUT_GRACE: Final = timedelta(minutes=1)
"""Time that the scheduler has to end a task whose trigger did not answer in time."""

FIRST_RUNS: Final = timedelta(days=7)
"""Age of the oldest runs that the first report of a process reads."""

_COMPONENTS: Final = {
    "scheduler": "SchedulerJob",
    "triggerer": "TriggererJob",
    "DAG processor": "DagProcessorJob",
}

_OVERLAP: Final = 200

logger = logging.getLogger(__name__)


@asynccontextmanager
async def reporting(get_catalog: Callable[[], Catalog]) -> AsyncIterator[None]:
    """Report every few seconds while the block runs."""
    task = asyncio.create_task(_report_forever(get_catalog))
    try:
        yield
    finally:
        task.cancel()


async def _report_forever(get_catalog: Callable[[], Catalog]) -> None:
    reporter = AirflowReporter()
    while True:
        try:
            await asyncio.to_thread(lambda: reporter.report(get_catalog()))
        except MemWalError as error:
            logger.warning("The state of Airflow is not reported, trying again: %s", error)
        except Exception:
            logger.exception("The state of Airflow is not reported, trying again.")
        await asyncio.sleep(REPORT_SECONDS)


class AirflowReporter:
    """Reads the problems of Airflow, and keeps since when they are there."""

    def __init__(self) -> None:
        self._runs = _TableRuns()
        self._database_down_since: datetime | None = None
        self._unwatched_since: datetime | None = None

    def report(self, catalog: Catalog) -> None:
        """Replace the report in the catalog."""
        now = datetime.now(UTC)
        try:
            with create_session() as session:
                problems = list(self.problems(session, catalog, now=now))
            self._database_down_since = None
        except SQLAlchemyError as error:
            since = self._database_down_since = self._database_down_since or now
            text = f"Airflow's database does not answer: {type(error).__name__}"
            problems = [_problem(Health.NO_HEARTBEAT, since, text)]
        catalog.reports.record_airflow(problems)

    def problems(
        self, session: Session, catalog: Catalog, *, now: datetime
    ) -> Iterator[AirflowProblem]:
        """Yield the problems that Airflow's database shows now."""
        for name, job_type in _COMPONENTS.items():
            yield from _component_problems(session, name, job_type, now)
        unwatched = list(_watcher_problems(session, catalog, self._unwatched_since or now))
        self._unwatched_since = unwatched[0].since if unwatched else None
        yield from unwatched
        yield from self._runs.problems(session, now)
        yield from _task_problems(session, now)


def _component_problems(
    session: Session, name: str, job_type: str, now: datetime
) -> Iterator[AirflowProblem]:
    newest = most_recent_job(job_type, session=session)
    if newest is not None and newest.is_alive():
        return
    beat = newest.latest_heartbeat if newest is not None else None
    if beat is None:
        text = f"no {name} of Airflow was ever started"
    else:
        text = f"the {name} of Airflow is without a heartbeat"
    yield _problem(Health.NO_HEARTBEAT, beat or now, text)


def _watcher_problems(
    session: Session, catalog: Catalog, since: datetime
) -> Iterator[AirflowProblem]:
    """Yield a problem for all tables if no shard is watched, else one for each table of a shard."""
    shards = DUE_WATCHERS.read()
    missing = set(range(shards)) - watched_shards(session, shards=shards)
    if not missing:
        return
    reason = (
        "no triggerer runs the trigger that watches it: see whether Airflow has the DAG "
        "memwal_due or memwal_drain, and whether a triggerer runs and has a seat left "
        "([triggerer] capacity)"
    )
    if len(missing) == shards:
        yield _problem(Health.UNWATCHED, since, reason)
        return
    for table in catalog.list(enabled_only=True):
        if table.starts_when_due and shard_of(table.name, shards) in missing:
            yield _problem(Health.UNWATCHED, since, reason, table=table.name)


class _TableRuns:
    """The open and failed runs of tables, from one read to the next.

    A read asks for the runs that are new, and for the runs that it knows as open or failed, by
    their numbers: its cost is that of the changes. A run that a person cleared is open again, and
    one that was deleted is forgotten. Numbers are given before they are committed, so that a run
    can appear after one with a higher number: the last :data:`_OVERLAP` numbers are read again, of
    runs of the last :data:`FIRST_RUNS`.
    """

    def __init__(self) -> None:
        self._last_id: int | None = None
        self._known: dict[int, Any] = {}

    def problems(self, session: Session, now: datetime) -> Iterator[AirflowProblem]:
        """Yield the failed runs that no other run followed, and the runs that nothing takes."""
        self._read(session, now)
        runs = self._known.values()
        for run in runs:
            # A run for many tables fails if a job of one did, which is recorded for that table.
            if run.state == DagRunState.FAILED and run.dag_id != DRAIN_DAG_ID:
                since = run.end_date or now
                text = f"the run {run.run_id} of {run.dag_id} failed"
                yield _problem(Health.RUN_FAILED, since, text, table=_table(run.dag_id))
        running = {run.dag_id for run in runs if run.state == DagRunState.RUNNING}
        waiting = [
            run
            for run in runs
            if run.state == DagRunState.QUEUED
            and run.dag_id not in running
            and run.queued_at is not None
            and now - run.queued_at >= QUEUED_TIME
        ]
        if not waiting:
            return
        paused = set(
            session.scalars(
                select(DagModel.dag_id).where(DagModel.is_paused, _is_ours(DagModel.dag_id))
            )
        )
        for run in waiting:
            why = "its DAG is paused" if run.dag_id in paused else "the scheduler does not start it"
            text = f"the run {run.run_id} of {run.dag_id} is queued, and {why}"
            yield _problem(Health.RUN_QUEUED, run.queued_at, text, table=_table(run.dag_id))

    def _read(self, session: Session, now: datetime) -> None:
        of_tables = _is_ours(DagRun.dag_id)
        columns = (
            DagRun.id,
            DagRun.dag_id,
            DagRun.run_id,
            DagRun.state,
            DagRun.queued_at,
            DagRun.end_date,
        )
        query = select(*columns).where(of_tables).order_by(DagRun.id)
        recent = DagRun.run_after >= now - FIRST_RUNS
        if self._last_id is None:
            query = query.where(recent)
        else:
            late = recent & (DagRun.id > self._last_id - _OVERLAP)
            query = query.where(
                or_(DagRun.id > self._last_id, late, DagRun.id.in_(list(self._known)))
            )
        runs = session.execute(query).all()
        # The newest run may be older than those that are read again.
        self._last_id = max([self._last_id or 0, *(run.id for run in runs)]) or None
        known: dict[int, Any] = {}
        failed: dict[str, int] = {}
        for run in runs:
            if run.state == DagRunState.SUCCESS or run.state == DagRunState.FAILED:
                known.pop(failed.pop(run.dag_id, -1), None)
            if run.state == DagRunState.FAILED:
                failed[run.dag_id] = run.id
            if run.state != DagRunState.SUCCESS:
                known[run.id] = run
        self._known = known


def _task_problems(session: Session, now: datetime) -> Iterator[AirflowProblem]:
    """Yield the tasks of tables that no executor takes, and tasks that no triggerer answers."""
    waiting = session.execute(
        select(
            TaskInstance.dag_id,
            TaskInstance.task_id,
            TaskInstance.state,
            TaskInstance.pool,
            TaskInstance.queued_dttm,
            TaskInstance.scheduled_dttm,
            TaskInstance.trigger_timeout,
        )
        .where(_is_ours(TaskInstance.dag_id))
        .where(
            or_(
                (TaskInstance.state == TaskInstanceState.QUEUED)
                & (TaskInstance.queued_dttm <= now - QUEUED_TIME),
                (TaskInstance.state == TaskInstanceState.SCHEDULED)
                & (TaskInstance.scheduled_dttm <= now - QUEUED_TIME),
                (TaskInstance.state == TaskInstanceState.DEFERRED)
                & (TaskInstance.trigger_timeout <= now - TIMEOUT_GRACE),
            )
        )
    )
    for task in waiting:
        what = f"the task {task.task_id} of {task.dag_id}"
        state = Health.RUN_QUEUED
        if task.state == TaskInstanceState.QUEUED:
            since, text = task.queued_dttm, f"no executor takes {what}"
        elif task.state == TaskInstanceState.SCHEDULED:
            since = task.scheduled_dttm
            text = f"{what} waits for a slot of the pool {task.pool}, or of the executor"
        else:
            state, since = Health.SENSOR_TIMEOUT, task.trigger_timeout
            text = f"no triggerer answered {what} in time"
        yield _problem(state, since, text, table=_table(task.dag_id))


def _is_ours(dag_id: Any) -> Any:
    """Select the DAGs that run jobs of tables, or start their runs."""
    of_tables = dag_id.startswith(DAG_PREFIX, autoescape=True)
    return or_(of_tables, dag_id.in_([DUE_DAG_ID, DRAIN_DAG_ID]))


def _table(dag_id: str) -> str | None:
    """Return the table of a DAG; None if it is one for all tables."""
    return dag_id.removeprefix(DAG_PREFIX) if dag_id.startswith(DAG_PREFIX) else None


def _problem(
    state: Health, since: datetime, reason: str, *, table: str | None = None
) -> AirflowProblem:
    return AirflowProblem(state=state.value, table=table, since=since, reason=reason)
