"""Scheduler of many tables on one budget, for installations without another scheduler.

A loop polls the tables (:mod:`memwal.fleet.polls`), chooses among the due jobs by a fair queue and
runs the chosen one. Every job runs under its lease, so any number of fleets can share a catalog. A
failure is recorded with the time of its next attempt and stops nothing else: a table whose status
cannot be read, a job of a table, or a region of a merge.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memwal.boundary.public import public
from memwal.catalog.records import ManagedTable
from memwal.errors import ConflictError, InvalidInputError, MemWalError, StoreUnavailableError
from memwal.fleet.job_spec import JobRequest, Skipped
from memwal.fleet.polls import FailureTracker, Outcome, ReadLimits, TablePolls
from memwal.fleet.run_job import IN_PROCESS, Runtime, run_job
from memwal.fleet.tables import register_folder
from memwal.jobs.due import JOBS, NOT_DUE, Due
from memwal.jobs.job import JobResult, TaskRunner, run_in_process
from memwal.util.clock import Duration, in_seconds
from memwal.util.memory import release_free_memory

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.fleet.tables import Survey

_PRESSURE_CAP = 8.0
_CRITICAL = 1.0
_PRIORITIES = 100.0
# Difference between the lowest and the highest urgency.
_SPREAD = 1.0 + _CRITICAL + 1.0
_STEP = 0.1
# Less than this is not worth a commit.
_MIN_BYTES = 1 << 20
# Number of choices in which newer jobs can overtake a waiting job.
MAX_PASSED_OVER = round(_SPREAD / _STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of a managed table that is due."""

    table: str
    job: str
    due: Due
    priority: int = 1  # of the table, 1 to 100
    bytes: int = 0  # bytes that a merge would take in; 0 for other jobs

    @property
    def urgency(self) -> float:
        """Urgency of the job, from 0 to 3."""
        pressure = min(max(self.due.pressure, 0.0), _PRESSURE_CAP) / _PRESSURE_CAP
        return pressure + _CRITICAL * self.due.critical + self.priority / _PRIORITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A job that is to run now."""

    due_job: QueuedJob
    run_bytes: int | None  # bytes that it may take in; None for any


@dataclass(slots=True)
class FairQueue:
    """Fair choice of the next job, when many tables share few workers.

    The job with the highest pressure goes first, and a waiting job gains with every choice that
    passes it over. Since pressure is capped, no job starves: after :data:`MAX_PASSED_OVER` choices
    no newer job overtakes it, and each job that was already waiting overtakes it at most once.
    """

    _waited: dict[tuple[str, str], int] = field(default_factory=dict)

    def waited(self, table: str, job: str) -> int:
        """Return how many choices passed a job over since it became due or was last chosen."""
        return self._waited.get((table, job), 0)

    def choose(
        self, due_jobs: Collection[QueuedJob], *, slots: int, remaining_bytes: int | None = None
    ) -> list[Choice]:
        """Choose up to ``slots`` jobs to run now, at most one of each table.

        No job may be running on the tables of the due jobs. ``remaining_bytes`` limits the bytes
        that the chosen merges take in together: the first merge gets the bytes that it needs, the
        next one the remaining bytes.
        """
        chosen: list[Choice] = []
        tables: set[str] = set()
        remaining = remaining_bytes
        for due_job in sorted(due_jobs, key=self._order):
            if len(chosen) == slots:
                break
            if due_job.table in tables:
                continue
            run_bytes: int | None = None
            if due_job.job == "merge" and remaining is not None:
                if remaining < _MIN_BYTES:
                    continue
                run_bytes = remaining
                remaining -= min(max(due_job.bytes, _MIN_BYTES), remaining)
            tables.add(due_job.table)
            chosen.append(Choice(due_job=due_job, run_bytes=run_bytes))
        if chosen:
            for due_job in due_jobs:
                key = due_job.table, due_job.job
                self._waited[key] = self._waited.get(key, 0) + 1
            for choice in chosen:
                self._waited.pop((choice.due_job.table, choice.due_job.job), None)
        return chosen

    def forget(self, table: str, jobs: Iterable[str]) -> None:
        """Reset the waiting count of jobs that are no longer due."""
        for job in jobs:
            self._waited.pop((table, job), None)

    def _order(self, due_job: QueuedJob) -> tuple[float, int, str]:
        waited = self.waited(due_job.table, due_job.job)
        score = due_job.urgency + _STEP * waited
        return -score, JOBS.index(due_job.job), due_job.table


_GIB = 1 << 30


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of the resources that a fleet uses at a time.

    Raises
    ------
    InvalidInputError
        One of them is less than 1.
    """

    jobs: int = 2
    """Jobs that run at once, each in a thread of this process."""
    bytes: int | None = 4 * _GIB
    """Bytes in memory that the running merges take in together; a merge that does not fit is done
    in part. None sets no limit. A single generation above the limit is still merged."""
    surveys: int = 8
    """Tables whose status is read at once."""

    def __post_init__(self) -> None:
        if min(self.jobs, self.surveys, self.bytes if self.bytes is not None else 1) < 1:
            raise InvalidInputError("jobs, bytes and surveys of a budget must be at least 1")


