"""A week of tables with the schedule ``@due``, in simulated time and without a process of Airflow.

The decisions are those of the product: the announcer of the trigger, ``still_due``, the gate, and
which jobs are due. Airflow, the catalog and the tables are models. Airflow loses events, is slow
and full, runs a task twice; triggerers die, or overlap with their successors; jobs fail.
"""

import heapq
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, islice, takewhile
from typing import Any

from memwal_airflow.due_dag import still_due
from memwal_airflow.triggers.due import Announcer
from memwal_airflow.triggers.due_tables import DueTable, due_reasons, due_table
from memwal_airflow.triggers.gate import Gate
from memwal_airflow.triggers.readings import TableReading
from support.data.statuses import region, status

from memwal.catalog.history import LatestRuns
from memwal.catalog.records import ManagedTable
from memwal.fleet.tables import Survey, due_jobs
from memwal.jobs.due import JOBS
from memwal.jobs.job import JobRun, RunState
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus

DAY = 86_400.0
START = datetime(2026, 3, 2, tzinfo=UTC)
POLL = 10.0
SLOTS = 2

TABLES: dict[str, tuple[Policy, float, float]] = {
    "steady": (Policy(), 900.0, 0.0),
    "rare": (Policy(gc_interval_seconds=3_600), 7_200.0, 0.0),
    "quiet": (Policy(quiet_hours=("08:00-18:00 Europe/Berlin",)), 1_800.0, 0.02),
    "failing": (Policy(merge_at_generations=1), 3_600.0, 0.4),
    "often": (
        Policy(poll_seconds=1, merge_at_generations=2, index_at_generations=2, late_seconds=900),
        900.0,
        0.02,
    ),
    "idle": (Policy(gc_interval_seconds=1_800), 1e9, 0.0),
}
"""Policy, mean pause between flushes in seconds, and share of tries that fail, by name."""

Steps = Iterator[float]
"""A process: yields the seconds that it waits."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the trigger, as a run of ``memwal_due`` sees it."""

    extra: Mapping[str, Any]
    timestamp: datetime


@dataclass(slots=True)
class SimulatedTable:
    """A table of two regions. Times are in seconds of the simulation."""

    managed: ManagedTable
    flush_seconds: float
    """Mean pause between two flushes."""
    failures: float
    """Share of the tries of jobs that fail."""
    backlog: dict[int, list[float]] = field(default_factory=lambda: {0: [], 1: []})
    unindexed: int = 0
    changed: bool = True
    snapshot_at: float | None = None
    garbage: int = 0
    changes: int = 0
    """Flushes and ended jobs so far."""
    due_since: float | None = None

    def status(self, now: float) -> TableStatus:
        regions = [
            region(
                number,
                backlog_generations=len(flushed),
                backlog_rows=10 * len(flushed),
                oldest_backlog_seconds=now - flushed[0] if flushed else None,
                reclaimable_bytes=self.garbage,
            )
            for number, flushed in self.backlog.items()
        ]
        age = None if self.snapshot_at is None else now - self.snapshot_at
        return status(
            *regions,
            lag=self.unindexed,
            snapshot_age_seconds=age,
            changed_regions=2 if self.changed else 0,
        )

    def served(self, job: str, seen: Mapping[int, int], now: float) -> None:
        """Do what a job does, with the backlog that it saw when it began."""
        match job:
            case "merge":
                for number, count in seen.items():
                    del self.backlog[number][:count]
                self.unindexed += sum(seen.values())
                self.garbage += sum(seen.values()) << 20
            case "index":
                self.unindexed = 0
            case "snapshot":
                self.snapshot_at, self.changed = now, False
            case "gc":
                self.garbage = 0


