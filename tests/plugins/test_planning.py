from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from memwal_airflow.planning import DecideMergeOperator, ListRegionsOperator

from memwal.catalog import Catalog


class TaskInstance:
    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def context(**params: Any) -> Any:
    return {"ti": TaskInstance(), "params": params}


def lister(table: Any) -> ListRegionsOperator:
    return ListRegionsOperator(task_id="list", table="t", table_uri=table.uri)


def decider(table: Any, **options: Any) -> DecideMergeOperator:
    arguments = {"at_generations": 4, "at_age_seconds": 3600.0, **options}
    return DecideMergeOperator(task_id="decide", table_uri=table.uri, **arguments)


def test_all_regions_are_listed_and_the_backlog_is_sampled(backlog: Any, catalog: Catalog) -> None:
    found = lister(backlog).execute(context())
    expected = [
        {"region_id": region, "wait": True, "force": False}
        for region in sorted([backlog.hot, backlog.cold])
    ]
    assert found == expected
    (sample,) = catalog.backlog_history("t")
    assert sample.generations == 5


@pytest.mark.parametrize(
    ("params", "wait", "force"),
    [({"force": True}, False, True), ({"dry_run": True}, False, False)],
)
def test_runs_by_hand_do_not_wait(
    backlog: Any, catalog: Catalog, params: Any, wait: bool, force: bool
) -> None:
    found = lister(backlog).execute(context(**params))
    assert {(entry["wait"], entry["force"]) for entry in found} == {(wait, force)}


def test_asked_for_regions_only_and_unknown_ones_named(backlog: Any, catalog: Catalog) -> None:
    found = lister(backlog).execute(context(regions=[backlog.cold]))
    assert [entry["region_id"] for entry in found] == [backlog.cold]
    with pytest.raises(AirflowFailException, match="no regions zzz"):
        lister(backlog).execute(context(regions=[backlog.cold, "zzz"]))


def test_more_regions_than_airflow_maps_are_refused_with_the_way_out(
    backlog: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "1")
    with pytest.raises(AirflowFailException, match="max_map_length"):
        lister(backlog).execute(context())


def test_the_regions_that_are_due_are_decided_on(backlog: Any) -> None:
    given = context()
    assert decider(backlog).execute(given) == [backlog.hot]
    assert list(given["ti"].pushed["reasons"]) == [backlog.hot]
    both = decider(backlog, at_age_seconds=0.0).execute(context())
    assert sorted(both) == sorted([backlog.hot, backlog.cold])


def test_nothing_due_is_a_skip(backlog: Any) -> None:
    with pytest.raises(AirflowSkipException, match="No region is due"):
        decider(backlog, at_generations=5).execute(context())
    with pytest.raises(AirflowSkipException, match="No region is due"):
        decider(backlog).execute(context(regions=[backlog.cold]))


def test_forced_any_backlog_is_due_but_no_backlog_is_not(backlog: Any) -> None:
    assert len(decider(backlog).execute(context(force=True))) == 2
    assert decider(backlog).execute(context(force=True, regions=[backlog.cold])) == [backlog.cold]
    backlog.table.merge()
    with pytest.raises(AirflowSkipException, match="No region is due"):
        decider(backlog).execute(context(force=True))


def test_a_dry_run_tells_and_skips(backlog: Any) -> None:
    given = context(dry_run=True)
    with pytest.raises(AirflowSkipException, match="1 regions would be merged"):
        decider(backlog).execute(given)
    assert list(given["ti"].pushed["reasons"]) == [backlog.hot]
