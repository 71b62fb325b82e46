from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent
from memwal_airflow.sensors.table import RegionsDueSensor
from memwal_airflow.skips import TaskSkipReason
from memwal_airflow.triggers.table import RegionsDueTrigger, start_arguments
from support.airflow.skips import skips

from memwal.catalog import Catalog, Policy


@pytest.fixture
def flights(backlog: Any, catalog: Catalog) -> Any:
    """The table, registered under this name with a policy by which one region is due."""
    policy = Policy(merge_at_generations=4, merge_at_age_seconds=1e9)
    catalog.register("flights", uri=backlog.uri, policy=policy)
    return backlog


def trigger(number: int, *, shares: int) -> Any:
    made = RegionsDueTrigger(**start_arguments("flights", shares=shares).trigger_kwargs)
    # What Airflow gives a trigger that started without a worker.
    made.task_instance = SimpleNamespace(map_index=number, task_id="regions")
    return made


def end(*triggers: Any) -> list[Any]:
    async def first(trigger: Any) -> Any:
        return await anext(trigger.run())

    async def go() -> list[Any]:
        return list(await asyncio.gather(*map(first, triggers)))

    return asyncio.run(go())


def test_each_region_tells_what_its_merge_waits_for(flights: Any) -> None:
    events = end(trigger(0, shares=2), trigger(1, shares=2))
    regions = sorted([flights.hot, flights.cold])
    ends = dict(zip(regions, events, strict=True))
    assert isinstance(ends[flights.hot], TaskSuccessEvent)
    assert ends[flights.hot].xcoms["return_value"]["regions"] == [flights.hot]
    assert isinstance(ends[flights.cold], TaskSkippedEvent)
    assert ends[flights.cold].xcoms["reason"]


def test_every_region_is_in_one_share_also_one_that_is_new(flights: Any) -> None:
    (only,) = end(trigger(0, shares=1))
    assert only.xcoms["return_value"]["generations"] == 5
    # The DAG was built when the table had more regions.
    *_, last = end(*(trigger(number, shares=3) for number in range(3)))
    assert isinstance(last, TaskSkippedEvent)


def test_the_sensors_of_a_run_share_one_read(flights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from memwal.jobs import backlog as backlog_module

    reads = []
    real = backlog_module.read_status

    def read_status(*arguments: Any, **options: Any) -> Any:
        reads.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(backlog_module, "read_status", read_status)
    end(*(trigger(number, shares=16) for number in range(16)))
    assert len(reads) == 1


def test_another_triggerer_can_build_an_equal_trigger() -> None:
    made = trigger(3, shares=7)
    path, arguments = made.serialize()
    assert path == start_arguments("flights", shares=7).trigger_cls
    assert RegionsDueTrigger(**arguments).serialize() == (path, arguments)


def sensor(number: int) -> RegionsDueSensor:
    return RegionsDueSensor(
        task_id="regions",
        table="flights",
        shares=2,
        share=number,
        start_trigger_args=start_arguments("flights", shares=2),
    )


def test_without_a_triggerer_the_sensor_looks_itself(flights: Any) -> None:
    hot, cold = sorted(
        [0, 1], key=lambda number: sorted([flights.hot, flights.cold])[number] != flights.hot
    )
    assert sensor(hot).execute({})["regions"] == [flights.hot]
    with skips(TaskSkipReason.NOT_DUE):
        sensor(cold).execute({})
