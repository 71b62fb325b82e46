from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from memwal_airflow.assets import indexed_asset
from memwal_airflow.deadlines import LATE
from memwal_airflow.operators.plan import AnnounceIndexedOperator, PlanIndexesOperator, PlanOperator
from memwal_airflow.skips import SkipReason
from support.airflow.skips import skips
from support.data.stale_indexes import make, optimize

from memwal.catalog import Catalog, Policy

BUSY = Policy(merge_at_generations=1, index_at_generations=1)


class TaskInstance:
    def __init__(self, pulled: Any = None) -> None:
        self.pushed: dict[str, Any] = {}
        self.pulled = pulled

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, task_ids: str, key: str = "return_value") -> Any:
        return self.pulled[task_ids, key]


def context(**params: Any) -> Any:
    return {"ti": TaskInstance(), "params": params}


@pytest.fixture
def flights(backlog: Any, catalog: Catalog) -> Any:
    catalog.register("flights", uri=backlog.uri, policy=BUSY)
    return backlog


def plan(**params: Any) -> list[dict[str, Any]]:
    return PlanOperator(task_id="plan", table="flights").execute(context(**params))


def test_each_region_gets_a_sensor_and_the_backlog_is_sampled(
    flights: Any, catalog: Catalog
) -> None:
    expected = [
        {"regions": [region], "wait": True, "force": False}
        for region in sorted([flights.hot, flights.cold])
    ]
    assert plan() == expected
    since = datetime.now(UTC) - timedelta(hours=1)
    (sample,) = catalog.backlog_points("flights", since=since, most=10)
    assert sample.generations == 5


def test_more_regions_than_the_policy_has_sensors_are_shared_out(
    flights: Any, catalog: Catalog
) -> None:
    catalog.update("flights", policy=Policy(sensor_groups=1))
    (only,) = plan()
    assert only["regions"] == sorted([flights.hot, flights.cold])


def test_airflow_maps_no_more_sensors_than_it_may(
    flights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "1")
    (only,) = plan()
    assert len(only["regions"]) == 2


@pytest.mark.parametrize(
    ("params", "wait", "force"),
    [({"force": True}, False, True), ({"dry_run": True}, False, False)],
)
def test_runs_by_hand_do_not_wait(flights: Any, params: Any, wait: bool, force: bool) -> None:
    assert {(entry["wait"], entry["force"]) for entry in plan(**params)} == {(wait, force)}


def test_asked_for_regions_only_and_unknown_ones_named(flights: Any) -> None:
    assert [entry["regions"] for entry in plan(regions=[flights.cold])] == [[flights.cold]]
    with pytest.raises(AirflowFailException, match="zzz"):
        plan(regions=[flights.cold, "zzz"])


def test_a_run_that_is_not_about_merges_waits_for_none(flights: Any) -> None:
    with skips(SkipReason.NOT_REQUESTED):
        plan(jobs=["index", "gc"])
    assert plan(jobs=["merge"])


def test_the_next_run_ends_the_lateness_of_the_one_before(flights: Any, catalog: Catalog) -> None:
    catalog.backoffs.record_failure("flights", LATE, "too long")
    plan()
    assert catalog.backoffs.failed_jobs() == []


def plan_indexes(**params: Any) -> tuple[list[str], dict[str, Any]]:
    given = context(**params)
    names = PlanIndexesOperator(task_id="plan", table="flights").execute(given)
    return names, given["ti"].pushed


def test_the_indexes_that_are_behind_are_listed_with_their_lag(flights: Any) -> None:
    with skips(SkipReason.NOTHING_TO_DO):
        plan_indexes()
    flights.table.merge()
    names, pushed = plan_indexes()
    assert names == ["id_idx", "v_idx"]
    assert pushed == {"lag": {"generations": 5, "rows": 100}}
    with skips(SkipReason.NOT_REQUESTED):
        plan_indexes(jobs=["gc"])
    with skips(SkipReason.DRY_RUN):
        plan_indexes(dry_run=True)
    flights.table.build_indexes()
    with skips(SkipReason.NOTHING_TO_DO):
        plan_indexes(force=True)


def test_an_index_that_misses_rows_is_listed_though_it_covers_all(
    tmp_path: Path, catalog: Catalog
) -> None:
    make(tmp_path / "t.lance", stable_row_ids=True)
    catalog.register("flights", uri=str(tmp_path / "t.lance"))
    with skips(SkipReason.NOTHING_TO_DO):
        plan_indexes()
    optimize(tmp_path / "t.lance")
    names, pushed = plan_indexes()
    assert sorted(names) == ["at_idx", "id_idx", "n_idx"]
    assert pushed == {"lag": {"generations": 0, "rows": 0}}


def test_indexes_are_listed_when_the_policy_says_so_or_somebody_wants_it(
    flights: Any, catalog: Catalog
) -> None:
    flights.table.merge()
    lazy = Policy(index_at_generations=99, index_at_rows=None, index_at_age_seconds=1e9)
    catalog.update("flights", policy=lazy)
    with skips(SkipReason.NOT_DUE):
        plan_indexes()
    assert plan_indexes(force=True)[0] == ["id_idx", "v_idx"]


def announce(results: Any) -> tuple[Any, dict[str, Any]]:
    class Event:
        def __init__(self) -> None:
            self.extra: dict[str, Any] = {}

    asset = indexed_asset("flights")
    event = Event()
    pulled = {("index", "return_value"): results, ("plan", "lag"): {"generations": 5, "rows": 9}}
    operator = AnnounceIndexedOperator(
        task_id="announce", plan_task_id="plan", index_task_id="index", outlets=[asset]
    )
    given: Any = {"ti": TaskInstance(pulled), "params": {}, "outlet_events": {asset: event}}
    return operator.execute(given), event.extra


def test_what_was_built_is_announced_once() -> None:
    expected = {"version": 8, "generations": 5, "rows": 9}
    built = [{"commits": 1, "version": 7}, {"commits": 1, "version": 8}, None]
    assert announce(built) == (expected, expected)
    assert announce({"commits": 1, "version": 8}) == (expected, expected)


@pytest.mark.parametrize("results", [None, [], [{"commits": 0, "version": 7}]])
def test_nothing_is_announced_when_nothing_was_built(results: Any) -> None:
    with skips(SkipReason.NOTHING_TO_DO):
        announce(results)