class SimulatedCatalog:
    """Runs of jobs, and the next tries of those that failed."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._runs: list[JobRun] = []
        self._latest: dict[str, LatestRuns] = {}
        self._backoffs: dict[tuple[str, str], tuple[int, datetime]] = {}

    def begin(self, table: str, job: str) -> JobRun:
        run = JobRun(
            run_id=len(self._runs) + 1,
            table=table,
            job=job,
            state=RunState.RUNNING,
            started_at=self._clock(),
            finished_at=None,
            result=None,
            error=None,
            external_id=None,
        )
        self._runs.append(run)
        self._keep(run)
        return run

    def end(self, run: JobRun, state: RunState) -> None:
        run = replace(run, state=state, finished_at=self._clock())
        self._runs[run.run_id - 1] = run
        self._keep(run)
        if state is RunState.SUCCEEDED:
            self._backoffs.pop((run.table, run.job), None)

    def back_off(self, table: str, job: str) -> None:
        """Delay the next try of a job, after the last one of its task."""
        tries = self._backoffs.get((table, job), (0, START))[0]
        pause = timedelta(seconds=min(60 * 2**tries, 6 * 3600))
        self._backoffs[table, job] = tries + 1, self._clock() + pause

    def is_backing_off(self, table: str, job: str) -> bool:
        return self._backoffs.get((table, job), (0, START))[1] > self._clock()

    def runs(self, *, since: datetime, limit: int) -> list[JobRun]:
        """Return the newest runs since a time, the last first."""
        recent = takewhile(lambda run: run.started_at >= since, reversed(self._runs))
        return list(islice(recent, limit))

    def latest(self, table: str) -> LatestRuns:
        return self._latest.get(table) or LatestRuns(
            newest={}, ended={}, succeeded={}, failing={}, running=()
        )

    def last_runs(self, table: str) -> dict[str, datetime]:
        succeeded = self.latest(table).succeeded.values()
        return {run.job: run.finished_at for run in succeeded if run.finished_at is not None}

    def _keep(self, run: JobRun) -> None:
        before = self.latest(run.table)
        ended = run.state is not RunState.RUNNING
        own = {run.job: run}
        self._latest[run.table] = replace(
            before,
            newest=before.newest | own,
            ended=before.ended | own if ended else before.ended,
            succeeded=before.succeeded | own
            if run.state is RunState.SUCCEEDED
            else before.succeeded,
            running=tuple(other for other in before.running if other.run_id != run.run_id)
            + (() if ended else (run,)),
        )


@dataclass(slots=True)
class Outcome:
    """What a simulation counts."""

    runs: int = 0
    idle_runs: int = 0
    """Runs in which no job was tried."""
    jobs: int = 0
    events: int = 0
    longest_wait: float = 0.0
    """Seconds from the poll that found a table due to the begin of a run that serves it, without
    the time in which a run of it was active."""


class Week:
    """The simulation; ``seed`` gives all that is random.

    With ``tells_active=False``, Airflow does not answer which tables have an active run.
    """

    def __init__(self, *, seed: int, tells_active: bool = True) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.outcome = Outcome()
        self._tells_active = tells_active
        self.catalog: Any = SimulatedCatalog(lambda: self.at)
        self.tables = {
            name: SimulatedTable(_managed(name, policy), flushes, failures)
            for name, (policy, flushes, failures) in TABLES.items()
        }
        self._processes: list[tuple[float, int, Steps]] = []
        self._numbers = count()
        self._starting = self._has_started = False  # Whether a task ``start`` runs, or has ended.
        self._wanted: set[str] = set()  # Assets that were updated, until the scheduler sees them.
        self._active: set[str] = set()
        self._busy_slots = 0

    @property
    def at(self) -> datetime:
        return START + timedelta(seconds=self.now)

    def run(self, seconds: float) -> Outcome:
        """Simulate, and return what was counted."""
        for name in self.tables:
            self._begin(self._write(name))
        self._begin(self._keep_triggerer())
        self._begin(self._schedule())
        while self._processes and self._processes[0][0] <= seconds:
            self.now, _, process = heapq.heappop(self._processes)
            pause = next(process, None)
            if pause is not None:
                self._begin(process, after=pause)
        return self.outcome

    def _begin(self, process: Steps, *, after: float = 0.0) -> None:
        heapq.heappush(self._processes, (self.now + after, next(self._numbers), process))

    def _between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def _happens(self, share: float) -> bool:
        return self.random.random() < share

    # -- tables

    def _write(self, name: str) -> Steps:
        table = self.tables[name]
        while True:
            yield self.random.expovariate(1 / table.flush_seconds)
            for _ in range(self.random.choice([1, 1, 1, 6])):
                table.backlog[self.random.choice([0, 1])].append(self.now)
            table.changed = True
            table.changes += 1

    def _survey(self, name: str) -> Survey:
        table, last_runs = self.tables[name], self.catalog.last_runs(name)
        found = table.status(self.now)
        return Survey(
            table=table.managed,
            status=found,
            due=due_jobs(found, table.managed.policy, (), now=self.at, last_runs=last_runs),
            skipped_regions=(),
            last_runs=last_runs,
        )

    # -- Airflow

    def _keep_triggerer(self) -> Steps:
        """Replace triggerers: some die and leave a gap, others poll on beside the next one."""
        while True:
            life = self._between(3_600, 43_200)
            self._begin(self._trigger(self.now + life))
            yield life + self._between(-24, 120)

    def _trigger(self, dies_at: float) -> Steps:
        announcer = Announcer(clock=lambda: self.now)
        found: dict[str, DueTable] = {}
        surveyed: dict[str, tuple[int, float]] = {}
        while self.now < dies_at:
            surveys = []
            for name, table in self.tables.items():
                changes, at = surveyed.get(name, (-1, 0.0))
                if changes != table.changes or self.now - at >= 60:
                    surveyed[name] = table.changes, self.now
                    surveys.append(self._survey(name))
            yield 1.0
            for survey in surveys:
                name = survey.table.name
                found.pop(name, None)
                jobs = due_reasons(self.catalog, survey, now=self.at)
                due = due_table(survey, jobs, self.catalog.latest(name), now=self.at)
                if due is not None:
                    found[name] = due
            self._note_waits(found)
            wanted = announcer.wanted_tables(found)
            active = self._told(announcer.announced_before(wanted))
            event = announcer.announce(found, wanted, active=active)
            if event and not self._happens(0.05):
                self.outcome.events += 1
                payload = {"payload": {"tables": event}}
                self._begin(self._due_run(Event(payload, self.at)), after=self._between(0.5, 3))
            yield POLL - 1 if not found else 2.0

    def _told(self, tables: Collection[str]) -> set[str]:
        return self._active.intersection(tables) if self._tells_active else set()

    def _note_waits(self, found: Collection[str]) -> None:
        for name, table in self.tables.items():
            if name not in found or name in self._active:
                table.due_since = None
            else:
                table.due_since = self.now if table.due_since is None else table.due_since
                waited = self.now - table.due_since
                self.outcome.longest_wait = max(self.outcome.longest_wait, waited)

    def _due_run(self, event: Event) -> Steps:
        """A run of ``memwal_due``: its tasks begin one after the other, some of them late."""
        if self._happens(0.03):
            yield self._between(10, 90)
        while self._starting:
            yield 1.0
        self._starting = True
        for _ in range(3):
            yield self._between(0.5, 2)
            due = still_due(self.catalog, [event])
            starts = due.keys() - self._told(due)
            yield self._between(0.1, 0.5)
            died, is_recorded = self._happens(0.05), self._happens(0.5)
            if not died or is_recorded:
                self._wanted |= starts
            if not died:
                break
            yield 10.0
        self._has_started = True

    def _schedule(self) -> Steps:
        """The scheduler: at most one run of a table is active.

        It creates the runs of updated assets before it queues the next task ``start``.
        """
        while True:
            for name in sorted(self._wanted - self._active):
                self._wanted.discard(name)
                self._active.add(name)
                self._begin(self._table_run(name), after=self._between(0.1, 2))
            if self._has_started:
                self._starting = self._has_started = False
            yield 1.0

    def _table_run(self, name: str) -> Steps:
        table = self.tables[name]
        self.outcome.runs += 1
        yield self._between(1, 3)
        gate = Gate(table=name, tasks={job: job for job in JOBS})
        ends = self.now + table.managed.policy.due_wait_seconds
        while True:
            result = gate.check(self._reading(name), {})
            if result.opens or self.now >= ends:
                break
            yield table.managed.policy.poll_seconds
        tried = 0
        for job in ("merge", *(job for job in JOBS if job != "merge")):
            if job in result.tasks:
                while self._busy_slots >= SLOTS:
                    yield 1.0
                self._busy_slots += 1
                yield self._between(0.5, 2)
                if self._survey(name).due[job].reason is not None:
                    tried += 1
                    yield from self._tries(name, job)
                self._busy_slots -= 1
        self.outcome.idle_runs += not tried
        yield self._between(0.5, 2)
        self._active.discard(name)

    def _tries(self, name: str, job: str) -> Steps:
        """A task: up to three tries, 30 s apart."""
        table = self.tables[name]
        for number in range(3):
            self.outcome.jobs += 1
            run = self.catalog.begin(name, job)
            table.changes += 1
            seen = {region: len(flushed) for region, flushed in table.backlog.items()}
            # Some jobs take minutes: then the runs of other tables wait for a slot.
            yield self._between(1, 5) if self._happens(0.98) else self._between(60, 900)
            if not self._happens(table.failures):
                table.served(job, seen, self.now)
                self.catalog.end(run, RunState.SUCCEEDED)
                table.changes += 1
                return
            self.catalog.end(run, RunState.FAILED)
            table.changes += 1
            if number < 2:
                yield 30.0
        self.catalog.back_off(name, job)

    def _reading(self, name: str) -> TableReading:
        table = self.tables[name]
        return TableReading(
            status=table.status(self.now),
            policy=table.managed.policy,
            regions_in_backoff=frozenset(),
            last_runs=self.catalog.last_runs(name),
            at=self.at,
        )


def _managed(name: str, policy: Policy) -> ManagedTable:
    return ManagedTable(
        name=name,
        uri=f"/lake/{name}",
        storage_options_ref=None,
        policy=policy,
        owner="memwal",
        enabled=True,
        created_at=START,
        updated_at=START,
        regions=2,
    )
