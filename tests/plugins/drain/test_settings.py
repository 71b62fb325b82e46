"""Which tables have a DAG of their own, by the setting and the number of tables."""

from pathlib import Path
from typing import Any

import pytest
from memwal_airflow.dag_factory import build_dags
from memwal_airflow.drain.settings import MAX_OWN_DAGS, are_drained
from memwal_airflow.fleet_dag import build_fleet_dags

from memwal.catalog import Catalog, ManagedTable, Policy
from memwal.errors import InvalidInputError


@pytest.fixture
def tables(catalog: Catalog) -> list[ManagedTable]:
    """One table more than have a DAG each by default, and others that do not start when due."""
    for number in range(MAX_OWN_DAGS + 1):
        catalog.register(f"t{number:02}", uri=f"/t{number}")
    catalog.register("hourly", uri="/hourly", policy=Policy(schedule="@hourly"))
    catalog.register("off", uri="/off", enabled=False)
    return catalog.list()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"TABLE_DAGS": "each"}, False),
        ({"SPARK_MASTER": "sc://spark:15002"}, True),
        # A task cannot run the jobs of many tables there.
        ({"SPARK_MASTER": "k8s://cluster"}, False),
        ({"SPARK_CONN_ID": "spark"}, False),
        # Rights of FAB are given with the DAG of a table.
        ({"OWNER_ROLES": '{"air": "Air"}'}, False),
        ({"SPARK_CONN_ID": "spark", "TABLE_DAGS": "drain"}, True),
    ],
)
def test_many_tables_are_drained(
    tables: list[ManagedTable],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    expected: bool,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"AIRFLOW__MEMWAL__{name}", value)
    assert are_drained(tables) is expected
    few = [table for table in tables if table.name != "t00"]
    assert are_drained(few) is ("TABLE_DAGS" in settings and expected)


def test_settings_that_mean_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__TABLE_DAGS", "none")
    with pytest.raises(InvalidInputError):
        are_drained([])


def test_a_table_is_in_one_dag_only(
    tables: list[ManagedTable],
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Own pools have tasks of their own, and a plan in front."""
    snapshot = tmp_path / "tables.json"
    monkeypatch.setenv("MEMWAL_CATALOG_SNAPSHOT", str(snapshot))
    catalog.export_snapshot(snapshot)
    assert set(build_dags(snapshot)) == {"memwal__hourly"}
    dags = build_fleet_dags()
    assert set(dags) == {"memwal_fleet", "memwal_drain"}
    assert set(dags["memwal_drain"].task_ids) == {"drain", "failed"}
    condition: Any = dags["memwal_drain"].timetable.asset_condition
    watched, unwatched = condition.objects
    assert watched.watchers[0].trigger.drained
    assert not unwatched.watchers

    for name, pool in (("t01", "air"), ("t02", "sea & land"), ("t03", "sea + land")):
        catalog.update(name, policy=Policy(pool=pool))
    catalog.export_snapshot(snapshot)
    dag = build_fleet_dags()["memwal_drain"]
    drains = [task for task in dag.tasks if task.task_id.startswith("drain")]
    assert {task.pool for task in drains} == {"default_pool", "air", "sea & land", "sea + land"}
    assert dag.get_task("plan").downstream_task_ids == {task.task_id for task in drains}

    monkeypatch.setenv("AIRFLOW__MEMWAL__TABLE_DAGS", "each")
    assert len(build_dags(snapshot)) == MAX_OWN_DAGS + 2
    assert set(build_fleet_dags()) == {"memwal_fleet", "memwal_due"}
