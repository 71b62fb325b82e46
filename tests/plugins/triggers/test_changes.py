"""The trigger that tells of changes for a consumer."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from airflow.exceptions import AirflowNotFoundException
from memwal_airflow.triggers import changes
from memwal_airflow.triggers.changes import TableChangedTrigger, find_changes
from support.data.tables import MakeTable, collect_now, flush, flush_and_merge, rows

import memwal
from memwal.catalog import Catalog
from memwal.errors import ConsumerExpiredError


@pytest.fixture
def table(make_table: MakeTable, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> memwal.Table:
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.01)
    made = make_table()
    catalog.register("t", uri=made.uri)
    return made


def watch(act: Callable[[int, Any], object], *, events: int) -> list[Any]:
    """Return the payloads of some events; act after each, given its number and payload."""

    async def collect() -> list[Any]:
        found = []
        stream: AsyncIterator[Any] = TableChangedTrigger(table="t", consumer="c").run()
        for number in range(events):
            event = await asyncio.wait_for(anext(stream), 60)
            found.append(event.payload)
            act(number, event.payload)
        return found

    return asyncio.run(collect())


def test_all_state_survives_json() -> None:
    path, arguments = TableChangedTrigger(table="t", consumer="c").serialize()
    again = resolve_name(path)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)


def test_each_commit_is_followed_by_an_event_if_there_are_changes(table: memwal.Table) -> None:
    consumer = table.consumer("c", start="now")
    flush(table, {1: 1, 2: 2}, [3])

    def act(number: int, payload: Any) -> None:
        feed = table.changes(payload["after"], until=payload["until"])
        assert feed.to_table().num_rows == payload["rows"]
        consumer.commit(consumer.read().token)
        flush(table, dict.fromkeys(range(number + 1), number))
        table.merge()

    found = watch(act, events=3)
    assert [payload["rows"] for payload in found] == [3, 1, 2]
    for earlier, later in itertools.pairwise(found):
        assert earlier["until"] == later["after"]


def test_what_is_not_committed_is_told_again(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "REPEAT_SECONDS", 0.05)
    table.consumer("c", start="now")
    flush(table, {1: 1})
    (first, again) = watch(lambda number, _: flush(table, {2 + number: 2}), events=2)
    assert first["after"] == again["after"]
    assert (first["rows"], again["rows"]) == (1, 2)


def test_it_goes_on_when_its_connection_is_there_again(
    table: memwal.Table, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(table, {1: 1})
    errors = []

    class Log:
        def warning(self, text: str, table: str, error: Exception) -> None:
            errors.append(type(error))
            catalog.update("t", storage_options_ref=None)

    catalog.update("t", storage_options_ref="airflow:missing")
    monkeypatch.setattr(TableChangedTrigger, "log", Log())
    (found,) = watch(lambda *_: None, events=1)
    assert found["rows"] == 1
    assert errors == [AirflowNotFoundException]


def test_a_consumer_that_was_not_opened_has_the_whole_table(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2}))
        (found,) = watch(lambda *_: None, events=1)
    assert (found["after"], found["rows"]) == (None, 2)


def test_what_it_has_nothing_to_tell_of(table: memwal.Table) -> None:
    consumer = table.consumer("c")
    flush(table, {1: 1})
    found = find_changes(table, "c")
    assert found is not None
    assert find_changes(table, "c", told=[found["after"]]) is None
    consumer.commit(found["until"])
    assert find_changes(table, "c") is None
    table.merge()
    assert find_changes(table, "c") is None
    flush(table, {2: 2})
    consumer.drop()
    assert find_changes(table, "c") is None


def test_a_consumer_that_expired_is_told_of(table: memwal.Table) -> None:
    consumer = table.consumer("c")
    consumer.commit(consumer.read().token)
    flush_and_merge(table, {1: 1})
    collect_now(table, consumer_bytes=0)

    (found,) = watch(lambda *_: None, events=1)
    assert found == {"after": consumer.token, "until": None, "rows": None, "expired": True}
    assert find_changes(table, "c", told=[found["after"]]) is None
    with pytest.raises(ConsumerExpiredError):
        table.consumer("c").read()
    table.consumer("c").reset()
    (found,) = watch(lambda *_: None, events=1)
    assert (found["after"], found["rows"], found["expired"]) == (None, 1, False)


def test_it_goes_on_when_the_table_cannot_be_read(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(table.uri)
    flush(table, {1: 1})
    folder.rename(folder.with_name("away"))
    sleeps = itertools.count()
    sleep = asyncio.sleep

    async def bring_back(seconds: float) -> None:
        if next(sleeps) == 2:
            folder.with_name("away").rename(folder)
        await sleep(seconds)

    monkeypatch.setattr(changes.asyncio, "sleep", bring_back)
    (found,) = watch(lambda *_: None, events=1)
    assert found["rows"] == 1
