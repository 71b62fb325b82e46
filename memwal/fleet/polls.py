"""The loop that polls tables, for the fleet and for the triggers of Airflow."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from memwal.catalog.records import STATUS_JOB, ManagedTable
from memwal.errors import MemWalError, StoreUnavailableError
from memwal.fleet.job_spec import Skipped
from memwal.fleet.schedule import is_due
from memwal.fleet.tables import Survey
from memwal.jobs.job import JobResult
from memwal.jobs.policy import SEEN_SECONDS, WHEN_DUE
from memwal.util.log import safe_error_text
from memwal.util.records import JsonRecord

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.backoff import FailedJob
    from memwal.catalog.history import TableWork
    from memwal.fleet.watch import TableWatch

QUICK_CHECK_SECONDS = 5.0
"""Limit of the quick check of all local tables whose time has come."""

SAMPLE_SECONDS = 60.0
"""Pause between two samples of the backlog of a table that changes all the time."""

WORK_SECONDS = 5.0
"""Seconds for which the runs and skipped regions of tables that stay due are reused."""

# Pause between two records of which tables were looked at.
_RECORD_SECONDS = 15.0
# More than reads at once: a read that exceeds its limit keeps its thread until it ends. A thread
# is started only if none is idle.
_THREADS = 1_000
_JITTER = 0.1  # So that the polls of many tables spread over the pause between them.
# By this, every cron expression is due.
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
# Pause between two comparisons of a cron expression with the clock.
_CRON_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(JsonRecord):
    """Outcome of a job, or of a failed survey of a table."""

    table: str
    """Name of the managed table."""
    job: str
    """The job; ``status`` when the status of the table could not be read."""
    reason: str
    """Why the job was due."""
    result: JobResult | Skipped | None = None
    """None when the job failed, or was ended by a shutdown."""
    failed_job: FailedJob | None = None
    """The recorded error, and the time of the next try; None also when it could not be recorded."""
    failed: bool = False
    """Whether the job, or the survey, failed; a shutdown is no failure."""


class FailureTracker:
    """Failed jobs of all tables, cached from the catalog.

    While the catalog does not answer, failures are logged and not recorded.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._failed_jobs: dict[tuple[str, str], FailedJob] = {}
        # Held from a change of the catalog to that of the cache: a reload that began before a
        # failure was recorded, and ends after it, would drop the failure from the cache.
        self._lock = threading.Lock()

    def read(self) -> None:
        """Reload the failures that all processes recorded; raises ``StoreUnavailableError``."""
        with self._lock:
            failed_jobs = self._catalog.backoffs.failed_jobs()
            self._failed_jobs = {(failed.table, failed.job): failed for failed in failed_jobs}

    def tables(self, job: str) -> set[str]:
        """Return the tables of which a job is recorded as failed."""
        return {table for table, failed in self._failed_jobs if failed == job}

    def is_backing_off(self, table: str, job: str) -> bool:
        """Return whether a job failed and its next try is in the future."""
        failed = self._failed_jobs.get((table, job))
        return failed is not None and failed.next_try_at > datetime.now(UTC)

    def record(self, table: str, job: str, reason: str, error: BaseException) -> Outcome:
        """Record a failure of any kind, so that the other tables go on, and return its outcome."""
        if not isinstance(error, MemWalError):
            logger.error("%s of %s failed unexpectedly", job, table, exc_info=error)
        text = safe_error_text(error)
        failed: FailedJob | None = None
        try:
            with self._lock:
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
            with self._lock:
                self._catalog.backoffs.clear_failure(table, job)
                self._failed_jobs.pop((table, job), None)
        except MemWalError as error:
            logger.warning("the recovery of %s of %s was not recorded: %s", job, table, error)


