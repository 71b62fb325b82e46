import time
from typing import Any

import pytest
from memwal_airflow.sensors.table import (
    GenerationMergedSensor,
    IndexCaughtUpSensor,
    TableBacklogSensor,
    TableSensor,
)
from memwal_airflow.skips import TaskSkipReason
from memwal_airflow.triggers.table import TableTrigger
from memwal_airflow.version_compat import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from support.airflow.skips import skips

from memwal.catalog import Catalog, Policy
from memwal.errors import InvalidInputError, ObjectNotFoundError
from memwal.jobs.job import SkippedRegion

RULE = {"merge_at_generations": 4, "merge_at_age_seconds": 3600.0}


class TaskInstance:
    """XComs of one task, as far as sensors use them."""

    map_index = -1

    def __init__(self) -> None:
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: str, key: str, map_indexes: int) -> Any:
        return self.xcoms.get(key)


def context() -> Any:
    return {"ti": TaskInstance()}


def sensor(table: Any, region: Any, **options: Any) -> TableBacklogSensor:
    arguments = {"policy": RULE, **options}
    return TableBacklogSensor(task_id="wait", table_uri=table.uri, regions=region, **arguments)


def deferral(waiting: TableSensor) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        waiting.execute(context())
    return caught.value


@pytest.fixture
def flights(backlog: Any, catalog: Catalog) -> Any:
    """The table, registered under this name with a policy by which no region is due."""
    policy = Policy(merge_at_generations=5, merge_at_age_seconds=3600)
    catalog.register("flights", uri=backlog.uri, policy=policy)
    return backlog


def test_a_region_that_is_due_is_not_deferred(backlog: Any) -> None:
    found = sensor(backlog, backlog.hot).execute(context())
    assert found["regions"] == [backlog.hot]
    assert backlog.hot in found["due"]
    both = sensor(backlog, [backlog.hot, backlog.cold]).execute(context())
    assert both["generations"] == 5


def test_others_wait_in_the_triggerer_with_all_they_need(backlog: Any, tmp_path: Any) -> None:
    options = tmp_path / "options.json"
    options.write_text("{}")
    waiting = sensor(
        backlog, backlog.cold, storage_options_ref=str(options), poke_interval=7, timeout=90
    )
    left = deferral(waiting)
    assert isinstance(left.trigger, TableTrigger)
    _, arguments = left.trigger.serialize()
    ends = arguments.pop("window_ends_at")
    assert time.time() < ends <= time.time() + 90
    assert arguments == {
        "table": None,
        "table_uri": backlog.uri,
        "storage_options_ref": str(options),
        "condition": "BacklogDue",
        "region_ids": [backlog.cold],
        "policy": RULE,
        "poke_seconds": 7,
        "soft_fail": True,
    }
    assert left.method_name == "ended_by_trigger"
    assert left.timeout is not None
    assert left.timeout.total_seconds() > 90


def test_without_waiting_it_skips_and_says_why(backlog: Any) -> None:
    with skips(TaskSkipReason.NOT_DUE, naming=backlog.uri):
        sensor(backlog, backlog.cold, wait=False).execute(context())


def test_forced_it_does_not_even_look(backlog: Any) -> None:
    backlog = type(backlog)(uri="/nowhere", table=None, hot="", cold="x")
    found = sensor(backlog, "x", force=True).execute(context())
    assert found["regions"] == []


def test_it_is_tried_again_by_default(backlog: Any) -> None:
    assert sensor(backlog, backlog.hot).retries == 2
    assert sensor(backlog, backlog.hot, retries=5).retries == 5


def test_a_table_is_given_by_name_or_by_address() -> None:
    for wrong in (
        {},
        {"table": "a", "table_uri": "/a"},
        {"table": "a", "storage_options_ref": "/o"},
    ):
        with pytest.raises(InvalidInputError):
            TableBacklogSensor(task_id="wait", **wrong)


def test_the_catalog_tells_where_a_table_is_and_when_it_is_due(
    flights: Any, catalog: Catalog
) -> None:
    waiting = TableBacklogSensor(task_id="wait", table="flights")
    assert deferral(waiting).trigger.serialize()[1]["table"] == "flights"
    catalog.update("flights", policy=Policy(merge_at_generations=4, merge_at_age_seconds=3600))
    assert waiting.execute(context())["regions"] == [flights.hot]
    skipped = SkippedRegion(region_id=flights.hot, generation=1, reason="torn")
    catalog.backoffs.skip_regions("flights", [skipped])
    deferral(waiting)
    some = TableBacklogSensor(task_id="wait", table="flights", policy={"merge_at_generations": 1})
    assert some.execute(context())["regions"] == [flights.cold]
    with pytest.raises(ObjectNotFoundError):
        TableBacklogSensor(task_id="wait", table="nothing").execute(context())


