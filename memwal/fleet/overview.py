"""What the catalog knows of every table's maintenance: no table is opened for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from memwal.catalog.records import BacklogSample, JobRun, RunState

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.setbacks import Trouble

_RUNNING_SHOWN = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOverview:
    """Maintenance of one table.

    Attributes
    ----------
    table, uri : str
        Name and address.
    enabled : bool
        Whether it is maintained.
    backlog : BacklogSample or None
        The latest sample; None when nobody has looked yet.
    running : tuple of JobRun
        What is being done.
    last_runs : dict of str to datetime
        When each job last ended well, in UTC.
    held : int
        Regions that are held.
    troubles : tuple of Trouble
        What failed and is tried again later.
    """

    table: str
    uri: str
    enabled: bool
    backlog: BacklogSample | None
    running: tuple[JobRun, ...]
    last_runs: dict[str, datetime]
    held: int
    troubles: tuple[Trouble, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        sample = self.backlog
        return {
            "table": self.table,
            "uri": self.uri,
            "enabled": self.enabled,
            "backlog": None if sample is None else {**asdict(sample), "at": sample.at.isoformat()},
            "running": [run.to_dict() for run in self.running],
            "last_runs": {job: at.isoformat() for job, at in self.last_runs.items()},
            "held": self.held,
            "troubles": [trouble.to_dict() for trouble in self.troubles],
        }


def overview(catalog: Catalog) -> list[TableOverview]:
    """Return the maintenance of every table, by name.

    Raises
    ------
    StoreUnavailableError
        The catalog does not answer.
    """
    running = catalog.runs(state=RunState.RUNNING, limit=_RUNNING_SHOWN)
    troubles = catalog.setbacks.troubles()
    held = [record.table for record in catalog.setbacks.held()]
    found = []
    for table in catalog.list():
        samples = catalog.backlog_history(table.name, limit=1)
        found.append(
            TableOverview(
                table=table.name,
                uri=table.uri,
                enabled=table.enabled,
                backlog=samples[0] if samples else None,
                running=tuple(run for run in running if run.table == table.name),
                last_runs=catalog.last_runs(table.name),
                held=held.count(table.name),
                troubles=tuple(one for one in troubles if one.table == table.name),
            )
        )
    return found
