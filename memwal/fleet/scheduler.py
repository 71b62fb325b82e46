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

from memwal.boundary.public import public
from memwal.catalog.records import STATUS_JOB, ManagedTable
from memwal.errors import ConflictError, InvalidInputError, MemWalError, StoreUnavailableError
from memwal.fleet.fair_queue import Candidate, Choice, FairQueue
from memwal.fleet.job_spec import JobRequest, Skipped
from memwal.fleet.run_job import Runtime, run_job
from memwal.fleet.schedule import is_due
from memwal.fleet.tables import Survey
from memwal.jobs.due import JOBS
from memwal.jobs.job import JobResult, TaskRunner, run_in_process
from memwal.jobs.policy import WHEN_DUE
from memwal.util.clock import Duration, in_seconds
from memwal.util.log import safe_error_text
from memwal.util.memory import release_free_memory
from memwal.util.records import JsonObject

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.backoff import FailedJob
    from memwal.fleet.watch import TableWatch

_GIB = 1 << 30


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of what a fleet uses at a time.

    Attributes
    ----------
    jobs : int, default 2
        Jobs that run at once, each in a thread of this process.
    bytes : int or None, default 4 GiB
        Bytes in memory that the running merges take in together; a merge that does not fit is
        done in part. None sets no limit. A single generation above the limit is still merged.
    surveys : int, default 8
        Tables whose status is read at once.

    Raises
    ------
    InvalidInputError
        One of them is less than 1.
    """

    jobs: int = 2
    bytes: int | None = 4 * _GIB
    surveys: int = 8

    def __post_init__(self) -> None:
        if min(self.jobs, self.surveys, self.bytes if self.bytes is not None else 1) < 1:
            raise InvalidInputError("jobs, bytes and surveys of a budget must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a job, or of a failed survey of a table.

    Attributes
    ----------
    table, job : str
        Name of the managed table, and the job; ``status`` when the status of the table could not
        be read.
    reason : str
        Why the job was due.
    result : JobResult or Skipped or None
        None when the job failed, or was ended by a shutdown.
    failed_job : FailedJob or None
        What went wrong, and when it is tried again; None also when it could not be recorded.
    failed : bool
        Whether the job, or the survey, failed; a shutdown is no failure.
    """

    table: str
    job: str
    reason: str
    result: JobResult | Skipped | None = None
    failed_job: FailedJob | None = None

    failed: bool = False

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {
            "table": self.table,
            "job": self.job,
            "reason": self.reason,
            "result": self.result and self.result.to_dict(),
            "failed_job": self.failed_job and self.failed_job.to_dict(),
            "failed": self.failed,
        }


logger = logging.getLogger(__name__)


