from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from airflow._shared.module_loading import import_string
from memwal_airflow import triggers
from memwal_airflow.triggers import RegionBacklogTrigger

from memwal.errors import MemWalError

POKE = 0.02


def trigger(table: Any, region: str, *, seconds: float = 60, **changes: Any) -> Any:
    arguments = {
        "table_uri": table.uri,
        "region_id": region,
        "min_generations": 4,
        "max_age_seconds": 3600.0,
        "storage_options_ref": None,
        "poke_seconds": POKE,
        "window_ends_at": time.time() + seconds,
    }
    return RegionBacklogTrigger(**(arguments | changes))


async def events(found: RegionBacklogTrigger) -> list[Any]:
    return [event async for event in found.run()]


def run(found: RegionBacklogTrigger) -> tuple[str, Any]:
    """State and XComs of the one event."""
    (event,) = asyncio.run(events(found))
    return event.task_instance_state, event.xcoms


def test_all_state_survives_json(backlog: Any) -> None:
    path, arguments = trigger(backlog, backlog.hot).serialize()
    again = import_string(path)(**json.loads(json.dumps(arguments)))
    assert isinstance(again, RegionBacklogTrigger)
    assert again.serialize() == (path, arguments)
    assert path == "memwal_airflow.triggers.RegionBacklogTrigger"


def test_a_region_that_is_due_gives_one_event_after_a_pause(
    backlog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sleep, look = asyncio.sleep, triggers.region_backlog

    async def noted_sleep(seconds: float) -> None:
        order.append("sleep")
        await sleep(seconds)

    def noted_look(*arguments: Any) -> Any:
        order.append("look")
        return look(*arguments)

    monkeypatch.setattr(triggers.asyncio, "sleep", noted_sleep)
    monkeypatch.setattr(triggers, "region_backlog", noted_look)
    state, xcoms = run(trigger(backlog, backlog.hot))
    assert order == ["sleep", "look"]
    assert state == "success"
    found = xcoms.pop("return_value")
    assert (xcoms, found["region_id"], found["generations"]) == ({}, backlog.hot, 4)
    assert "4 generations wait" in found["due"]
    assert found["rows"] > 3
    assert found["bytes"] > 0
    json.dumps(found)


def test_the_end_of_the_window_skips_the_task_and_says_why(backlog: Any) -> None:
    state, xcoms = run(trigger(backlog, backlog.cold, seconds=5 * POKE))
    assert state == "skipped"
    assert xcoms == {
        "reason": f"Region {backlog.cold} is not due: 1 of 4 generations wait.",
    }


def test_a_window_that_is_over_still_gets_one_look(backlog: Any) -> None:
    assert run(trigger(backlog, backlog.hot, seconds=-100))[0] == "success"


def test_a_region_that_does_not_exist_yet_is_not_due(backlog: Any) -> None:
    region = "00000000-0000-0000-0000-000000000009"
    state, xcoms = run(trigger(backlog, region, seconds=0))
    assert state == "skipped"
    assert "0 of 4" in xcoms["reason"]


def test_it_sees_what_is_flushed_while_it_waits(backlog: Any) -> None:
    async def both() -> list[Any]:
        waiting = asyncio.ensure_future(events(trigger(backlog, backlog.cold)))
        for _ in range(3):
            await asyncio.to_thread(backlog.flush, *range(100))
        return await waiting

    (event,) = asyncio.run(both())
    assert event.xcoms["return_value"]["generations"] == 4


def test_age_counts_too(backlog: Any) -> None:
    _, xcoms = run(trigger(backlog, backlog.cold, max_age_seconds=0.0))
    assert "oldest" in xcoms["return_value"]["due"]


def test_the_event_loop_goes_on_while_storage_blocks(
    backlog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = triggers.region_backlog

    def slow_look(*arguments: Any) -> Any:
        time.sleep(0.3)
        return look(*arguments)

    monkeypatch.setattr(triggers, "region_backlog", slow_look)

    async def both() -> tuple[int, list[Any]]:
        waiting = asyncio.ensure_future(events(trigger(backlog, backlog.hot)))
        ticks = 0
        while not waiting.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks, waiting.result()

    ticks, (event,) = asyncio.run(both())
    assert event.task_instance_state == "success"
    assert ticks > 5


def test_an_error_of_the_storage_ends_the_trigger(backlog: Any) -> None:
    with pytest.raises(MemWalError):
        asyncio.run(events(trigger(backlog, backlog.hot, table_uri=backlog.uri + "-not")))
