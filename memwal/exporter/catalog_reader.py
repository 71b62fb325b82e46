"""Reads the catalog for the exporter, and keeps counters from one reading to the next.

A reading takes the same number of queries for any number of tables. Counters start at 0 with the
process, as Prometheus expects.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memwal.catalog.records import ManagedTable, TableState
from memwal.catalog.runs import RunFeed
from memwal.fleet.overview import TableOverview, overview
from memwal.jobs.metrics import JOB_SUMS
from memwal.jobs.status import IndexLag

if TYPE_CHECKING:
    from memwal.catalog import Catalog


CLAIM_WINDOW_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """State of a managed table in the catalog, read at a time in UTC."""

    overview: TableOverview
    state: TableState | None  # Latest recorded status; None if none was recorded yet.
    running: tuple[str, ...]  # Jobs whose lease is in force.
    counters: TableCounters
    at: datetime

    @property
    def table(self) -> ManagedTable:
        """The managed table."""
        return self.overview.managed

    @property
    def indexes(self) -> tuple[IndexLag, ...]:
        """The maintained indexes in the latest status."""
        return () if self.state is None else self.state.status.indexes

    @property
    def status_age(self) -> float:
        """Seconds since the table was polled, or since it was registered."""
        latest = self.overview.backlog
        return self.since(self.table.created_at if latest is None else latest.known_at)

    @property
    def backlog_age(self) -> float | None:
        """Age in seconds of the oldest generation that was unmerged in the latest status."""
        return None if self.overview.backlog is None else self.overview.oldest_seconds or 0.0

    def success_age(self, job: str) -> float:
        """Seconds since a job last succeeded, or since the table was registered."""
        return self.since(self.overview.last_runs.get(job, self.table.created_at))

    def since(self, moment: datetime) -> float:
        """Seconds since a moment; 0 if the clock was set back."""
        return max(0.0, (self.at - moment).total_seconds())


class CatalogReader:
    """Reads a catalog repeatedly; ``clock`` returns the current time, in UTC.

    Attributes
    ----------
    runs : Counter
        Runs that ended since the reader was created, by table, job and outcome.
    sums : Counter
        Sums of the metrics of these runs, by name, table and job.
    """

    def __init__(
        self, catalog: Catalog, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.runs: Counter[tuple[str, str, str]] = Counter()
        self.sums: defaultdict[tuple[str, str, str], float] = defaultdict(int)
        self._catalog = catalog
        self._clock = clock
        self._feed = RunFeed(catalog.database)
        self._counters: dict[str, TableCounters] = {}

    def read(self) -> list[TableFigures]:
        """Read the state of every registered table, by name, without opening any.

        Raises StoreUnavailableError if the catalog does not answer, and TableSetupError if it has
        no schema, or that of another memwal version.
        """
        states = {state.table: state for state in self._catalog.states()}
        running: defaultdict[str, list[str]] = defaultdict(list)
        for lease in self._catalog.leases.list():
            kind, _, rest = lease.resource.partition("/")
            name, _, job = rest.partition("/")
            if kind == "table":
                running[name].append(job)
        now = self._clock()
        overviews = overview(self._catalog, now=now)
        for run in self._feed.ended():
            self.runs[run.table, run.job, run.state.value] += 1
            for total in JOB_SUMS:
                amount = total.of(run)
                if amount:
                    self.sums[total.name, run.table, run.job] += amount
        names = [table.table for table in overviews]
        self._counters = {name: self._counters.get(name) or TableCounters() for name in names}
        tables = [
            TableFigures(
                overview=table,
                state=states.get(table.table),
                running=tuple(running[table.table]),
                counters=self._counters[table.table],
                at=now,
            )
            for table in overviews
        ]
        for figures in tables:
            figures.counters.update(figures)
        return tables


class TableCounters:
    """Counters of one table between two readings.

    Attributes
    ----------
    claims : int
        Claims of its regions.
    most_claims : int
        Maximum of one region within 15 minutes.
    behind : float
        For how many seconds an index has been behind without a successful build.
    """

    def __init__(self) -> None:
        self.claims = 0
        self.most_claims = 0
        self.behind = 0.0
        self._epochs: dict[str, int] | None = None
        # Within the last 15 minutes: time, region, number of claims.
        self._recent: deque[tuple[float, str, int]] = deque()
        self._behind_since: float | None = None

    def update(self, reading: TableFigures) -> None:
        """Update the counters by the difference to the previous reading."""
        now = reading.at.timestamp()
        if reading.state is not None:
            for region, claims in self._new_claims(reading.state):
                self.claims += claims
                self._recent.append((reading.state.at.timestamp(), region, claims))
        while self._recent and self._recent[0][0] <= now - CLAIM_WINDOW_SECONDS:
            self._recent.popleft()
        by_region: Counter[str] = Counter()
        for _, region, claims in self._recent:
            by_region[region] += claims
        self.most_claims = max(by_region.values(), default=0)
        self.behind = self._seconds_behind(reading, now)

    def _new_claims(self, state: TableState) -> Iterator[tuple[str, int]]:
        before = self._epochs
        self._epochs = {region.region_id: region.writer_epoch for region in state.status.regions}
        if before is None:
            return
        for region, epoch in self._epochs.items():
            if epoch > before.get(region, 0):
                yield region, epoch - before.get(region, 0)

    def _seconds_behind(self, reading: TableFigures, now: float) -> float:
        if not any(index.generations or index.rows for index in reading.indexes):
            self._behind_since = None
            return 0.0
        if self._behind_since is None:
            self._behind_since = now
        built = reading.overview.last_runs.get("index")
        since = max(self._behind_since, built.timestamp() if built is not None else 0.0)
        return max(0.0, now - since)