class FailureTracker:
    """Failed jobs of all tables, cached from the catalog.

    While the catalog does not answer, failures are logged and not recorded.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._failed_jobs: dict[tuple[str, str], FailedJob] = {}

    def read(self) -> None:
        """Reload what all processes recorded; raises ``StoreUnavailableError``."""
        self._failed_jobs = {
            (failed.table, failed.job): failed for failed in self._catalog.backoffs.failed_jobs()
        }

    def is_backing_off(self, table: str, job: str) -> bool:
        """Return whether a job failed and its next try is in the future."""
        failed = self._failed_jobs.get((table, job))
        return failed is not None and failed.next_try_at > datetime.now(UTC)

    def record(self, table: str, job: str, reason: str, error: BaseException) -> Outcome:
        """Record any failure, so that the other tables go on, and return it as an outcome."""
        if not isinstance(error, MemWalError):
            logger.error("%s of %s failed unexpectedly", job, table, exc_info=error)
        text = safe_error_text(error)
        failed: FailedJob | None = None
        try:
            failed = self._catalog.backoffs.record_failure(table, job, error)
            self._failed_jobs[table, job] = failed
            logger.warning("%s of %s failed (try %d): %s", job, table, failed.attempts, text)
        except MemWalError as second:
            logger.warning("%s of %s failed: %s; not recorded: %s", job, table, text, second)
        return Outcome(table=table, job=job, reason=reason, failed_job=failed, failed=True)

    def clear(self, table: str, job: str) -> None:
        """Delete the failure record of a job, if there is one."""
        if (table, job) not in self._failed_jobs:
            return
        try:
            self._catalog.backoffs.clear_failure(table, job)
            del self._failed_jobs[table, job]
        except MemWalError as error:
            logger.warning("the recovery of %s of %s was not recorded: %s", job, table, error)


_NAP_SECONDS = 0.2
_PRUNE_EVERY = timedelta(hours=1)


@public
class Fleet:
    """Maintains the enabled tables of a catalog.

    Parameters
    ----------
    catalog : Catalog
    budget : Budget, optional
    tables : collection of str, optional
        Only these; by default all enabled tables. A table without a schedule is never surveyed by
        :meth:`run_forever`.
    runner : callable
        Returns what runs the tasks of the jobs of a table, such as
        :func:`memwal.spark.runner.connect_runner`; by default they run in this process. Called
        from several threads, as is what it returns.
    max_tasks : int, default 1
        Maximal number of tasks that a job is divided into.
    storage_options : callable, optional
        Returns the storage options of a table; by default they are read from the file that the
        catalog refers to.
    lease_ttl : float or timedelta, optional
        Time to live of the leases, 60 s by default: how long other processes wait if this one
        dies.
    on_outcome : callable, optional
        Called with every outcome, from the thread that runs the fleet.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        budget: Budget | None = None,
        tables: Collection[str] | None = None,
        runner: Callable[[ManagedTable], TaskRunner] = lambda table: run_in_process,
        max_tasks: int = 1,
        storage_options: Callable[[ManagedTable], Mapping[str, str] | None] | None = None,
        lease_ttl: Duration | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._catalog = catalog
        self._budget = budget or Budget()
        self._only = None if tables is None else frozenset(tables)
        self._runner = runner
        self._max_tasks = max_tasks
        self._storage_options = storage_options or (lambda table: None)
        self._lease_ttl = lease_ttl
        self._on_outcome = on_outcome or (lambda outcome: None)
        self._stopping = threading.Event()
        self._queue = FairQueue()
        self._surveys: dict[str, Survey] = {}
        self._watches: dict[str, TableWatch] = {}
        self._candidates: dict[tuple[str, str], Candidate] = {}
        self._surveying: dict[str, Future[Survey]] = {}
        self._working: dict[str, tuple[Choice, Future[JobResult | Skipped]]] = {}
        self._surveyed_at: dict[str, datetime] = {}
        self._failures = FailureTracker(catalog)
        self._pruned_at: datetime | None = None
        self._turned_at = time.monotonic()
        self._catalog_answers = False

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
        return self._catalog_answers

    def run_once(self) -> list[Outcome]:
        """Survey every table, whatever its schedule, and run each due job once.

        Raises ``StoreUnavailableError`` if the catalog does not answer.
        """
        return self._loop(every=None)

    def run_forever(self, *, every: Duration = 10.0) -> None:
        """Survey the tables by their schedules and run the due jobs, until :meth:`stop`.

        Reads the catalog ``every`` so many seconds (``InvalidInputError`` unless above 0), and
        waits while it does not answer. Raises ``TableSetupError`` if the catalog has no schema, or
        another one.
        """
        seconds = in_seconds(every)
        if seconds <= 0:
            raise InvalidInputError("every must be a number of seconds above 0")
        self._loop(every=seconds)

    def _loop(self, *, every: float | None) -> list[Outcome]:
        outcomes: list[Outcome] = []
        next_read = time.monotonic()
        surveys = ThreadPoolExecutor(self._budget.surveys, thread_name_prefix="memwal-survey")
        jobs = ThreadPoolExecutor(self._budget.jobs, thread_name_prefix="memwal-job")
        with surveys, jobs:
            try:
                while not self._stopping.is_set():
                    self._turned_at = time.monotonic()
                    if time.monotonic() >= next_read:
                        self._start_surveys(surveys, scheduled=every is not None)
                        next_read = time.monotonic() + (every or float("inf"))
                    self._start_jobs(jobs)
                    if every is None and not self._surveying and not self._working:
                        break
                    outcomes += self._collect(keep=every is None)
            except BaseException:
                # Running jobs end before their next commit, and the executors wait for them.
                self._stopping.set()
                raise
            for survey_future in self._surveying.values():
                survey_future.cancel()
            while self._working or self._surveying:
                outcomes += self._collect(keep=every is None)
        return outcomes

    def _start_surveys(self, pool: ThreadPoolExecutor, *, scheduled: bool) -> None:
        """Start surveys of the tables that are due by their schedules, or of all."""
        now = datetime.now(UTC)
        try:
            tables = self._catalog.list(enabled_only=True)
            self._failures.read()
            if self._pruned_at is None or now - self._pruned_at >= _PRUNE_EVERY:
                self._catalog.prune(now=now)
                self._pruned_at = now
        except StoreUnavailableError as error:
            self._catalog_answers = False
            if not scheduled:
                raise
            logger.warning("the catalog cannot be read, trying again: %s", error)
            return
        self._catalog_answers = True
        registered = {table.name for table in tables}
        for name in self._surveys.keys() - registered:
            self._forget(name)
        for table in tables:
            name = table.name
            if self._only is not None and name not in self._only:
                continue
            if name in self._surveying or name in self._working:
                continue
            if self._failures.is_backing_off(name, STATUS_JOB):
                continue
            if scheduled and table.problem is None and not self._is_due(table, now):
                continue
            self._surveyed_at[name] = now
            self._surveying[name] = pool.submit(self._survey, table)

    def _is_due(self, table: ManagedTable, now: datetime) -> bool:
        schedule = table.policy.schedule
        if schedule == WHEN_DUE:
            schedule = table.policy.poll_seconds
        try:
            return is_due(schedule, last=self._surveyed_at.get(table.name), now=now)
        except InvalidInputError as error:
            self._on_outcome(self._failures.record(table.name, STATUS_JOB, "", error))
            return False

    def _survey(self, table: ManagedTable) -> Survey:
        from memwal.fleet.watch import TableWatch

        options = self._storage_options(table)
        watch = self._watches.setdefault(table.name, TableWatch())
        look = watch.look(self._catalog, table, storage_options=options)
        if look.is_fresh:
            self._catalog.record_backlog(table.name, look.survey.status)
        return look.survey

    def _start_jobs(self, pool: ThreadPoolExecutor) -> None:
        """Start the due jobs that the queue chooses."""
        slots = self._budget.jobs - len(self._working)
        busy = self._working.keys() | self._surveying.keys()
        free = [c for (table, _), c in self._candidates.items() if table not in busy]
        if slots < 1 or not free:
            return
        remaining = self._remaining_bytes()
        for choice in self._queue.choose(free, slots=slots, remaining_bytes=remaining):
            candidate = choice.candidate
            del self._candidates[candidate.table, candidate.job]
            future = pool.submit(self._run_job, choice)
            self._working[candidate.table] = choice, future

    def _remaining_bytes(self) -> int | None:
        if self._budget.bytes is None:
            return None
        choices = [choice for choice, _ in self._working.values()]
        taken = sum(min(choice.candidate.bytes, choice.run_bytes or 0) for choice in choices)
        return max(self._budget.bytes - taken, 0)

    def _run_job(self, choice: Choice) -> JobResult | Skipped:
        candidate = choice.candidate
        request = JobRequest(
            candidate.table,
            candidate.job,
            max_tasks=self._max_tasks,
            run_bytes=choice.run_bytes,
            due=candidate.due,
        )
        table = self._surveys[candidate.table].table
        runtime = Runtime(
            run=self._runner(table),
            storage_options=self._storage_options(table),
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
            raise _ShutdownRequested(
                "the fleet shuts down; what was committed stays, and the next run goes on"
            )

    def _collect(self, *, keep: bool) -> list[Outcome]:
        """Wait a moment, and return the outcomes of what has ended."""
        work = [future for _, future in self._working.values()]
        if not work and not self._surveying:
            self._stopping.wait(_NAP_SECONDS)
            return []
        futures: list[Future[Any]] = [*work, *self._surveying.values()]
        wait(futures, timeout=_NAP_SECONDS, return_when=FIRST_COMPLETED)
        outcomes = [*self._finished_surveys(), *self._finished_jobs()]
        for outcome in outcomes:
            self._on_outcome(outcome)
        return outcomes if keep else []

    def _finished_surveys(self) -> Iterable[Outcome]:
        for name, future in [(n, f) for n, f in self._surveying.items() if f.done()]:
            del self._surveying[name]
            if future.cancelled():
                continue
            error = future.exception()
            if error is not None:
                self._forget(name)
                yield self._failures.record(name, STATUS_JOB, "", error)
            else:
                self._update_candidates(future.result())

    def _update_candidates(self, result: Survey) -> None:
        """Make the due jobs of a survey candidates, unless they back off after a failure."""
        name = result.table.name
        self._surveys[name] = result
        self._failures.clear(name, STATUS_JOB)
        for job in JOBS:
            due = result.due[job]
            self._candidates.pop((name, job), None)
            if due.reason is None:
                self._queue.forget(name, [job])
                # A failed job that is no longer due was done by another process.
                self._failures.clear(name, job)
            elif not self._failures.is_backing_off(name, job):
                self._candidates[name, job] = Candidate(
                    table=name,
                    job=job,
                    due=due,
                    priority=result.table.policy.priority,
                    bytes=result.backlog_bytes if job == "merge" else 0,
                )

    def _finished_jobs(self) -> Iterable[Outcome]:
        for name, (choice, future) in [(n, w) for n, w in self._working.items() if w[1].done()]:
            del self._working[name]
            # The job may have changed what is due: survey the table again.
            self._surveyed_at.pop(name, None)
            candidate = choice.candidate
            reason = candidate.due.reason or ""
            error = future.exception()
            if error is None:
                result = future.result()
                if isinstance(result, JobResult):
                    self._failures.clear(name, candidate.job)
                yield Outcome(table=name, job=candidate.job, reason=reason, result=result)
            elif isinstance(error, _ShutdownRequested):
                yield Outcome(table=name, job=candidate.job, reason=reason)
            else:
                yield self._failures.record(name, candidate.job, reason, error)

    def _forget(self, table: str) -> None:
        self._surveys.pop(table, None)
        self._watches.pop(table, None)
        for job in JOBS:
            self._candidates.pop((table, job), None)
        self._queue.forget(table, JOBS)


class _ShutdownRequested(ConflictError):
    """Raised before a commit when the fleet shuts down."""
