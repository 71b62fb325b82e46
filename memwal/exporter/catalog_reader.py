"""Readings of a catalog, and counters kept from one reading to the next.

A reading takes a constant number of queries, whatever the number of tables. Counters start at 0
with the process, as Prometheus expects of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memwal.catalog.records import ManagedTable, TableState
from memwal.catalog.runs import RunFeed
from memwal.jobs.due import JOBS
from memwal.jobs.job import RunState
from memwal.jobs.metrics import JOB_SUMS, RunSum

if TYPE_CHECKING:
    from memwal.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReading:
    """A managed table, as far as the catalog knows.

    Attributes
    ----------
    table : ManagedTable
    state : TableState or None
        What somebody found who looked last; None when nobody has.
    held : int
        Regions that merges leave out.
    successes : dict of str to datetime
        When each job last ended well; jobs that never did are absent.
    attempts : dict of str to int
        How often each job that is in trouble failed in a row; ``look`` is the look at the table.
    running : tuple of str
        Jobs whose lease is in force.
    at : datetime
        Of the reading, in UTC.
    """

    table: ManagedTable
    state: TableState | None
    held: int
    successes: dict[str, datetime]
    attempts: dict[str, int]
    running: tuple[str, ...]
    at: datetime

    @property
    def look_age(self) -> float:
        """Seconds since somebody looked at the table, or since it was registered."""
        return self.since(self.table.created_at if self.state is None else self.state.at)

    @property
    def backlog_age(self) -> float | None:
        """Seconds: age of the oldest generation that was not merged when somebody looked last."""
        if self.state is None:
            return None
        found = self.state.status.oldest_backlog_seconds
        return 0.0 if found is None else found + self.since(self.state.at)

    def success_age(self, job: str) -> float:
        """Seconds since a job last ended well, or since the table was registered."""
        return self.since(self.successes.get(job, self.table.created_at))

    def since(self, moment: datetime) -> float:
        """Seconds since a moment; none if a clock was put back."""
        return max(0.0, (self.at - moment).total_seconds())


def utc_now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)


def read_catalog(
    catalog: Catalog, *, clock: Callable[[], datetime] = utc_now
) -> list[TableReading]:
    """Read what there is to know of every registered table, by name. No table is opened.

    Parameters
    ----------
    catalog : Catalog
    clock : callable
        Tells the present, in UTC; asked once the catalog was read.

    Raises
    ------
    StoreUnavailableError
        The catalog does not answer.
    TableSetupError
        It has no schema, or not the one of this memwal.
    """
    tables = catalog.list()
    states = {state.table: state for state in catalog.states()}
    held = Counter(record.table for record in catalog.setbacks.held())
    successes = {
        name: {job: run.finished_at for job, run in runs.succeeded.items() if run.finished_at}
        for name, runs in catalog.latest_runs().items()
    }
    attempts: dict[str, dict[str, int]] = {}
    for trouble in catalog.setbacks.troubles():
        attempts.setdefault(trouble.table, {})[trouble.job] = trouble.attempts
    running: dict[str, list[str]] = {}
    for lease in catalog.leases.list():
        kind, _, rest = lease.resource.partition("/")
        name, _, job = rest.partition("/")
        if kind == "table":
            running.setdefault(name, []).append(job)
    now = clock()
    return [
        TableReading(
            table=table,
            state=states.get(table.name),
            held=held[table.name],
            successes=successes.get(table.name, {}),
            attempts=attempts.get(table.name, {}),
            running=tuple(running.get(table.name, ())),
            at=now,
        )
        for table in tables
    ]


CLAIM_WINDOW_SECONDS = 900.0
OUTCOMES = (RunState.SUCCEEDED, RunState.FAILED, RunState.ABANDONED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A catalog at one moment, and what happened since the watch began.

    Attributes
    ----------
    tables : list of TableReading
    runs : mapping of (table, job, outcome) to int
        Runs that ended; 0 for what has not happened.
    sums : mapping of (metric name, table, job) to float
        What they worked on.
    claims, most_claims : mapping of str to int
        By table: claims of regions, and most of one region within 15 minutes.
    behind : mapping of str to float
        By table: for how many seconds an index has been behind without a build that succeeded.
    """

    tables: list[TableReading]
    runs: Mapping[tuple[str, str, str], int]
    sums: Mapping[tuple[str, str, str], float]
    claims: Mapping[str, int]
    most_claims: Mapping[str, int]
    behind: Mapping[str, float]