class WorkReader:
    """Reads the runs and skipped regions of due tables, of all at once and from time to time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._work: dict[str, TableWork] = {}
        self._read_at = -math.inf

    async def read(self, tables: Collection[str]) -> Mapping[str, TableWork]:
        """Return the work of ``tables``, at most :data:`WORK_SECONDS` old.

        Raises ``StoreUnavailableError``.
        """
        now = time.monotonic()
        if now - self._read_at >= WORK_SECONDS:
            self._work, self._read_at = {}, now
        missing = sorted(set(tables) - self._work.keys())
        if missing:
            self._work |= await asyncio.to_thread(self._catalog.work_of, missing)
        return self._work

    def get(self, table: str) -> TableWork | None:
        """Return the work of a table that was read and not forgotten since."""
        return self._work.get(table)

    def forget(self, table: str) -> None:
        """Read the work of a table again: one of its jobs has ended."""
        self._work.pop(table, None)


class ReadLimits:
    """Limits of the reads of tables in one event loop: how many at once, and how long each."""

    def __init__(self, *, max_reads: int = 8, timeout: float = 300.0) -> None:
        self._slots = asyncio.Semaphore(max_reads)
        self._timeout = timeout

    @asynccontextmanager
    async def reading(self, name: str) -> AsyncIterator[None]:
        """Wait for a turn, and read a table in the block.

        Raises ``StoreUnavailableError`` if the read exceeds its limit.
        """
        try:
            async with self._slots, asyncio.timeout(self._timeout):
                yield
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"{name} did not answer in {self._timeout:.0f} s"
            ) from error


def _new_watch() -> TableWatch:
    from memwal.fleet.watch import TableWatch  # loads Lance

    return TableWatch()


@dataclass(eq=False, slots=True)
class _TablePoll:
    """State of the polls of one table; times are by the monotonic clock unless they are in UTC."""

    table: ManagedTable
    watch: TableWatch = field(default_factory=_new_watch)
    next_at: float = -math.inf
    polled_at: datetime | None = None
    task: asyncio.Task[None] | None = None
    # The newest read, which outlives its task if it exceeds its limit.
    read: Future[Survey] | None = None
    needs_work: bool = False  # by the last poll: a job was due, or regions were skipped
    reported: frozenset[str] | None = None  # due jobs as the catalog has them; None if not known
    has_sample: bool = True  # whether the status that was read last is in the catalog
    next_sample: float = -math.inf
    looked_at: float = -math.inf  # when a poll last ended without an error
    recorded_at: float = -math.inf  # as the catalog has it

    def poll_in(self, seconds: float) -> None:
        """Make the table due for a poll in some seconds, by any schedule, unless it is sooner."""
        self.next_at = min(self.next_at, time.monotonic() + seconds)
        self.polled_at = _LONG_AGO


class TablePolls:
    """Polls the enabled tables of a catalog in one event loop, each at the pace of its policy.

    A table with the schedule ``@due`` is polled every ``poll_seconds``, others by their schedules.
    Polls run in threads, and no call waits for one, so that a slow table delays no other. A table
    that cannot be read is recorded as failing in the catalog, and polled again after the pause that
    the catalog tells. The catalog also records which tables were polled, by one statement for all
    tables.

    The first polls after a start are of the tables that were due by the catalog, the longest first,
    and of the tables without a sample. Polls of the other tables follow within the
    ``idle_poll_seconds`` of their policies.

    Parameters
    ----------
    catalog : Catalog
    storage_options : callable
        Returns the storage options of a table, without blocking the event loop; None for those in
        the file that the catalog refers to.
    select : callable
        Returns whether a table is polled.
    refresh_seconds : float
        Pause between two reads of which tables the catalog has.
    limits : ReadLimits, optional
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        storage_options: Callable[[ManagedTable], Awaitable[Mapping[str, str] | None]],
        select: Callable[[ManagedTable], bool],
        refresh_seconds: float,
        limits: ReadLimits | None = None,
    ) -> None:
        self._catalog = catalog
        self._storage_options = storage_options
        self._select = select
        self._refresh_seconds = refresh_seconds
        self._limits = limits or ReadLimits()
        self.failures = FailureTracker(catalog)
        self.work = WorkReader(catalog)
        self.catalog_answers = False
        self._next_refresh = self._next_record = -math.inf
        self._revision: frozenset[tuple[int, datetime]] | None = None
        self._polls: dict[str, _TablePoll] = {}
        self._results: list[Survey | Outcome] = []
        self._quick_check: asyncio.Future[list[_TablePoll]] | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="memwal-poll")

    @property
    def tables(self) -> Collection[str]:
        """Names of the tables that are polled."""
        return self._polls.keys()

    @property
    def running(self) -> dict[str, asyncio.Task[None]]:
        """The polls that run or wait for their turn, by table."""
        polls = self._polls.items()
        return {name: poll.task for name, poll in polls if poll.task is not None}

    async def turn(self, *, busy: Collection[str] = ()) -> None:
        """Start the polls whose time has come, unless their tables are ``busy``.

        Reads the catalog first if its time has come. While the catalog does not answer, the tables
        that were read last are polled.
        """
        now = time.monotonic()
        if now >= self._next_refresh:
            self._next_refresh = now + self._refresh_seconds
            try:
                await self._refresh()
            except StoreUnavailableError as error:
                self.catalog_answers = False
                logger.warning("the catalog cannot be read, trying again: %s", error)
        await self._record_looks()
        await self._start(
            [
                poll
                for name, poll in self._polls.items()
                if name not in busy and self._may_start(poll) and self._is_due(poll)
            ]
        )

    async def poll_all(self) -> None:
        """Read the catalog, and start a poll of every table whose last poll did not fail.

        Raises ``StoreUnavailableError`` if the catalog does not answer.
        """
        await self._refresh()
        await self.poll(self._polls)

    async def poll(self, tables: Iterable[str]) -> None:
        """Start a poll of each of these tables whose last poll did not fail."""
        polls = [self._polls[name] for name in tables if name in self._polls]
        await self._start([poll for poll in polls if self._may_start(poll)])

    async def wait(self, seconds: float, others: Iterable[asyncio.Future[Any]] = ()) -> None:
        """Wait until a poll has a result or one of ``others`` ends, at most ``seconds``."""
        if self._results:
            return
        futures = [*self.running.values(), *others]
        if futures:
            await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)

    def finished_results(self) -> list[Survey | Outcome]:
        """Return the surveys and the failures of the polls that ended since the last call."""
        results, self._results = self._results, []
        return results

    def restart(self, table: str, *, at_once: bool = True) -> None:
        """Poll a table again before its schedule tells, and read its runs again.

        Unless ``at_once``, it is polled after the ``poll_seconds`` of its policy. The catalog gets
        the next status that is read.
        """
        self.work.forget(table)
        poll = self._polls.get(table)
        if poll is not None:
            poll.poll_in(0.0 if at_once else poll.table.policy.poll_seconds)
            poll.next_sample = -math.inf

    def close(self, *, wait: bool = False) -> None:
        """Cancel the polls; their threads end with the requests that they ``wait`` for."""
        for task in self.running.values():
            task.cancel()
        self._threads.shutdown(wait, cancel_futures=True)

    async def _refresh(self) -> None:
        """Read which tables there are, if the catalog has changed, and which jobs failed."""
        is_first = self._revision is None
        tables = await asyncio.to_thread(self._read_catalog)
        self.catalog_answers = True
        if tables is None:
            return
        self._polls = {name: self._polls.get(name) or _TablePoll(tables[name]) for name in tables}
        if is_first:
            await asyncio.to_thread(self._order)
        for name, poll in self._polls.items():
            if poll.table.policy != tables[name].policy:
                poll.next_at = -math.inf
            poll.table = tables[name]

    def _read_catalog(self) -> dict[str, ManagedTable] | None:
        """Return the selected tables by name; None if the catalog has not changed."""
        self.failures.read()
        revision = self._catalog.revision()
        if revision == self._revision:
            return None
        tables = self._catalog.list(enabled_only=True)
        # Only now: after an error above, the next call reads the tables again.
        self._revision = revision
        return {table.name: table for table in tables if self._select(table)}

    def _order(self) -> None:
        """Order the first polls by the jobs that were due, and spread the polls of other tables."""
        due: dict[str, datetime] = {}
        jobs: defaultdict[str, set[str]] = defaultdict(set)
        for job in self._catalog.reports.due_jobs():
            due[job.table] = min(job.since, due.get(job.table, job.since))
            jobs[job.table].add(job.job)
        idle = {sample.table for sample in self._catalog.latest_samples()} - due.keys()
        now, at = time.monotonic(), datetime.now(UTC)
        for name, poll in self._polls.items():
            poll.reported = frozenset(jobs[name])
            if name in idle and poll.table.starts_when_due:
                pause = poll.table.policy.idle_poll_seconds
                poll.next_at = now + random.uniform(0, pause)  # noqa: S311
        ordered = sorted(self._polls, key=lambda name: due.get(name, at))
        self._polls = {name: self._polls[name] for name in ordered}

    async def _record_looks(self) -> None:
        """Record in the catalog from time to time which tables were polled and have not changed."""
        now = time.monotonic()
        if now < self._next_record:
            return
        self._next_record = now + _RECORD_SECONDS
        polls = [
            poll
            for poll in self._polls.values()
            if poll.has_sample and poll.looked_at - poll.recorded_at >= SEEN_SECONDS
        ]
        if not polls:
            return
        # Taken first: a poll that ends during the write is recorded the next time.
        looks = [(poll, poll.looked_at) for poll in polls]
        try:
            await asyncio.to_thread(self._catalog.record_seen, [poll.table.name for poll in polls])
        except StoreUnavailableError as error:
            logger.warning("which tables were looked at is not recorded: %s", error)
            return
        for poll, looked_at in looks:
            poll.recorded_at = looked_at

    def _may_start(self, poll: _TablePoll) -> bool:
        if poll.task is not None or (poll.read is not None and not poll.read.done()):
            return False
        return not self.failures.is_backing_off(poll.table.name, STATUS_JOB)

    async def _start(self, polls: list[_TablePoll]) -> None:
        polls = await self._changed(polls)
        if any(poll.needs_work for poll in polls):
            due = [name for name, poll in self._polls.items() if poll.needs_work]
            try:
                await self.work.read(due)
            except StoreUnavailableError as error:
                logger.warning("the runs of due tables cannot be read, trying again: %s", error)
                polls = [poll for poll in polls if not poll.needs_work]
        for poll in polls:
            poll.task = asyncio.ensure_future(self._poll(poll))

    def _is_due(self, poll: _TablePoll) -> bool:
        """Return whether the time of a poll has come by the schedule of its table."""
        if poll.table.problem is not None:
            return True
        now = time.monotonic()
        if now < poll.next_at:
            return False
        policy = poll.table.policy
        schedule = policy.schedule
        if schedule == WHEN_DUE:
            schedule = poll.watch.pause_seconds(policy)
        if not isinstance(schedule, str):
            spread = random.uniform(1 - _JITTER, 1)  # noqa: S311
            poll.next_at = now + (math.inf if schedule is None else schedule * spread)
            return schedule is not None
        poll.next_at = now + _CRON_SECONDS
        at = datetime.now(UTC)
        try:
            due = is_due(schedule, last=poll.polled_at, now=at)
        except MemWalError as error:
            self._results.append(self.failures.record(poll.table.name, STATUS_JOB, "", error))
            return False
        if due:
            poll.polled_at = at
        return due

    async def _changed(self, polls: list[_TablePoll]) -> list[_TablePoll]:
        """Filter out the unchanged local tables with one batched check.

        A thread of its own for each unchanged table would cost ten times as much. If a file system
        does not answer, the tables on the others are read all the same.
        """
        if not polls or (self._quick_check is not None and not self._quick_check.done()):
            return polls
        loop = asyncio.get_running_loop()
        self._quick_check = loop.run_in_executor(self._threads, _not_idle, polls)
        try:
            async with asyncio.timeout(QUICK_CHECK_SECONDS):
                return await asyncio.shield(self._quick_check)
        except TimeoutError:
            logger.warning(
                "A file system did not answer in %g s: reading each table by itself.",
                QUICK_CHECK_SECONDS,
            )
        for poll in polls:
            # The thread may still use the old one.
            poll.watch = _new_watch()
        return polls

    async def _poll(self, poll: _TablePoll) -> None:
        table = poll.table
        result: Survey | Outcome
        try:
            async with self._limits.reading(table.name):
                options = await self._storage_options(table)
                # Not another one while it runs: tables on a disk that does not answer would take
                # all threads.
                poll.read = self._threads.submit(self._read, poll, table, poll.watch, options)
                result = await asyncio.wrap_future(poll.read)
            # Not in the thread: a read that exceeds its limit may end later, and is a failure.
            await asyncio.to_thread(self.failures.clear, table.name, STATUS_JOB)
            poll.looked_at = time.monotonic()
            if table.policy.schedule == WHEN_DUE:
                # Sooner than planned if the table has changed.
                pause = poll.watch.pause_seconds(table.policy)
                poll.next_at = min(poll.next_at, poll.looked_at + pause)
        except Exception as error:
            # A thread that did not answer in time may still use the old one.
            poll.watch = _new_watch()
            # If it backs off, at the end of that.
            poll.poll_in(table.policy.poll_seconds)
            record = self.failures.record
            result = await asyncio.to_thread(record, table.name, STATUS_JOB, "", error)
        finally:
            poll.task = None
        if self._polls.get(table.name) is poll:
            self._results.append(result)

    def _read(
        self,
        poll: _TablePoll,
        table: ManagedTable,
        watch: TableWatch,
        options: Mapping[str, str] | None,
    ) -> Survey:
        work = self.work.get(table.name)
        reading = watch.poll(self._catalog, table, storage_options=options, work=work)
        due = {job: due.reason for job, due in reading.survey.due.items() if due.reason}
        poll.needs_work = reading.needs_work
        if reading.is_fresh:
            poll.has_sample = False
        now = time.monotonic()
        is_changed = poll.reported != frozenset(due)
        # With the due jobs, the backlog: the page shows both.
        if is_changed or (not poll.has_sample and now >= poll.next_sample):
            status, probe = reading.survey.status, watch.probe()
            self._catalog.record_backlog(table.name, status, probe=probe)
            poll.has_sample, poll.next_sample = True, now + SAMPLE_SECONDS
        if is_changed:
            self._catalog.reports.record_due(table.name, due)
            poll.reported = frozenset(due)
        return reading.survey


def _not_idle(polls: list[_TablePoll]) -> list[_TablePoll]:
    now = time.monotonic()

    def is_idle(poll: _TablePoll) -> bool:
        needs_sample = not poll.has_sample and now >= poll.next_sample
        try:
            is_idle = not needs_sample and poll.watch.is_idle(poll.table)
        except Exception:
            # The poll raises it again, for this table alone.
            return False
        if is_idle:
            poll.looked_at = now
        return is_idle

    return [poll for poll in polls if not is_idle(poll)]
