"""Look at all tables with the schedule ``@due`` from one event loop, and tell which jobs are due.

One poll of a triggerer serves the watchers of all tables. It never raises: a table that cannot be
read is recorded as failing in the catalog, and the others go on; a catalog that does not answer is
logged, and the tables that were read last are looked at.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from memwal.jobs.policy import WHEN_DUE
from memwal_airflow.hooks.storage_options import read_options_async

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.history import LatestRuns
    from memwal.catalog.records import ManagedTable
    from memwal.fleet.scheduler import FailureTracker
    from memwal.fleet.watch import TableWatch
    from memwal.jobs.job import JobRun

MAX_CONCURRENT_LOOKS = 8
LOOK_TIMEOUT_SECONDS = 300.0
GLANCE_SECONDS = 5.0
"""Limit of the glance at all local tables whose time has come."""

# More than looks at once: a look that does not answer in time keeps its thread until it does.
_THREADS = 64
REFRESH_SECONDS = 5.0
"""Pause between two looks at which tables the catalog has."""

OPTIONS_SECONDS = 60.0
"""Seconds for which storage options are reused, by all tables with the same reference."""

RUNS_SECONDS = 5.0
"""Pause between two reads of the runs of a table that stays due and does not change."""

SAMPLE_SECONDS = 60.0
"""Pause between two samples of the backlog of a table that changes all the time."""

RETRY_SECONDS = 60.0
"""Time after a failure within which the task tries again: its delay of 30 s, and its start."""

_JITTER = 0.1  # So that the looks at many tables spread over the pause between them.

log = logging.getLogger(__name__)

ReadOptions = Callable[[str | None], Awaitable[dict[str, str] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTable:
    """Due jobs of a table, as of one look.

    Attributes
    ----------
    jobs : mapping of str to str
        The jobs that are due, with the limit that each has reached. A job that failed is left out
        until its next try.
    succeeded : mapping of str to int
        The run of each job that succeeded last, by its number in the catalog.
    is_served : bool
        Whether a job of the table is running, or failed less than :data:`RETRY_SECONDS` ago, so
        that the same run of the DAG tries it again. After its last try, it is left out of ``jobs``.
    """

    jobs: Mapping[str, str]
    succeeded: Mapping[str, int] = field(default_factory=dict)
    is_served: bool = False


@dataclass(eq=False, slots=True)
class _Watched:
    """A table that is looked at."""

    table: ManagedTable
    watch: TableWatch
    next_look: float = 0.0  # By the clock of the tables.
    next_sample: float = 0.0
    has_sample: bool = True  # Whether the status that was read last is in the catalog.
    runs: LatestRuns | None = None
    next_runs: float = 0.0
    looking: asyncio.Task[None] | None = None
    due: DueTable | None = None


class DueTables:
    """The tables of a catalog that start when due, and what is due for each.

    Parameters
    ----------
    catalog : Catalog, optional
        By default that of ``$MEMWAL_CATALOG_URL``, opened with the first poll.
    read_options : callable
        Resolves a reference to storage options, without blocking the event loop.
    clock : callable
        Returns monotonic seconds.
    look_timeout : float
        Seconds after which a look counts as failed.
    """

    def __init__(
        self,
        *,
        catalog: Catalog | None = None,
        read_options: ReadOptions = read_options_async,
        clock: Callable[[], float] = time.monotonic,
        look_timeout: float = LOOK_TIMEOUT_SECONDS,
    ) -> None:
        self._catalog = catalog
        self._read_options = read_options
        self._clock = clock
        self._look_timeout = look_timeout
        self._failures: FailureTracker | None = None
        self._revision: tuple[int, datetime | None] | None = None
        self._next_refresh = 0.0
        self._tables: dict[str, _Watched] = {}
        self._options: dict[str, tuple[float, dict[str, str] | None]] = {}
        self._glance: asyncio.Future[list[_Watched]] | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="memwal-look")
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_LOOKS)

    async def poll(self) -> dict[str, DueTable]:
        """Start the looks whose time has come, and return what the finished ones found due.

        Does not wait for a look, so that a slow table delays no other. Never raises.
        """
        try:
            await self._refresh()
        except Exception as error:
            log.warning("The catalog cannot be read, trying again: %s", _describe(error))
        now = self._clock()
        ready = []
        for watched in self._tables.values():
            if watched.looking is None and now >= watched.next_look:
                pause = watched.table.policy.poll_seconds
                watched.next_look = now + pause * random.uniform(1 - _JITTER, 1)  # noqa: S311
                ready.append(watched)
        for watched in await self._not_idle(ready, now):
            watched.looking = asyncio.ensure_future(self._look(watched.table.name, watched))
        return {
            name: watched.due for name, watched in self._tables.items() if watched.due is not None
        }

    def close(self) -> None:
        """End the looks; the threads end with the requests that they wait for."""
        for watched in self._tables.values():
            if watched.looking is not None:
                watched.looking.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._catalog is not None:
            self._catalog.close()

    async def _refresh(self) -> None:
        """Read which tables there are, if the catalog has changed, and which jobs failed."""
        now = self._clock()
        if now < self._next_refresh:
            return
        self._next_refresh = now + REFRESH_SECONDS
        tables = await asyncio.to_thread(self._read_catalog)
        if tables is None:
            return
        for name in self._tables.keys() - tables.keys():
            del self._tables[name]
        for name, table in tables.items():
            if name in self._tables:
                self._tables[name].table = table
            else:
                self._tables[name] = _Watched(table, _new_watch())

    def _read_catalog(self) -> dict[str, ManagedTable] | None:
        """Return the tables that start when due, by name; None if the catalog has not changed."""
        from memwal.catalog import Catalog
        from memwal.fleet.scheduler import FailureTracker

        if self._catalog is None:
            self._catalog = Catalog()
        if self._failures is None:
            self._failures = FailureTracker(self._catalog)
        self._failures.read()
        revision = self._catalog.revision()
        if revision == self._revision:
            return None
        tables = self._catalog.list(enabled_only=True)
        # Only now: after an error above, the next call tries again.
        self._revision = revision
        return {table.name: table for table in tables if starts_when_due(table)}

    async def _not_idle(self, ready: list[_Watched], now: float) -> list[_Watched]:
        """Return the tables that have to be looked at one by one, by a glance at all of them.

        A thread of its own for each idle table would cost ten times as much. If a file system does
        not answer, the tables on the others are looked at all the same.
        """
        if not ready or (self._glance is not None and not self._glance.done()):
            return ready
        loop = asyncio.get_running_loop()
        self._glance = loop.run_in_executor(self._threads, _not_idle_now, ready, now)
        try:
            async with asyncio.timeout(GLANCE_SECONDS):
                return await asyncio.shield(self._glance)
        except TimeoutError:
            log.warning(
                "A file system did not answer in %g s: looking at each table by itself.",
                GLANCE_SECONDS,
            )
        for watched in ready:
            # The thread may still use the old one.
            watched.watch = _new_watch()
        return ready

    async def _look(self, name: str, watched: _Watched) -> None:
        try:
            if self._is_backing_off(name):
                return
            async with self._slots, asyncio.timeout(self._look_timeout):
                options = await self._options_of(watched.table.storage_options_ref)
                loop = asyncio.get_running_loop()
                watched.due = await loop.run_in_executor(
                    self._threads, self._look_now, watched, options
                )
        except Exception as error:
            watched.due = None
            # A thread that did not answer in time may still use the old one.
            watched.watch = _new_watch()
            await self._record_failure(name, error)
        finally:
            watched.looking = None

    def _is_backing_off(self, name: str) -> bool:
        from memwal.catalog.records import STATUS_JOB

        return self._failures is not None and self._failures.is_backing_off(name, STATUS_JOB)

    def _look_now(self, watched: _Watched, options: dict[str, str] | None) -> DueTable | None:
        from memwal.catalog.records import STATUS_JOB

        catalog, failures, table = self._catalog, self._failures, watched.table
        if catalog is None or failures is None:
            return None  # Not yet read, so that there are no tables either.
        look = watched.watch.look(catalog, table, storage_options=options or {})
        failures.clear(table.name, STATUS_JOB)
        now = self._clock()
        if look.is_fresh:
            watched.has_sample = False
        if not watched.has_sample and now >= watched.next_sample:
            catalog.record_backlog(table.name, look.survey.status)
            watched.has_sample, watched.next_sample = True, now + SAMPLE_SECONDS
        jobs = {
            job: due.reason
            for job, due in look.survey.due.items()
            if due.reason is not None and not failures.is_backing_off(table.name, job)
        }
        if not jobs:
            return None
        if look.is_fresh or now >= watched.next_runs:
            watched.runs = catalog.latest_runs(table=table.name).get(table.name)
            watched.next_runs = now + RUNS_SECONDS
        runs = watched.runs
        if runs is None:
            return DueTable(jobs=jobs)
        succeeded = {job: run.run_id for job, run in runs.succeeded.items()}
        is_served = bool(runs.running) or any(_tries_again(runs.newest.get(job)) for job in jobs)
        return DueTable(jobs=jobs, succeeded=succeeded, is_served=is_served)

    async def _record_failure(self, name: str, error: Exception) -> None:
        from memwal.catalog.records import STATUS_JOB
        from memwal.errors import StoreUnavailableError

        if isinstance(error, TimeoutError):
            limit = self._look_timeout
            error = StoreUnavailableError(f"{name} did not answer in {limit:.0f} s")
        try:
            if self._failures is not None:
                await asyncio.to_thread(self._failures.record, name, STATUS_JOB, "", error)
        except Exception as second:
            log.warning("%s: %s; not recorded: %s", name, _describe(error), _describe(second))

    async def _options_of(self, ref: str | None) -> dict[str, str] | None:
        """Return the options of a reference, read for all its tables once in a while."""
        if ref is None:
            return None
        now = self._clock()
        read_at, options = self._options.get(ref, (float("-inf"), None))
        if now - read_at >= OPTIONS_SECONDS:
            options = await self._read_options(ref)
            self._options[ref] = now, options
        return options


def _not_idle_now(ready: list[_Watched], now: float) -> list[_Watched]:
    def is_idle(watched: _Watched) -> bool:
        needs_sample = not watched.has_sample and now >= watched.next_sample
        try:
            return watched.due is None and not needs_sample and watched.watch.is_idle(watched.table)
        except Exception:
            # The look raises it again, for this table alone.
            return False

    return [watched for watched in ready if not is_idle(watched)]


def starts_when_due(table: ManagedTable) -> bool:
    """Return whether the runs of a table start when something is due."""
    return table.problem is None and table.policy.schedule == WHEN_DUE


def _tries_again(newest: JobRun | None) -> bool:
    """Return whether the newest run of a job is a try that failed and that another one follows."""
    if newest is None or newest.state != "failed" or newest.finished_at is None:
        return False
    return datetime.now(UTC) - newest.finished_at < timedelta(seconds=RETRY_SECONDS)


def _new_watch() -> TableWatch:
    from memwal.fleet.watch import TableWatch

    return TableWatch()


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
