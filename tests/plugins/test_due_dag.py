"""The DAG that starts the DAGs of tables that are due."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from memwal_airflow import due_dag
from memwal_airflow.due_dag import DUE_ALIAS, build_due_dag, start, still_due
from memwal_airflow.version_compat import AirflowSkipException
from support.airflow.outlet_events import OutletEvents

from memwal.catalog import Catalog
from memwal.errors import StoreUnavailableError
from memwal.jobs.job import JobResult


@dataclass
class Event:
    """What a run sees of an event of a trigger."""

    extra: Mapping[str, Any]
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))


def event(*, at: datetime | None = None, **jobs: Mapping[str, int]) -> Event:
    """Return an event that announces a merge of each table, with the last runs that succeeded."""
    tables = {
        table: {"jobs": {"merge": "a limit"}, "succeeded": dict(succeeded)}
        for table, succeeded in jobs.items()
    }
    return Event({"payload": {"tables": tables}}, at or datetime.now(UTC))


def merge(catalog: Catalog, table: str) -> int:
    with catalog.record_run(table, "merge") as run:
        run.finish(JobResult(job="merge", table=table, version=1))
    return catalog.runs(table=table, limit=1)[0].run_id


@pytest.mark.parametrize("watchers", [1, 3])
def test_each_shard_has_a_watcher_and_any_event_starts_a_run(watchers: int) -> None:
    dag = build_due_dag(watchers=watchers)
    condition: Any = dag.timetable.asset_condition
    assets = list(condition.objects)
    assert type(condition).__name__ == "AssetAny"
    triggers = [asset.watchers[0].trigger.serialize()[1] for asset in assets]
    assert triggers == [{"shard": n, "shards": watchers, "drained": False} for n in range(watchers)]
    # Events that come while a run is active are lost if it is the only one.
    assert dag.max_active_runs > 1
    # A task that does not see what another one starts would start it again.
    assert dag.get_task("start").max_active_tis_per_dag == 1


def test_what_no_run_has_served_is_started(catalog: Catalog) -> None:
    before = merge(catalog, "flights")
    assert set(still_due(catalog, [event(flights={"merge": before}, ships={})])) == {
        "flights",
        "ships",
    }


def test_what_a_run_has_served_since_is_not(catalog: Catalog) -> None:
    before = merge(catalog, "flights")
    merge(catalog, "flights")
    assert still_due(catalog, [event(flights={"merge": before})]) == {}


def test_the_last_event_counts_and_clocks_do_not(catalog: Catalog) -> None:
    first = event(flights={}, at=datetime.now(UTC) - timedelta(seconds=20))
    before = merge(catalog, "flights")
    # By the clock of a machine that is ahead.
    second = event(flights={"merge": before}, at=datetime.now(UTC) + timedelta(seconds=30))
    assert still_due(catalog, [first]) == {}
    assert set(still_due(catalog, [second, first])) == {"flights"}


def test_a_table_whose_run_is_active_is_not_started(catalog: Catalog) -> None:
    with catalog.record_run("flights", "index") as run:
        assert still_due(catalog, [event(flights={})]) == {}
        run.finish(JobResult(job="index", table="flights", version=1))
    assert set(still_due(catalog, [event(flights={})])) == {"flights"}


def test_a_failed_run_has_served_nothing(catalog: Catalog) -> None:
    with pytest.raises(StoreUnavailableError), catalog.record_run("flights", "merge"):
        raise StoreUnavailableError("the server does not answer")
    assert set(still_due(catalog, [event(flights={})])) == {"flights"}


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The tables with an active run, by Airflow."""
    tables: set[str] = set()
    monkeypatch.setattr(due_dag, "active_runs", lambda asked: tables & set(asked))
    return tables


class Updates:
    """The updates of assets by an alias."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def add(self, asset: Any, *, extra: Any) -> None:
        self.made[asset.uri] = extra


def test_the_assets_of_exactly_these_tables_are_updated(catalog: Catalog, active: set[str]) -> None:
    outlets = OutletEvents(Updates)
    merge(catalog, "served")
    active.add("late")
    events = {
        "memwal://due/0": [event(flights={}, served={})],
        "memwal://due/1": [event(ships={}, late={})],
    }
    started = start.function(triggering_asset_events=events, outlet_events=outlets)
    assert sorted(started) == ["flights", "ships"]
    ((alias, updates),) = outlets.items()
    assert alias == DUE_ALIAS
    jobs = {"jobs": {"merge": "a limit"}}
    assert updates.made == {"memwal://flights/due": jobs, "memwal://ships/due": jobs}


@pytest.mark.parametrize("events", [{}, {"memwal://due/0": [event(served={})]}])
@pytest.mark.usefixtures("active")
def test_without_a_table_to_start_the_task_is_skipped(catalog: Catalog, events: Any) -> None:
    merge(catalog, "served")
    with pytest.raises(AirflowSkipException):
        start.function(triggering_asset_events=events, outlet_events={})
