import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent
from memwal_airflow.dag_factory import LATER_TASKS
from memwal_airflow.links import TablePageLink
from memwal_airflow.notifications.failures import LATE
from memwal_airflow.triggers import gate as gates
from memwal_airflow.triggers.gate import GateTrigger, start_arguments
from memwal_airflow.version_compat import XCOM_SKIPMIXIN_KEY

from memwal.catalog import Catalog, Policy
from memwal.errors import StoreUnavailableError
from memwal.jobs import backlog as table_backlog
from memwal.jobs.job import JobResult

TASKS = {"merge": "merge", **LATER_TASKS}
EVERY_TASK = set(TASKS.values())
POLICY = Policy(
    merge_at_generations=4,
    merge_at_age_seconds=1e9,
    index_at_generations=1_000,
    snapshot_at_age_seconds=1e9,
    poll_seconds=1,
)


@pytest.fixture
def flights(backlog: Any, catalog: Catalog) -> Any:
    """The table, of which one region is due for a merge, and nothing else."""
    catalog.register("flights", uri=backlog.uri, policy=POLICY)
    backlog.table.build_snapshot()
    with catalog.record_run("flights", "gc") as run:
        run.finish(JobResult(job="gc", table=backlog.uri, version=1))
    return backlog


def trigger(share: int = -1, *, shares: int = 1, window: float = 0, **params: Any) -> GateTrigger:
    path = start_arguments("flights", TASKS, shares=shares, wait=window)
    made = GateTrigger(**{**(path.trigger_kwargs or {}), "run_params": json.dumps(params)})
    # What the triggerer gives a trigger that started without a worker.
    made.task_instance = SimpleNamespace(map_index=share, task_id="gate")  # type: ignore[assignment]
    made.timeout_after = datetime.now(UTC) + (path.timeout or timedelta())  # type: ignore[attr-defined]
    return made


async def end_of(made: GateTrigger) -> Any:
    (event,) = [event async for event in made.run()]
    return event


def end(*triggers: GateTrigger) -> list[Any]:
    async def go() -> list[Any]:
        return list(await asyncio.gather(*map(end_of, triggers)))

    return asyncio.run(go())


def tasks_of(event: Any) -> set[str]:
    return set(event.xcoms[XCOM_SKIPMIXIN_KEY]["followed"])


def test_one_sensor_tells_of_each_region_what_it_waits_for(flights: Any, catalog: Catalog) -> None:
    (event,) = end(trigger())
    assert isinstance(event, TaskSuccessEvent)
    # The merge decides about the jobs behind it.
    assert tasks_of(event) == EVERY_TASK
    value = event.xcoms["return_value"]
    assert set(value["jobs"]) == {"merge"}
    regions = value["regions"]
    assert {name: region["due"] for name, region in regions.items()} == {
        flights.hot: True,
        flights.cold: False,
    }
    assert (regions[flights.cold]["generations"], regions[flights.hot]["generations"]) == (1, 4)
    assert all(region["limit"] for region in regions.values())
    assert event.xcoms[TablePageLink().xcom_key].endswith("/tables/flights")
    json.dumps(event.xcoms)


def test_without_a_merge_only_the_tasks_of_due_jobs_begin(flights: Any, catalog: Catalog) -> None:
    flights.table.merge()
    (event,) = end(trigger())
    assert isinstance(event, TaskSuccessEvent)
    assert tasks_of(event) == {"index"}


def test_a_run_without_work_ends_at_the_end_of_its_window(flights: Any, catalog: Catalog) -> None:
    catalog.update("flights", policy=Policy(merge_at_generations=9, merge_at_age_seconds=1e9))
    catalog.backoffs.record_failure("flights", LATE, "too long")
    (event,) = end(trigger())
    assert isinstance(event, TaskSkippedEvent)
    assert tasks_of(event) == set()
    assert "flights" in event.xcoms["reason"]
    assert len(event.xcoms["return_value"]["regions"]) == 2
    # The page shows the table as it is, and the previous run is over.
    assert catalog.latest_samples()[0].generations == 5
    assert catalog.backoffs.failed_jobs() == []


