"""Scheduler of many tables on one budget, for installations without another scheduler.

A loop reads the status of the tables, chooses among the due jobs (:mod:`memwal.fleet.fair_queue`)
and runs the chosen one. Every job runs under its lease, so any number of fleets can share a
catalog. A failure is recorded with the time of its next attempt and stops nothing else: a table
whose status cannot be read, a job of a table, or a region of a merge.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from memwal.errors import ConflictError, InvalidInputError, MemWalError, StoreUnavailableError
from memwal.fleet.fair_queue import Candidate, Choice, Queue
from memwal.fleet.job_spec import JobRequest, Skipped
from memwal.fleet.run_job import Runtime, run_job
from memwal.fleet.schedule import is_time
from memwal.fleet.tables import Survey, survey
from memwal.jobs.due import JOBS
from memwal.jobs.job import JobResult, TaskRunner, run_in_process
from memwal.util.memory import release_free_memory

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.catalog.backoff import Trouble

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a fleet may use.

    Attributes
    ----------
    jobs : int, default 2
        Jobs that run at once, each in a thread of this process.
    bytes : int or None, default 4 GiB
        Bytes in memory that the merges at work take in together; one that does not fit whole is
        done in part. None sets no limit. A single generation that is larger still goes.
    looks : int, default 8
        Tables that are looked at at once.

    Raises
    ------
    InvalidInputError
        One of them is less than 1.
    """

    jobs: int = 2
    bytes: int | None = 4 * _GIB
    looks: int = 8

    def __post_init__(self) -> None:
        if min(self.jobs, self.looks, self.bytes if self.bytes is not None else 1) < 1:
            raise InvalidInputError("jobs, bytes and looks of a budget must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a job, or of a look at a table.

    Attributes
    ----------
    table, job : str
        ``job`` is ``look`` for a look at the table that failed.
    reason : str
        Why it was run.
    result : JobResult or Skipped or None
        None when it failed, or was told to end.
    trouble : Trouble or None
        What went wrong, and when it is tried again.
    """

    table: str
    job: str
    reason: str
    result: JobResult | Skipped | None = None
    trouble: Trouble | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "table": self.table,
            "job": self.job,
            "reason": self.reason,
            "result": None if self.result is None else self.result.to_dict(),
            "trouble": None if self.trouble is None else self.trouble.to_dict(),
        }


logger = logging.getLogger(__name__)


class Failures:
    """The jobs that failed, of all tables.

    When the catalog does not answer, what happens meanwhile is in the log, and not kept.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[tuple[str, str], Trouble] = {}

    def read(self) -> None:
        """Take in what others wrote; raises when the catalog does not answer."""
        self._known = {(one.table, one.job): one for one in self._catalog.setbacks.troubles()}

    def rests(self, table: str, job: str) -> bool:
        """Whether something failed, and its next try is still to come."""
        trouble = self._known.get((table, job))
        return trouble is not None and trouble.next_try_at > datetime.now(UTC)

    def add(self, table: str, job: str, reason: str, error: BaseException) -> Outcome:
        """Write a failure down, whatever it is: the other tables go on."""
        if not isinstance(error, MemWalError):
            logger.error("%s of %s failed unexpectedly", job, table, exc_info=error)
        text = f"{type(error).__name__}: {error}"
        trouble: Trouble | None = None
        try:
            trouble = self._catalog.setbacks.failed(table, job, text)
            self._known[table, job] = trouble
            logger.warning("%s of %s failed (try %d): %s", job, table, trouble.attempts, text)
        except MemWalError as second:
            logger.warning("%s of %s failed: %s; not written down: %s", job, table, text, second)
        return Outcome(table=table, job=job, reason=reason, trouble=trouble)

    def recovered(self, table: str, job: str) -> None:
        """Forget a failure, if there was one."""
        if (table, job) not in self._known:
            return
        try:
            self._catalog.setbacks.recovered(table, job)
            del self._known[table, job]
        except MemWalError as error:
            logger.warning("that %s of %s works again was not written: %s", job, table, error)


_LOOK = "look"
_NAP_SECONDS = 0.2
_PRUNE_EVERY = timedelta(hours=1)


class Fleet:
    """Maintains the enabled tables of a catalog.

    Parameters
    ----------
    catalog : Catalog
    budget : Budget, optional
    tables : collection of str, optional
        Only these; by default all that are enabled. One without a schedule is left alone.
    run : callable
        Runs the tasks of a job; called from several threads.
    max_tasks : int, default 1
        Into how many tasks a job is divided at most.
    storage_options : callable, optional
        Finds the storage options of a table; by default they are read from the file that the
        catalog refers to.
    lease_ttl : timedelta, optional
        Time to live of the leases, 60 s by default: how long others wait after this process died.
    tell : callable, optional
        Told of every outcome, from the thread that runs the fleet.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        budget: Budget | None = None,
        tables: Collection[str] | None = None,
        run: TaskRunner = run_in_process,
        max_tasks: int = 1,
        storage_options: Callable[[ManagedTable], Mapping[str, str] | None] | None = None,
        lease_ttl: timedelta | None = None,
        tell: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._catalog = catalog
        self._budget = budget or Budget()
        self._only = None if tables is None else frozenset(tables)
        self._run = run
        self._max_tasks = max_tasks
        self._storage_options = storage_options or (lambda table: None)
        self._lease_ttl = lease_ttl
        self._tell = tell or (lambda outcome: None)
        self._stopping = threading.Event()
        self._queue = Queue()
        self._surveys: dict[str, Survey] = {}
        self._candidates: dict[tuple[str, str], Candidate] = {}
        self._looking: dict[str, Future[Survey]] = {}
        self._working: dict[str, tuple[Choice, Future[JobResult | Skipped]]] = {}
        self._looked_at: dict[str, datetime] = {}
        self._failures = Failures(catalog)
        self._pruned_at: datetime | None = None

    def stop(self) -> None:
        """End soon, and for good; jobs at work end before their next commit.

        May be called from any thread, and from a signal handler.
        """
        self._stopping.set()

    def run_once(self) -> list[Outcome]:
        """Look at every table, whatever its schedule, and do once what is due.

        Raises
        ------
        StoreUnavailableError
            The catalog does not answer.
        """
        return self._loop(every=None)

    def run_forever(self, *, every: float = 10.0) -> None:
        """Look at the tables as their schedules say and do what is due, until :meth:`stop`.

        A catalog that does not answer is waited for.

        Parameters
        ----------
        every : float, default 10
            Seconds between two looks at the catalog.

        Raises
        ------
        InvalidInputError
            ``every`` is not above 0.
        TableSetupError
            The catalog has no schema, or another one.
        """
        if every <= 0:
            raise InvalidInputError("every must be a number of seconds above 0")
        self._loop(every=every)

    def _loop(self, *, every: float | None) -> list[Outcome]:
        outcomes: list[Outcome] = []
        next_look = time.monotonic()
        looks = ThreadPoolExecutor(self._budget.looks, thread_name_prefix="memwal-look")
        jobs = ThreadPoolExecutor(self._budget.jobs, thread_name_prefix="memwal-job")
        with looks, jobs:
            try:
                while not self._stopping.is_set():
                    if time.monotonic() >= next_look:
                        self._look(looks, scheduled=every is not None)
                        next_look = time.monotonic() + (every or float("inf"))
                    self._start(jobs)
                    if every is None and not self._looking and not self._working:
                        break
                    outcomes += self._reap(keep=every is None)
            except BaseException:
                # What is at work ends before its next commit, and the executors wait for it.
                self._stopping.set()
                raise
            for look in self._looking.values():
                look.cancel()
            while self._working or self._looking:
                outcomes += self._reap(keep=every is None)
        return outcomes

    def _look(self, pool: ThreadPoolExecutor, *, scheduled: bool) -> None:
        """Start to look at the tables whose time has come."""
        now = datetime.now(UTC)
        try:
            tables = self._catalog.list(enabled_only=True)
            self._failures.read()
            if self._pruned_at is None or now - self._pruned_at >= _PRUNE_EVERY:
                self._catalog.prune(now=now)
                self._pruned_at = now
        except StoreUnavailableError as error:
            if not scheduled:
                raise
            logger.warning("the catalog cannot be read, trying again: %s", error)
            return
        known = {table.name for table in tables}
        for gone in [name for name in self._surveys if name not in known]:
            self._forget(gone)
        for table in tables:
            name = table.name
            if self._only is not None and name not in self._only:
                continue
            if name in self._looking or name in self._working or self._failures.rests(name, _LOOK):
                continue
            if scheduled and not self._is_time(table, now):
                continue
            self._looked_at[name] = now
            self._looking[name] = pool.submit(self._survey, table)

    def _is_time(self, table: ManagedTable, now: datetime) -> bool:
        try:
            return is_time(table.policy.schedule, last=self._looked_at.get(table.name), now=now)
        except InvalidInputError as error:
            self._tell(self._failures.add(table.name, _LOOK, "", error))
            return False

    def _survey(self, table: ManagedTable) -> Survey:
        found = survey(self._catalog, table, storage_options=self._storage_options(table))
        self._catalog.record_backlog(table.name, found.status)
        return found

    def _start(self, pool: ThreadPoolExecutor) -> None:
        """Start what is chosen of what is due."""
        slots = self._budget.jobs - len(self._working)
        busy = self._working.keys() | self._looking.keys()
        free = [c for (table, _), c in self._candidates.items() if table not in busy]
        if slots < 1 or not free:
            return
        for choice in self._queue.choose(free, slots=slots, bytes_left=self._bytes_left()):
            candidate = choice.candidate
            del self._candidates[candidate.table, candidate.job]
            future = pool.submit(self._do, choice)
            self._working[candidate.table] = choice, future

    def _bytes_left(self) -> int | None:
        if self._budget.bytes is None:
            return None
        taken = sum(
            min(choice.candidate.bytes, choice.run_bytes or 0)
            for choice, _ in self._working.values()
        )
        return max(self._budget.bytes - taken, 0)

    def _do(self, choice: Choice) -> JobResult | Skipped:
        candidate = choice.candidate
        try:
            return run_job(
                self._catalog,
                JobRequest(
                    candidate.table,
                    candidate.job,
                    max_tasks=self._max_tasks,
                    run_bytes=choice.run_bytes,
                    due=candidate.due,
                ),
                runtime=Runtime(
                    run=self._run,
                    storage_options=self._storage_options(self._surveys[candidate.table].table),
                    ttl=self._lease_ttl,
                    guard=self._check,
                ),
            )
        finally:
            # The next job may be long in coming, or of another table.
            release_free_memory()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise _ToldToEnd("told to end; what was committed stays, and the next run goes on")

    def _reap(self, *, keep: bool) -> list[Outcome]:
        """Wait a moment, and take in what is done."""
        work = [future for _, future in self._working.values()]
        if not work and not self._looking:
            self._stopping.wait(_NAP_SECONDS)
            return []
        futures: list[Future[Any]] = [*work, *self._looking.values()]
        wait(futures, timeout=_NAP_SECONDS, return_when=FIRST_COMPLETED)
        outcomes = [*self._surveyed(), *self._finished()]
        for outcome in outcomes:
            self._tell(outcome)
        return outcomes if keep else []

    def _surveyed(self) -> Iterable[Outcome]:
        for name, future in [(n, f) for n, f in self._looking.items() if f.done()]:
            del self._looking[name]
            if future.cancelled():
                continue
            error = future.exception()
            if error is not None:
                self._forget(name)
                yield self._failures.add(name, _LOOK, "", error)
            else:
                self._take(future.result())

    def _take(self, found: Survey) -> None:
        """Keep what a look found to be due, but for what is resting after a failure."""
        name = found.table.name
        self._surveys[name] = found
        self._failures.recovered(name, _LOOK)
        for job in JOBS:
            due = found.due[job]
            self._candidates.pop((name, job), None)
            if due.reason is None:
                self._queue.forget(name, [job])
                # What failed and is not due any more has been done without us.
                self._failures.recovered(name, job)
            elif not self._failures.rests(name, job):
                self._candidates[name, job] = Candidate(
                    table=name,
                    job=job,
                    due=due,
                    priority=found.table.policy.priority,
                    bytes=found.backlog_bytes if job == "merge" else 0,
                )

    def _finished(self) -> Iterable[Outcome]:
        for name, (choice, future) in [(n, w) for n, w in self._working.items() if w[1].done()]:
            del self._working[name]
            # What is due now may have changed with it.
            self._looked_at.pop(name, None)
            candidate = choice.candidate
            reason = candidate.due.reason or ""
            error = future.exception()
            if error is None:
                result = future.result()
                if isinstance(result, JobResult):
                    self._failures.recovered(name, candidate.job)
                yield Outcome(table=name, job=candidate.job, reason=reason, result=result)
            elif isinstance(error, _ToldToEnd):
                yield Outcome(table=name, job=candidate.job, reason=reason)
            else:
                yield self._failures.add(name, candidate.job, reason, error)

    def _forget(self, table: str) -> None:
        self._surveys.pop(table, None)
        for job in JOBS:
            self._candidates.pop((table, job), None)
        self._queue.forget(table, JOBS)


class _ToldToEnd(ConflictError):
    """Raised before a commit when the fleet is to end."""