logger = logging.getLogger(__name__)


_NAP_SECONDS = 0.2
_PRUNE_SECONDS = 3600.0
_FOLDER_SECONDS = 600.0
# Limit of the search that the single run of all jobs waits for.
_SEARCH_SECONDS = 300.0
_RETRY_SECONDS = 60.0


@public
class Fleet:
    """Maintains the enabled tables of a catalog.

    Parameters
    ----------
    catalog : Catalog
    budget : Budget, optional
    tables : collection of str, optional
        Only these, and no upkeep of the catalog; by default all enabled tables. A table without a
        schedule is never surveyed by :meth:`run_forever`.
    runner : callable
        Returns the task runner of the jobs of a table, such as
        :func:`memwal.spark.runner.connect_runner`; by default the tasks run in this process. Both
        the callable and the task runner are called from several threads.
    max_tasks : int, optional
        Maximal number of tasks that a job is divided into; by default as many as its runner runs at
        once.
    storage_options : callable, optional
        Returns the storage options of a table; by default they are read from the file that the
        catalog refers to.
    lease_ttl : float or timedelta, optional
        Time to live of the leases, 60 s by default: how long other processes wait if this one
        dies.
    on_outcome : callable, optional
        Called with every outcome, from the thread that runs the fleet.
    runtime : Runtime, optional
        Its ``execute`` and ``external_id`` are those of each job. ``execute`` is called from
        several threads.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        budget: Budget | None = None,
        tables: Collection[str] | None = None,
        runner: Callable[[ManagedTable], TaskRunner] = lambda table: run_in_process,
        max_tasks: int | None = None,
        storage_options: Callable[[ManagedTable], Mapping[str, str] | None] | None = None,
        lease_ttl: Duration | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
        runtime: Runtime = IN_PROCESS,
    ) -> None:
        self._catalog = catalog
        self._budget = budget or Budget()
        self._only = None if tables is None else frozenset(tables)
        self._runner = runner
        self._max_tasks = max_tasks
        self._storage_options = storage_options or (lambda table: None)
        self._lease_ttl = lease_ttl
        self._on_outcome = on_outcome or (lambda outcome: None)
        self._runtime = runtime
        self._stopping = threading.Event()
        self._queue = FairQueue()
        self._surveys: dict[str, Survey] = {}
        self._due_jobs: dict[tuple[str, str], QueuedJob] = {}
        self._working: dict[str, tuple[Choice, asyncio.Future[JobResult | Skipped]]] = {}
        # Of one call of run_once: the started jobs, and the tables whose jobs have ended.
        self._started: set[tuple[str, str]] = set()
        self._changed: set[str] = set()
        self._polls: TablePolls | None = None
        self._next_prune = self._next_search = -math.inf
        self._search: threading.Thread | None = None
        self._turned_at = time.monotonic()

    def stop(self) -> None:
        """Shut the fleet down for good; running jobs end before their next commit.

        May be called from any thread, and from a signal handler.
        """
        self._stopping.set()

    @property
    def seconds_since_turn(self) -> float:
        """Seconds since the loop of the fleet last made a turn, which takes a fraction of one."""
        return time.monotonic() - self._turned_at

    @property
    def is_ready(self) -> bool:
        """True if the catalog answered when it was last read."""
        return self._polls is not None and self._polls.catalog_answers

    def run_once(self, *, seconds: Duration | None = None) -> list[Outcome]:
        """Survey every table, regardless of its schedule, and run each due job once.

        A table is surveyed again after its jobs: a merge makes indexes due. After ``seconds`` no
        job is started, and the call returns when the running ones have ended.

        Raises ``StoreUnavailableError`` if the catalog does not answer.
        """
        limit = math.inf if seconds is None else in_seconds(seconds)
        return self._loop(every=None, stop_at=time.monotonic() + limit)

    def run_forever(self, *, every: Duration = 10.0) -> None:
        """Survey the tables by their schedules and run the due jobs, until :meth:`stop`.

        Reads the catalog at the interval ``every``, in seconds (``InvalidInputError`` unless above
        0), and waits while it does not answer. Raises ``TableSetupError`` if the catalog has no
        schema, or another one.
        """
        seconds = in_seconds(every)
        if seconds <= 0:
            raise InvalidInputError("every must be a number of seconds above 0")
        self._loop(every=seconds)

    def _loop(self, *, every: float | None, stop_at: float = math.inf) -> list[Outcome]:
        """Run the loop in a thread of its own: that of the caller may have an event loop."""
        with ThreadPoolExecutor(1, thread_name_prefix="memwal-fleet") as pool:
            try:
                running = pool.submit(asyncio.run, self._run(every=every, stop_at=stop_at))
                # In turns: a signal that the system gives to another thread ends no wait of the
                # main thread, which alone can run its handler.
                while not running.done():
                    wait([running], timeout=_NAP_SECONDS)
                return running.result()
            except BaseException:
                # Running jobs end before their next commit, and the executor waits for them.
                self._stopping.set()
                raise

    async def _run(self, *, every: float | None, stop_at: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        self._started.clear()
        self._changed.clear()
        polls = self._polls = TablePolls(
            self._catalog,
            storage_options=lambda table: asyncio.to_thread(self._storage_options, table),
            select=lambda table: self._only is None or table.name in self._only,
            refresh_seconds=every or math.inf,
            limits=ReadLimits(max_reads=self._budget.surveys),
        )
        with ThreadPoolExecutor(self._budget.jobs, thread_name_prefix="memwal-job") as jobs:
            try:
                if every is None:
                    await asyncio.to_thread(self._search_folders, wait=_SEARCH_SECONDS)
                    await polls.poll_all()
                while not self._stopping.is_set():
                    self._turned_at = time.monotonic()
                    self._prune()
                    if every is not None:
                        self._search_folders()
                        await polls.turn(busy=self._working)
                        for name in self._surveys.keys() - polls.tables:
                            self._forget(name)
                    is_late = time.monotonic() >= stop_at
                    if not is_late:
                        if every is None:
                            await self._survey_changed(polls)
                        self._start_jobs(polls, jobs, once=every is None)
                    if every is None and not self._working and (is_late or not polls.running):
                        break
                    outcomes += await self._collect(polls, keep=every is None)
            except BaseException:
                # Running jobs end before their next commit, and the executor waits for them.
                self._stopping.set()
                raise
            finally:
                polls.close(wait=True)
            while self._working:
                outcomes += await self._collect(polls, keep=every is None)
        return outcomes

    def _prune(self) -> None:
        """Delete old rows of the catalog from time to time."""
        now = time.monotonic()
        if now < self._next_prune or self._only is not None:
            return
        self._next_prune = now + _PRUNE_SECONDS
        try:
            self._catalog.prune()
        except StoreUnavailableError as error:
            self._next_prune = now + _RETRY_SECONDS
            logger.warning("old rows of the catalog were not deleted, trying again: %s", error)

    def _search_folders(self, *, wait: float = 0.0) -> None:
        """Register the new tables of the catalog's folders from time to time, in a thread.

        Waits some seconds for a search that it starts. A folder that does not answer stops neither
        the tables nor the end of the process.
        """
        now = time.monotonic()
        is_searching = self._search is not None and self._search.is_alive()
        if is_searching or now < self._next_search or self._only is not None:
            return
        self._next_search = now + _FOLDER_SECONDS
        self._search = threading.Thread(
            target=self._register_folders, name="memwal-folders", daemon=True
        )
        self._search.start()
        self._search.join(wait)

    def _register_folders(self) -> None:
        try:
            folders = self._catalog.folders()
        except MemWalError as error:
            logger.warning("the folders of the catalog were not read, trying again: %s", error)
            return
        for folder in folders:
            try:
                added = register_folder(self._catalog, folder)
            except MemWalError as error:
                logger.warning("tables of %s are not looked for: %s", folder.uri, error)
                continue
            for table in added:
                logger.info("%s is registered as %s", table.uri, table.name)

    async def _survey_changed(self, polls: TablePolls) -> None:
        """Survey the tables again whose due jobs have all ended."""
        waiting = {table for table, _ in self._due_jobs} | self._working.keys()
        tables = self._changed - waiting
        self._changed -= tables
        await polls.poll(tables)

    def _start_jobs(self, polls: TablePolls, pool: ThreadPoolExecutor, *, once: bool) -> None:
        slots = self._budget.jobs - len(self._working)
        busy = self._working.keys() | polls.running.keys()
        free = [due for (table, _), due in self._due_jobs.items() if table not in busy]
        if slots < 1 or not free:
            return
        remaining = self._remaining_bytes()
        loop = asyncio.get_running_loop()
        for choice in self._queue.choose(free, slots=slots, remaining_bytes=remaining):
            chosen = choice.due_job
            del self._due_jobs[chosen.table, chosen.job]
            if once:
                self._started.add((chosen.table, chosen.job))
            future = loop.run_in_executor(pool, self._run_job, choice)
            self._working[chosen.table] = choice, future

    def _remaining_bytes(self) -> int | None:
        if self._budget.bytes is None:
            return None
        choices = [choice for choice, _ in self._working.values()]
        taken = sum(min(choice.due_job.bytes, choice.run_bytes or 0) for choice in choices)
        return max(self._budget.bytes - taken, 0)

    def _run_job(self, choice: Choice) -> JobResult | Skipped:
        chosen = choice.due_job
        request = JobRequest(
            chosen.table,
            chosen.job,
            max_tasks=self._max_tasks,
            run_bytes=choice.run_bytes,
            survey=self._surveys[chosen.table],
        )
        table = self._surveys[chosen.table].table
        runtime = Runtime(
            run=self._runner(table),
            execute=self._runtime.execute,
            storage_options=self._storage_options(table),
            external_id=self._runtime.external_id,
            ttl=self._lease_ttl,
            guard=self._check,
        )
        try:
            return run_job(self._catalog, request, runtime=runtime)
        finally:
            # The next job may start much later, or be of another table.
            release_free_memory()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise _FleetStopped(
                "the fleet shuts down; what was committed stays, and the next run goes on"
            )

    async def _collect(self, polls: TablePolls, *, keep: bool) -> list[Outcome]:
        """Wait a moment, and return the outcomes of the jobs and polls that ended."""
        await polls.wait(_NAP_SECONDS, [future for _, future in self._working.values()])
        outcomes = [*self._failed_polls(polls), *self._finished_jobs(polls)]
        for outcome in outcomes:
            self._on_outcome(outcome)
        return outcomes if keep else []

    def _failed_polls(self, polls: TablePolls) -> Iterable[Outcome]:
        for result in polls.finished_results():
            if isinstance(result, Outcome):
                self._forget(result.table)
                yield result
            else:
                self._update_due_jobs(result, polls.failures)

    def _update_due_jobs(self, survey: Survey, failures: FailureTracker) -> None:
        """Replace the due jobs of a table by those of a survey that do not back off."""
        name = survey.table.name
        self._surveys[name] = survey
        for job in JOBS:
            due = survey.due.get(job, NOT_DUE)
            self._due_jobs.pop((name, job), None)
            if due.reason is None:
                self._queue.forget(name, [job])
                if due.postponed is None:
                    # A failed job that is no longer due was done by another process.
                    failures.clear(name, job)
            elif not failures.is_backing_off(name, job) and (name, job) not in self._started:
                self._due_jobs[name, job] = QueuedJob(
                    table=name,
                    job=job,
                    due=due,
                    priority=survey.table.policy.priority,
                    bytes=survey.backlog_bytes if job == "merge" else 0,
                )

    def _finished_jobs(self, polls: TablePolls) -> Iterable[Outcome]:
        for name, (choice, future) in [(n, w) for n, w in self._working.items() if w[1].done()]:
            del self._working[name]
            job, reason = choice.due_job.job, choice.due_job.due.reason or ""
            error = future.exception()
            result = future.result() if error is None else None
            # The job may have made other jobs due. Another process runs one that was skipped, which
            # is due until that has ended.
            polls.restart(name, at_once=not isinstance(result, Skipped))
            if error is None:
                if isinstance(result, JobResult):
                    polls.failures.clear(name, job)
                    self._changed.add(name)
                yield Outcome(table=name, job=job, reason=reason, result=result)
            elif isinstance(error, _FleetStopped):
                yield Outcome(table=name, job=job, reason=reason)
            else:
                yield polls.failures.record(name, job, reason, error)

    def _forget(self, table: str) -> None:
        self._surveys.pop(table, None)
        for job in JOBS:
            self._due_jobs.pop((table, job), None)
        self._queue.forget(table, JOBS)


class _FleetStopped(ConflictError):
    """Raised before a commit when the fleet shuts down."""
