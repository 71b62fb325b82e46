"""One table as the catalog knows it, with its regions and what is due. The table is not opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from memwal.fleet.overview import TableOverview, overview
from memwal.fleet.rates import HistoryPoint, history_points
from memwal.fleet.tables import due_but_held
from memwal.maintenance.due import Due
from memwal.maintenance.status import RegionBacklog, TableStatus

if TYPE_CHECKING:
    from memwal.catalog import Catalog, JobRun, TableState
    from memwal.catalog.setbacks import HeldRecord

QUALITY = "quality"
"""Key of the results of runs under which checks of the data tell what they found."""

_QUALITY_SINCE = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetail:
    """One managed table.

    Attributes
    ----------
    overview : TableOverview
    state : TableState or None
        The latest status, with ages as of that look; None when nobody has looked yet.
    due : mapping of str to Due
        Which jobs are due by now, by that status and the policy; empty when there is none.
    held : tuple of HeldRecord
        All regions that are held.
    checked : JobRun or None
        The latest run that looked at rows, by the gate of a merge or a check of the base table,
        within a week; with its whole result.
    """

    overview: TableOverview
    state: TableState | None
    due: Mapping[str, Due]
    held: tuple[HeldRecord, ...]
    checked: JobRun | None


def table_detail(catalog: Catalog, name: str, *, now: datetime | None = None) -> TableDetail:
    """Return what the catalog knows of one table.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    StoreUnavailableError
        The catalog does not answer.
    """
    now = now or datetime.now(UTC)
    (found,) = overview(catalog, table=name, now=now)
    state = next(iter(catalog.states(table=name)), None)
    held = tuple(catalog.setbacks.held(name))
    due: dict[str, Due] = {}
    if state is not None:
        status = aged(state.status, max(0.0, (now - state.at).total_seconds()))
        policy = found.managed.policy
        due = due_but_held(status, policy, held, now=now, last_runs=found.last_runs)
    checked = catalog.latest_run_with(name, QUALITY, since=now - _QUALITY_SINCE)
    return TableDetail(overview=found, state=state, due=due, held=held, checked=checked)


def table_history(
    catalog: Catalog, name: str, *, since: datetime, most: int = 500
) -> list[HistoryPoint]:
    """Return how the backlog of a table went, and how fast rows came and were merged.

    Parameters
    ----------
    catalog : Catalog
    name : str
        Of the table.
    since : datetime
        Aware.
    most : int, default 500
        Most points to return: with more samples, some are left out, evenly.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    StoreUnavailableError
        The catalog does not answer.
    """
    catalog.get(name)
    samples = catalog.backlog_points(name, since=since, most=most)
    return history_points(samples, catalog.merges(since, table=name))


def aged(status: TableStatus, seconds: float) -> TableStatus:
    """The same status some time later, if nothing has happened meanwhile."""

    def older(region: RegionBacklog) -> RegionBacklog:
        if region.oldest_backlog_seconds is None:
            return region
        return replace(region, oldest_backlog_seconds=region.oldest_backlog_seconds + seconds)

    snapshot = status.snapshot_age_seconds
    return replace(
        status,
        regions=tuple(older(region) for region in status.regions),
        snapshot_age_seconds=None if snapshot is None else snapshot + seconds,
    )
