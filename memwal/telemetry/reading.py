"""All that the catalog knows of its tables at one moment, in a constant number of queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memwal.catalog.records import ManagedTable, TableState

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
