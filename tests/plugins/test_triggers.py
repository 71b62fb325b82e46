from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from airflow._shared.module_loading import import_string
from airflow.triggers.base import TriggerEvent
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
    return [event.payload async for event in found.run()]


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
    (event,) = asyncio.run(events(trigger(backlog, backlog.hot)))
    assert order == ["sleep", "look"]
    assert event["region_id"] == backlog.hot
    assert "4 generations wait" in event["due"]
    assert (event["generations"], event["rows"] > 3, event["bytes"] > 0) == (4, True, True)
    json.dumps(event)


def test_the_end_of_the_window_gives_an_event_that_is_not_due(backlog: Any) -> None:
    (event,) = asyncio.run(events(trigger(backlog, backlog.cold, seconds=5 * POKE)))
    assert (event["due"], event["generations"]) == (None, 1)


def test_a_window_that_is_over_still_gets_one_look(backlog: Any) -> None:
    (event,) = asyncio.run(events(trigger(backlog, backlog.hot, seconds=-100)))
    assert event["due"]


def test_a_region_that_does_not_exist_yet_is_not_due(backlog: Any) -> None:
    region = "00000000-0000-0000-0000-000000000009"
    (event,) = asyncio.run(events(trigger(backlog, region, seconds=0)))
    assert event == {"region_id": region, "due": None, "generations": 0, "rows": 0, "bytes": 0}


def test_it_sees_what_is_flushed_while_it_waits(backlog: Any) -> None:
    async def both() -> list[Any]:
        waiting = asyncio.ensure_future(events(trigger(backlog, backlog.cold)))
        for _ in range(3):
            await asyncio.to_thread(backlog.flush, *range(100))
        return await waiting

    (event,) = asyncio.run(both())
    assert event["generations"] == 4


def test_age_counts_too(backlog: Any) -> None:
    (event,) = asyncio.run(events(trigger(backlog, backlog.cold, max_age_seconds=0.0)))
    assert "oldest" in event["due"]


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
    assert event["due"]
    assert ticks > 5


def test_an_error_of_the_storage_ends_the_trigger(backlog: Any) -> None:
    with pytest.raises(MemWalError):
        asyncio.run(events(trigger(backlog, backlog.hot, table_uri=backlog.uri + "-not")))


def test_events_are_plain(backlog: Any) -> None:
    async def first() -> TriggerEvent:
        return await anext(aiter(trigger(backlog, backlog.hot).run()))

    assert type(asyncio.run(first())) is TriggerEvent
