from __future__ import annotations

import time
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from memwal_airflow.sensors import RegionBacklogSensor
from memwal_airflow.triggers import RegionBacklogTrigger


def sensor(table: Any, region: str, **options: Any) -> RegionBacklogSensor:
    arguments = {"min_generations": 4, "max_age_seconds": 3600.0, **options}
    return RegionBacklogSensor(task_id="wait", table_uri=table.uri, region_id=region, **arguments)


def test_a_region_that_is_due_is_not_deferred(backlog: Any) -> None:
    found = sensor(backlog, backlog.hot).execute({})  # type: ignore[arg-type]
    assert found["region_id"] == backlog.hot
    assert "4 generations wait" in found["due"]


def test_others_wait_in_the_triggerer_with_all_they_need(backlog: Any, tmp_path: Any) -> None:
    options = tmp_path / "options.json"
    options.write_text("{}")
    with pytest.raises(TaskDeferred) as caught:
        sensor(
            backlog,
            backlog.cold,
            storage_options_ref=str(options),
            poke_interval=7,
            timeout=90,
        ).execute({})  # type: ignore[arg-type]
    deferral = caught.value
    assert isinstance(deferral.trigger, RegionBacklogTrigger)
    _, arguments = deferral.trigger.serialize()
    ends = arguments.pop("window_ends_at")
    assert time.time() < ends <= time.time() + 90
    assert arguments == {
        "table_uri": backlog.uri,
        "region_id": backlog.cold,
        "min_generations": 4,
        "max_age_seconds": 3600.0,
        "storage_options_ref": str(options),
        "poke_seconds": 7,
    }
    assert deferral.method_name == "ended_by_trigger"
    assert deferral.timeout is not None
    assert deferral.timeout.total_seconds() > 90


def test_without_waiting_it_skips_and_says_why(backlog: Any) -> None:
    with pytest.raises(AirflowSkipException, match="not due: 1 of 4 generations"):
        sensor(backlog, backlog.cold, wait=False).execute({})  # type: ignore[arg-type]


def test_forced_it_does_not_even_look(backlog: Any) -> None:
    backlog = type(backlog)(uri="/nowhere", table=None, hot="", cold="x")
    found = sensor(backlog, "x", force=True).execute({})  # type: ignore[arg-type]
    assert "forced" in found["due"]


def test_it_is_tried_again_by_default(backlog: Any) -> None:
    assert sensor(backlog, backlog.hot).retries == 2
    assert sensor(backlog, backlog.hot, retries=5).retries == 5


DAG_FILE = """
from airflow.sdk import DAG
from memwal_airflow.sensors import RegionBacklogSensor

with DAG("sensors"):
    RegionBacklogSensor.partial(
        task_id="wait", table_uri={uri!r}, max_age_seconds=3600, poke_interval=1, timeout=1
    ).expand(region_id={regions!r})
"""


def test_mapped_over_regions_in_a_run(backlog: Any, load_dag: Any) -> None:
    regions = [backlog.hot, backlog.cold, "00000000-0000-0000-0000-000000000009"]
    run = load_dag(DAG_FILE.format(uri=backlog.uri, regions=regions), "sensors").test()
    states = {ti.map_index: ti.state for ti in run.get_task_instances()}
    assert run.state == "success"
    assert states == {0: "success", 1: "skipped", 2: "skipped"}