def test_a_generation_is_waited_for_until_it_is_merged(flights: Any) -> None:
    waiting = GenerationMergedSensor(
        task_id="wait", table="flights", region=flights.hot, generation="4"
    )
    left = deferral(waiting)
    assert isinstance(left.trigger, TableTrigger)
    assert left.trigger.serialize()[1]["generations"] == {flights.hot: 4}
    assert left.trigger.soft_fail is False
    flights.table.merge()
    assert waiting.execute(context())["generations"] == {flights.hot: 4}
    with pytest.raises(InvalidInputError):
        GenerationMergedSensor(task_id="wait", table="flights", generation=4)


def test_by_default_all_that_exists_is_waited_for(flights: Any) -> None:
    everything = GenerationMergedSensor(task_id="wait", table="flights")
    one = GenerationMergedSensor(task_id="wait", table="flights", region=flights.cold)
    wanted = {flights.hot: 4, flights.cold: 1}
    assert deferral(everything).trigger.serialize()[1]["generations"] == wanted
    assert deferral(one).trigger.serialize()[1]["generations"] == {flights.cold: 1}
    flights.table.merge()
    assert everything.execute(context())["generations"] == {}


def test_one_that_is_rescheduled_waits_for_what_it_found_first(flights: Any) -> None:
    waiting = GenerationMergedSensor(
        task_id="wait", table="flights", deferrable=False, mode="reschedule"
    )
    given = context()
    assert not waiting.poke(given).is_done
    flights.table.merge()
    flights.flush(*range(100))
    assert waiting.poke(given).is_done
    assert not waiting.poke(context()).is_done


def test_indexes_are_waited_for(flights: Any) -> None:
    waiting = IndexCaughtUpSensor(task_id="wait", table="flights", indexes=["id_idx"])
    assert waiting.execute(context())["indexes"] == {"id_idx": 0}
    flights.table.merge()
    left = deferral(waiting)
    assert left.trigger.serialize()[1]["indexes"] == ["id_idx"]
    flights.table.build_indexes()
    assert waiting.execute(context())["indexes"] == {"id_idx": 0}


def test_one_that_does_not_defer_waits_in_the_worker(flights: Any) -> None:
    options: dict[str, Any] = {
        "table": "flights",
        "deferrable": False,
        "poke_interval": 0.01,
        "timeout": 0.02,
    }
    with pytest.raises(AirflowSkipException):
        TableBacklogSensor(task_id="wait", **options).execute(context())
    with pytest.raises(AirflowSensorTimeout):
        GenerationMergedSensor(task_id="wait", **options).execute(context())
    flights.table.merge()
    flights.table.build_indexes()
    assert GenerationMergedSensor(task_id="wait", **options).execute(context())["version"] > 1


def test_only_a_dag_that_is_tried_out_comes_back_from_the_triggerer(backlog: Any) -> None:
    waiting = sensor(backlog, backlog.hot)
    waiting.ended_by_trigger(context(), "success")
    with pytest.raises(AirflowSkipException):
        waiting.ended_by_trigger(context(), "skipped")
    with pytest.raises(AirflowSensorTimeout):
        waiting.ended_by_trigger(context(), "failed")


DAG_FILE = """
from airflow.sdk import DAG
from memwal_airflow.sensors.table import TableBacklogSensor

with DAG("sensors"):
    TableBacklogSensor.partial(
        task_id="wait", table_uri={uri!r}, poke_interval=1, timeout=1, soft_fail=True
    ).expand(regions={regions!r})
"""


@pytest.mark.slow
def test_mapped_over_regions_in_a_run(backlog: Any, load_dag: Any) -> None:
    regions = [backlog.hot, backlog.cold, "00000000-0000-0000-0000-000000000009"]
    run = load_dag(DAG_FILE.format(uri=backlog.uri, regions=regions), "sensors").test()
    states = {ti.map_index: ti.state for ti in run.get_task_instances()}
    assert run.state == "success"
    assert states == {0: "success", 1: "skipped", 2: "skipped"}