class Watch:
    """Looks at a catalog again and again.

    Parameters
    ----------
    catalog : Catalog
    clock : callable
        Tells the present, in UTC.
    """

    def __init__(self, catalog: Catalog, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._catalog = catalog
        self._clock = clock
        self._feed = RunFeed(catalog.database)
        self._runs: Counter[tuple[str, str, str]] = Counter()
        self._sums: dict[tuple[str, str, str], float] = {}
        self._tables: dict[str, _TableWatch] = {}

    def look(self) -> Look:
        """Read the catalog once more.

        Raises
        ------
        StoreUnavailableError, TableSetupError
            As of :func:`memwal.exporter.catalog_reader.read_catalog`.
        """
        tables = read_catalog(self._catalog, clock=self._clock)
        for run in self._feed.ended():
            self._runs[run.table, run.job, run.state.value] += 1
            for total in JOB_SUMS:
                self._add(total, run.table, run.job, total.of(run))
        names = [reading.table.name for reading in tables]
        self._tables = {name: self._tables.get(name) or _TableWatch() for name in names}
        for reading in tables:
            self._tables[reading.table.name].take(reading)
        registered = set(names)
        return Look(
            tables=tables,
            runs={
                key: self._runs[key]
                for key in (
                    (name, job, outcome.value)
                    for name in names
                    for job in JOBS
                    for outcome in OUTCOMES
                )
            },
            sums={key: value for key, value in self._sums.items() if key[1] in registered},
            claims={name: watch.claims for name, watch in self._tables.items()},
            most_claims={name: watch.most_claims for name, watch in self._tables.items()},
            behind={name: watch.behind for name, watch in self._tables.items()},
        )

    def _add(self, total: RunSum, table: str, job: str, amount: float | None) -> None:
        if amount:
            key = (total.name, table, job)
            self._sums[key] = self._sums.get(key, 0) + amount


class _TableWatch:
    """What is kept of a table between two looks."""

    def __init__(self) -> None:
        self.claims = 0
        self.most_claims = 0
        self.behind = 0.0
        self._epochs: dict[str, int] | None = None
        # Of the last quarter of an hour: when, region, claims.
        self._recent: deque[tuple[float, str, int]] = deque()
        self._behind_since: float | None = None

    def take(self, reading: TableReading) -> None:
        """Compare with the look before."""
        now = reading.at.timestamp()
        if reading.state is not None:
            for region, claims in self._claimed(reading):
                self.claims += claims
                self._recent.append((reading.state.at.timestamp(), region, claims))
        while self._recent and self._recent[0][0] <= now - CLAIM_WINDOW_SECONDS:
            self._recent.popleft()
        by_region: Counter[str] = Counter()
        for _, region, claims in self._recent:
            by_region[region] += claims
        self.most_claims = max(by_region.values(), default=0)
        self.behind = self._time_behind(reading, now)

    def _claimed(self, reading: TableReading) -> Iterator[tuple[str, int]]:
        regions = reading.state.status.regions if reading.state is not None else ()
        before = self._epochs
        self._epochs = {region.region_id: region.writer_epoch for region in regions}
        if before is None:
            return
        for region, epoch in self._epochs.items():
            if epoch > before.get(region, 0):
                yield region, epoch - before.get(region, 0)

    def _time_behind(self, reading: TableReading, now: float) -> float:
        indexes = reading.state.status.indexes if reading.state is not None else ()
        if not any(index.generations for index in indexes):
            self._behind_since = None
            return 0.0
        if self._behind_since is None:
            self._behind_since = now
        built = reading.successes.get("index")
        since = max(self._behind_since, built.timestamp() if built is not None else 0.0)
        return max(0.0, now - since)
