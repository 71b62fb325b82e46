"""Poll the tables with the schedule ``@due``, or a shard of them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from memwal.catalog import Catalog
from memwal.catalog.history import LatestRuns
from memwal.catalog.records import START_JOB, ManagedTable
from memwal.fleet.polls import FailureTracker, Outcome, TablePolls
from memwal.fleet.tables import Survey
from memwal.jobs.job import JobRun, RunState
from memwal_airflow.hooks.storage_options import read_options_async

REFRESH_SECONDS = 5.0
"""Pause between two reads of which tables the catalog has."""

OPTIONS_SECONDS = 60.0
"""Seconds for which storage options are reused, by all tables with the same reference."""

SHORTEST_WAIT_SECONDS = 0.2
"""Pause between two rounds through all tables, however many polls end."""

START_TIME = timedelta(seconds=30)
"""Time from the announcement of a table until the gate of its run has looked."""

RETRY_SECONDS = 60.0
"""Time after a failure within which the task tries again: its delay of 30 s, and its start."""

_UNSTARTED_REASON = (
    "it was announced for ten minutes, and no run served it: see whether memwal_due or the DAG of "
    "the table, or else memwal_drain, is paused or fails, and whether scheduler and workers run"
)

logger = logging.getLogger(__name__)

OptionsReader = Callable[[str | None], Awaitable[Mapping[str, str] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTable:
    """Due jobs of a table, as of one poll."""

    jobs: Mapping[str, str]
    """The jobs that are due, with the limit that each has reached. A job that failed is left out
    until its next try."""
    succeeded: Mapping[str, int] = field(default_factory=dict)
    """The run of each job that succeeded last, by its number in the catalog."""
    is_served: bool = False
    """Whether a job of the table is running, or failed less than :data:`RETRY_SECONDS` ago, so that
    the same run of the DAG tries it again. After its last try, it is left out of ``jobs``."""


class DueTables:
    """The tables of a catalog that start when due, and the due jobs of each.

    Parameters
    ----------
    catalog : Catalog, optional
        By default that of ``$MEMWAL_CATALOG_URL``, opened with the first poll.
    read_options : callable
        Resolves a reference to storage options, without blocking the event loop.
    shard, shards : int
        Only the tables of this one of the shards, see :func:`shard_of`.
    """

    def __init__(
        self,
        *,
        catalog: Catalog | None = None,
        read_options: OptionsReader = read_options_async,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self._catalog = catalog
        self._shard = shard
        self._shards = shards
        self._read_options = read_options
        self._polls: TablePolls | None = None
        self._options: dict[str, tuple[float, Mapping[str, str]]] = {}
        self._due: dict[str, DueTable | None] = {}
        self._unstarted: set[str] = set()

    async def poll(self) -> Mapping[str, DueTable]:
        """Start the polls whose time has come, and return the due jobs that finished ones found.

        Does not wait for a table, so that a slow one delays no other. Never raises: while the
        catalog does not answer, the tables that were read last are polled.
        """
        try:
            if self._catalog is None:
                self._catalog = await asyncio.to_thread(Catalog)
            catalog = self._catalog
            polls = self._polls = self._polls or TablePolls(
                catalog,
                storage_options=self._options_of,
                select=self._is_polled,
                refresh_seconds=REFRESH_SECONDS,
            )
            await polls.turn()
            due: list[tuple[Survey, dict[str, str]]] = []
            for result in polls.finished_results():
                if isinstance(result, Outcome):
                    self._due[result.table] = None
                elif jobs := due_reasons(polls.failures, result, now=datetime.now(UTC)):
                    due.append((result, jobs))
                else:
                    self._due[result.table.name] = None
            work = await polls.work.read([survey.table.name for survey, _ in due])
            now = datetime.now(UTC)
            for survey, jobs in due:
                name = survey.table.name
                self._due[name] = due_table(survey, jobs, work[name].runs, now=now)
        except Exception as error:
            logger.warning("The poll failed, trying again: %s: %s", type(error).__name__, error)
            return {}
        self._due = {name: due for name, due in self._due.items() if name in polls.tables}
        return {name: due for name, due in self._due.items() if due is not None}

    async def wait(self, seconds: float) -> None:
        """Wait for :data:`SHORTEST_WAIT_SECONDS`, then until a poll ends; ``seconds`` at most."""
        shortest = min(SHORTEST_WAIT_SECONDS, seconds)
        await asyncio.sleep(shortest)
        if self._polls is None:
            await asyncio.sleep(seconds - shortest)
        else:
            await self._polls.wait(seconds - shortest)

    async def record_unstarted(self, tables: set[str]) -> None:
        """Record for due tables that no run starts, and delete the records of other tables.

        Does nothing while it is known. Never raises: it is tried again at the next call.
        """
        catalog, polls = self._catalog, self._polls
        if catalog is None or polls is None:
            return
        recorded = self._unstarted | (polls.failures.tables(START_JOB) & set(polls.tables))
        try:
            for name in tables - recorded:
                await asyncio.to_thread(
                    catalog.backoffs.record_failure, name, START_JOB, _UNSTARTED_REASON
                )
            for name in recorded - tables:
                await asyncio.to_thread(catalog.backoffs.clear_failure, name, START_JOB)
        except Exception as error:
            logger.warning("Tables that no run starts are not recorded: %s", error)
        else:
            self._unstarted = tables

    def close(self) -> None:
        """End the polls; the threads end with the requests that they wait for."""
        if self._polls is not None:
            self._polls.close()
        if self._catalog is not None:
            self._catalog.close()

    def _is_polled(self, table: ManagedTable) -> bool:
        return table.starts_when_due and shard_of(table.name, self._shards) == self._shard

    async def _options_of(self, table: ManagedTable) -> Mapping[str, str]:
        """Return the options of a table, read for all tables of a reference once in a while."""
        ref, now = table.storage_options_ref, time.monotonic()
        if ref is None:
            return {}
        read_at, options = self._options.get(ref, (-math.inf, {}))
        if now - read_at >= OPTIONS_SECONDS:
            options = await self._read_options(ref) or {}
            self._options[ref] = now, options
        return options


def shard_of(table: str, shards: int) -> int:
    """Return the shard of a table, the same in every process."""
    return zlib.crc32(table.encode()) % shards


def due_reasons(failures: FailureTracker, survey: Survey, *, now: datetime) -> dict[str, str]:
    """Return the due jobs of a table that do not back off, with the limits that they reached.

    Jobs that quiet hours would hold back before a run has begun are left out.
    """
    name = survey.table.name
    will_be_quiet = survey.table.policy.quiet_window(now + START_TIME) is not None
    return {
        job: due.reason
        for job, due in survey.due.items()
        if due.reason is not None
        and (due.critical or not will_be_quiet)
        and not failures.is_backing_off(name, job)
    }


def due_table(
    survey: Survey, jobs: Mapping[str, str], runs: LatestRuns, *, now: datetime
) -> DueTable | None:
    """Return the due jobs of a table by its survey; None if no job is due any more.

    A job that succeeded after the survey is left out: its changes are not in the survey. The next
    poll reads whether it is due again.
    """
    served = set()
    for job, run in runs.succeeded.items():
        seen = survey.last_runs.get(job)
        if run.finished_at is not None and (seen is None or seen < run.finished_at):
            served.add(job)
    jobs = {job: reason for job, reason in jobs.items() if job not in served}
    if not jobs:
        return None
    return DueTable(
        jobs=jobs,
        succeeded={job: run.run_id for job, run in runs.succeeded.items()},
        is_served=bool(runs.running)
        or any(_tries_again(runs.newest.get(job), now) for job in jobs),
    )


def _tries_again(newest: JobRun | None, now: datetime) -> bool:
    """Return whether the newest run of a job is a try that failed and that another one follows."""
    if newest is None or newest.state != RunState.FAILED or newest.finished_at is None:
        return False
    return now - newest.finished_at < timedelta(seconds=RETRY_SECONDS)
