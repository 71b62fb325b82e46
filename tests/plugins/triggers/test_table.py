import asyncio
import json
import threading
import time
from pkgutil import resolve_name
from typing import Any

import pytest
from memwal_airflow.triggers import table as triggers
from memwal_airflow.triggers.table import TableTrigger

from memwal.errors import MemWalError, StoreUnavailableError
from memwal.jobs import backlog as table_backlog

POKE = 0.02
RULE = {"merge_at_generations": 4, "merge_at_age_seconds": 3600.0}


def trigger(table: Any, *regions: str, seconds: float = 60, **changes: Any) -> TableTrigger:
    arguments = {
        "table_uri": table.uri,
        "condition": "BacklogDue",
        "region_ids": list(regions),
        "policy": RULE,
        "poke_seconds": POKE,
        "window_ends_at": time.time() + seconds,
        "soft_fail": True,
    }
    return TableTrigger(**(arguments | changes))


async def events(found: TableTrigger) -> list[Any]:
    return [event async for event in found.run()]


def run(found: TableTrigger) -> tuple[str, Any]:
    """State and XComs of the one event."""
    (event,) = asyncio.run(events(found))
    return event.task_instance_state, event.xcoms


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("BacklogDue", {"region_ids": ["a"], "policy": {"merge_at_bytes": 5}}),
        ("GenerationsMerged", {"generations": {"a": 3}, "region_ids": None, "existing": True}),
        ("IndexesCaughtUp", {"indexes": ["a"], "generations": 2}),
    ],
)
def test_all_state_survives_json(name: str, fields: Any) -> None:
    arguments = {
        "table": None,
        "table_uri": "/t",
        "storage_options_ref": "airflow:lake",
        "poke_seconds": 3.0,
        "window_ends_at": 17.5,
        "soft_fail": False,
        "condition": name,
        **fields,
    }
    path, serialized = TableTrigger(**arguments).serialize()
    assert path == "memwal_airflow.triggers.table.TableTrigger"
    assert serialized == arguments
    again = resolve_name(path)(**json.loads(json.dumps(serialized)))
    assert again.serialize() == (path, arguments)


def test_a_region_that_is_due_gives_one_event_after_a_pause(
    backlog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sleep, read = asyncio.sleep, table_backlog.read_status

    async def noted_sleep(seconds: float) -> None:
        order.append("sleep")
        await sleep(seconds)

    def noted_read(*arguments: Any, **options: Any) -> Any:
        order.append("look")
        return read(*arguments, **options)

    monkeypatch.setattr(triggers.asyncio, "sleep", noted_sleep)
    monkeypatch.setattr(table_backlog, "read_status", noted_read)
    state, xcoms = run(trigger(backlog, backlog.hot))
    assert order == ["sleep", "look"]
    assert state == "success"
    found = xcoms.pop("return_value")
    assert (xcoms, found["regions"], found["generations"]) == ({}, [backlog.hot], 4)
    assert backlog.hot in found["due"]
    json.dumps(found)


@pytest.mark.parametrize(("soft_fail", "state"), [(True, "skipped"), (False, "failed")])
def test_the_end_of_the_window_ends_the_task_and_says_why(
    backlog: Any, soft_fail: bool, state: str
) -> None:
    waiting = trigger(backlog, backlog.cold, seconds=5 * POKE, soft_fail=soft_fail)
    ended, xcoms = run(waiting)
    assert ended == state
    assert backlog.uri in xcoms["reason"]


def test_a_window_that_ends_in_vain_is_a_state_of_the_table(backlog: Any, catalog: Any) -> None:
    catalog.register("t", uri=backlog.uri)
    given = {
        "condition": "BacklogDue",
        "table": "t",
        "poke_seconds": POKE,
        "window_ends_at": time.time(),
        "region_ids": [backlog.cold],
        "policy": {"merge_at_generations": 4},
    }
    recorded = [
        (run(TableTrigger(soft_fail=soft_fail, **given))[0], catalog.backoffs.failed_jobs())
        for soft_fail in (True, False)
    ]
    assert [(state, [one.job for one in failed]) for state, failed in recorded] == [
        ("skipped", []),
        ("failed", ["sensor_timeout"]),
    ]
    assert run(TableTrigger(soft_fail=True, **{**given, "region_ids": [backlog.hot]}))[0] == (
        "success"
    )
    assert catalog.backoffs.failed_jobs() == []


def test_a_window_that_is_over_still_gets_one_look(backlog: Any) -> None:
    assert run(trigger(backlog, backlog.hot, seconds=-100))[0] == "success"


def test_it_sees_what_is_flushed_while_it_waits(backlog: Any) -> None:
    async def both() -> list[Any]:
        waiting = asyncio.ensure_future(events(trigger(backlog, backlog.cold)))
        for _ in range(3):
            await asyncio.to_thread(backlog.flush, *range(100))
        return await waiting

    (event,) = asyncio.run(both())
    assert event.xcoms["return_value"]["generations"] == 4


def test_it_sees_what_is_merged_and_indexed_while_it_waits(backlog: Any) -> None:
    given = {
        "table_uri": backlog.uri,
        "poke_seconds": POKE,
        "window_ends_at": time.time() + 60,
        "soft_fail": False,
    }

    async def both() -> tuple[list[Any], list[Any]]:
        merged = asyncio.ensure_future(
            events(
                TableTrigger(condition="GenerationsMerged", generations={backlog.hot: 4}, **given)
            )
        )
        await asyncio.sleep(5 * POKE)
        assert not merged.done()
        await asyncio.to_thread(backlog.table.merge)
        after = await merged
        caught_up = TableTrigger(condition="IndexesCaughtUp", indexes=None, **given)
        indexed = asyncio.ensure_future(events(caught_up))
        await asyncio.sleep(5 * POKE)
        assert not indexed.done()
        await asyncio.to_thread(backlog.table.build_indexes)
        return after, await indexed

    (merged,), (indexed,) = asyncio.run(both())
    assert merged.xcoms["return_value"]["generations"] == {backlog.hot: 4}
    assert indexed.xcoms["return_value"]["indexes"] == {"id_idx": 0, "v_idx": 0}


def test_the_event_loop_goes_on_while_storage_blocks(
    backlog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = table_backlog.read_status
    reading, answers = threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        reading.set()
        assert answers.wait(120)
        return read(*arguments, **options)

    monkeypatch.setattr(table_backlog, "read_status", slow)

    async def both() -> list[Any]:
        waiting = asyncio.ensure_future(events(trigger(backlog, backlog.hot)))
        while not reading.is_set():
            await asyncio.sleep(0.01)
        assert not waiting.done()
        answers.set()
        return await waiting

    (event,) = asyncio.run(both())
    assert event.task_instance_state == "success"


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_few_errors_of_the_storage_are_lived_through(
    backlog: Any, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    left = [StoreUnavailableError("away")] * failures
    read = table_backlog.read_status

    def flaky(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return read(*arguments, **options)

    monkeypatch.setattr(table_backlog, "read_status", flaky)
    waiting = trigger(backlog, backlog.hot)
    if failures < triggers.MAX_FAILURES:
        assert run(waiting)[0] == "success"
    else:
        with pytest.raises(StoreUnavailableError):
            run(waiting)


def test_a_table_that_is_not_there_ends_the_trigger(backlog: Any) -> None:
    with pytest.raises(MemWalError):
        asyncio.run(events(trigger(backlog, backlog.hot, table_uri=backlog.uri + "-not")))
