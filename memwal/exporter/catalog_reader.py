"""Reads the catalog for the exporter, and keeps counters from one reading to the next.

A reading takes the same number of queries for any number of tables. Counters start at 0 with the
process, as Prometheus expects.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING

from memwal.catalog.records import ManagedTable, TableState
from memwal.catalog.runs import RunFeed
from memwal.fleet.overview import TableOverview, overview
from memwal.jobs.due import JOBS
from memwal.jobs.job import RunState
from memwal.jobs.metrics import JOB_SUMS

if TYPE_CHECKING:
    from memwal.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """State of a managed table in the catalog, read at a time in UTC."""

    overview: TableOverview
    state: TableState | None  # Latest recorded status; None if none was recorded yet.
    running: tuple[str, ...]  # Jobs whose lease is in force.
    at: datetime

    @property
    def table(self) -> ManagedTable:
        """The managed table."""
        return self.overview.managed

    @property
    def status_age(self) -> float:
        """Seconds since the status of the table was read, or since the table was registered."""
        return self.since(self.table.created_at if self.state is None else self.state.at)

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


def utc_now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def read_catalog(
    catalog: Catalog, *, clock: Callable[[], datetime] = utc_now
) -> list[TableFigures]:
    """Read the state of every registered table, by name, without opening any.

    Raises StoreUnavailableError if the catalog does not answer, and TableSetupError if it has no
    schema, or that of another memwal version.
    """
    states = {state.table: state for state in catalog.states()}
    running: dict[str, list[str]] = {}
    for lease in catalog.leases.list():
        kind, _, rest = lease.resource.partition("/")
        name, _, job = rest.partition("/")
        if kind == "table":
            running.setdefault(name, []).append(job)
    now = clock()
    return [
        TableFigures(
            overview=table,
            state=states.get(table.table),
            running=tuple(running.get(table.table, ())),
            at=now,
        )
        for table in overview(catalog, now=now)
    ]


CLAIM_WINDOW_SECONDS = 900.0
OUTCOMES = (RunState.SUCCEEDED, RunState.FAILED, RunState.ABANDONED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogReading:
    """Reading of a catalog, with counters since its reader was created."""

    tables: list[TableFigures]
    # Number of runs that ended, 0 included, by table, job and outcome.
    runs: Mapping[tuple[str, str, str], int]
    # Sums of the metrics of these runs, by name, table and job.
    sums: Mapping[tuple[str, str, str], float]
    claims: Mapping[str, int]  # Claims of regions, by table.
    most_claims: Mapping[str, int]  # Maximum of one region within 15 minutes, by table.
    # For how many seconds an index has been behind without a successful build, by table.
    behind: Mapping[str, float]


class CatalogReader:
    """Reads a catalog repeatedly; ``clock`` returns the current time, in UTC."""

    def __init__(self, catalog: Catalog, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._catalog = catalog
        self._clock = clock
        self._feed = RunFeed(catalog.database)
        self._runs: Counter[tuple[str, str, str]] = Counter()
        self._sums: defaultdict[tuple[str, str, str], float] = defaultdict(int)
        self._tables: dict[str, _TableCounters] = {}

    def read(self) -> CatalogReading:
        """Read the catalog once more; raises as :func:`read_catalog` does."""
        tables = read_catalog(self._catalog, clock=self._clock)
        for run in self._feed.ended():
            self._runs[run.table, run.job, run.state.value] += 1
            for total in JOB_SUMS:
                amount = total.of(run)
                if amount:
                    self._sums[total.name, run.table, run.job] += amount
        names = [reading.table.name for reading in tables]
        self._tables = {name: self._tables.get(name) or _TableCounters() for name in names}
        for reading in tables:
            self._tables[reading.table.name].update(reading)
        registered = set(names)
        return CatalogReading(
            tables=tables,
            runs={
                (name, job, outcome.value): self._runs[name, job, outcome.value]
                for name, job, outcome in product(names, JOBS, OUTCOMES)
            },
            sums={key: value for key, value in self._sums.items() if key[1] in registered},
            claims={name: counters.claims for name, counters in self._tables.items()},
            most_claims={name: counters.most_claims for name, counters in self._tables.items()},
            behind={name: counters.behind for name, counters in self._tables.items()},
        )


class _TableCounters:
    """Counters of one table between two readings."""

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
            for region, claims in self._new_claims(reading):
                self.claims += claims
                self._recent.append((reading.state.at.timestamp(), region, claims))
        while self._recent and self._recent[0][0] <= now - CLAIM_WINDOW_SECONDS:
            self._recent.popleft()
        by_region: Counter[str] = Counter()
        for _, region, claims in self._recent:
            by_region[region] += claims
        self.most_claims = max(by_region.values(), default=0)
        self.behind = self._seconds_behind(reading, now)

    def _new_claims(self, reading: TableFigures) -> Iterator[tuple[str, int]]:
        regions = reading.state.status.regions if reading.state is not None else ()
        before = self._epochs
        self._epochs = {region.region_id: region.writer_epoch for region in regions}
        if before is None:
            return
        for region, epoch in self._epochs.items():
            if epoch > before.get(region, 0):
                yield region, epoch - before.get(region, 0)

    def _seconds_behind(self, reading: TableFigures, now: float) -> float:
        indexes = reading.state.status.indexes if reading.state is not None else ()
        if not any(index.generations or index.rows for index in indexes):
            self._behind_since = None
            return 0.0
        if self._behind_since is None:
            self._behind_since = now
        built = reading.overview.last_runs.get("index")
        since = max(self._behind_since, built.timestamp() if built is not None else 0.0)
        return max(0.0, now - since)