def test_it_opens_for_what_becomes_due_while_it_waits(flights: Any, catalog: Catalog) -> None:
    flights.table.merge()
    flights.table.build_indexes()
    flights.table.build_snapshot()

    async def both() -> Any:
        waiting = asyncio.ensure_future(end_of(trigger(window=120)))
        for _ in range(4):
            assert not waiting.done()
            await asyncio.to_thread(flights.flush, *range(10))
        return await waiting

    event = asyncio.run(both())
    assert isinstance(event, TaskSuccessEvent)
    assert "merge" in tasks_of(event)


@pytest.mark.parametrize(
    ("params", "tasks"),
    [
        ({"jobs": ["snapshot", "gc"]}, set()),
        ({"jobs": ["merge", "gc"]}, {"merge", "collect"}),
        ({"jobs": ["gc"], "force": True}, {"collect"}),
        ({"dry_run": True}, EVERY_TASK),
        ({"force": True}, EVERY_TASK),
    ],
)
def test_the_parameters_of_a_run_apply(flights: Any, params: Any, tasks: set[str]) -> None:
    (event,) = end(trigger(**params))
    assert tasks_of(event) == tasks
    assert isinstance(event, TaskSuccessEvent) == bool(tasks)


def test_a_run_for_some_regions_waits_for_these(flights: Any) -> None:
    cold, hot = end(trigger(regions=[flights.cold]), trigger(regions=[flights.hot.upper()]))
    assert isinstance(cold, TaskSkippedEvent)
    assert isinstance(hot, TaskSuccessEvent)


def test_a_region_that_waits_for_its_next_try_opens_nothing(flights: Any, catalog: Catalog) -> None:
    from memwal.jobs.job import SkippedRegion

    skipped = SkippedRegion(region_id=flights.hot, generation=1, reason="a file is lost")
    catalog.backoffs.skip_regions("flights", [skipped])
    (event,) = end(trigger())
    assert isinstance(event, TaskSkippedEvent)
    assert not event.xcoms["return_value"]["regions"][flights.hot]["due"]


def test_a_table_without_mem_wal(catalog: Catalog, tmp_path: Path) -> None:
    for number in range(3):
        lance.write_dataset(pa.table({"a": [number]}), tmp_path / "plain", mode="append")
    policy = Policy(compact_min_fragments=2)
    catalog.register("flights", uri=str(tmp_path / "plain"), policy=policy)
    (event,) = end(trigger())
    assert tasks_of(event) == {"compact", "collect"}
    # From now on its DAG has no merge.
    assert catalog.get("flights").mem_wal is False


def test_it_does_not_fail_if_the_table_cannot_be_read(
    flights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job does, with the error of the store."""

    def fail(*arguments: Any, **options: Any) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(gates, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(table_backlog, "read_status", fail)
    event, share = end(trigger(), trigger(0, shares=2))
    assert isinstance(event, TaskSuccessEvent)
    assert tasks_of(event) == EVERY_TASK
    assert isinstance(share, TaskSkippedEvent)


def test_sensors_of_regions_share_one_read_and_end_together(
    flights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    real = table_backlog.read_status

    def read_status(*arguments: Any, **options: Any) -> Any:
        reads.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(table_backlog, "read_status", read_status)
    events = end(*(trigger(number, shares=3, window=60) for number in range(3)))
    assert len(reads) == 1
    ends = dict(zip(sorted([flights.hot, flights.cold]), events, strict=False))
    assert isinstance(ends[flights.hot], TaskSuccessEvent)
    assert set(ends[flights.hot].xcoms["return_value"]["regions"]) == {flights.hot}
    # Not due; and a share without a region, of a DAG that was built for more of them.
    assert isinstance(ends[flights.cold], TaskSkippedEvent)
    assert isinstance(events[2], TaskSkippedEvent)
    # They skip no other task.
    assert not any(XCOM_SKIPMIXIN_KEY in event.xcoms for event in events)


def test_another_triggerer_can_build_an_equal_trigger() -> None:
    made = trigger(3, shares=7, force=True)
    path, arguments = made.serialize()
    assert path == start_arguments("flights", TASKS, wait=0).trigger_cls
    again = resolve_name(path)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
