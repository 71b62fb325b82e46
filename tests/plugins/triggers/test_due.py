from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from memwal_airflow.assets import due_asset
from memwal_airflow.triggers import due_tables as due_tables_module
from memwal_airflow.triggers.due import (
    FIRST_REPEAT_SECONDS,
    LAST_REPEAT_SECONDS,
    Announcements,
    TableDueTrigger,
)
from memwal_airflow.triggers.due_tables import DueTable, DueTables

from memwal.catalog import Catalog, Policy
from memwal.errors import StoreUnavailableError
from memwal.jobs.job import JobResult

EAGER = Policy(
    poll_seconds=1,
    merge_at_generations=4,
    merge_at_age_seconds=1e9,
    gc_interval_seconds=1e9,
    snapshot_at_age_seconds=1e9,
)


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


# -- when to announce


def due(*jobs: str, succeeded: Mapping[str, int] | None = None, running: bool = False) -> DueTable:
    return DueTable(
        jobs=dict.fromkeys(jobs, "a limit"), succeeded=succeeded or {}, is_served=running
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def announcements(clock: Clock) -> Announcements:
    return Announcements(clock=clock)


def test_the_first_is_immediate_and_repeated_until_it_is_served(
    announcements: Announcements, clock: Clock
) -> None:
    assert announcements.is_wanted(due("merge"))
    pauses = []
    since = clock.seconds
    for _ in range(8):
        while not announcements.is_wanted(due("merge")):
            clock.seconds += 1
        pauses.append(clock.seconds - since)
        since = clock.seconds
    assert pauses[0] == FIRST_REPEAT_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_REPEAT_SECONDS


def test_a_new_trigger_does_not_know_what_the_last_one_announced(clock: Clock) -> None:
    for _ in range(2):
        assert Announcements(clock=clock).is_wanted(due("merge"))


def test_nothing_while_a_job_runs_and_time_for_the_next_job_of_the_run(
    announcements: Announcements, clock: Clock
) -> None:
    assert announcements.is_wanted(due("merge"))
    for _ in range(100):
        clock.seconds += 10
        assert not announcements.is_wanted(due("merge", running=True))
    clock.seconds += FIRST_REPEAT_SECONDS - 1
    # The merge of the run is done, and the build of its indexes has not begun.
    assert not announcements.is_wanted(due("index", succeeded={"merge": 1}))
    clock.seconds += 1
    assert announcements.is_wanted(due("index", succeeded={"merge": 1}))


def test_a_job_that_succeeded_and_is_due_again_is_announced_at_once(
    announcements: Announcements, clock: Clock
) -> None:
    assert announcements.is_wanted(due("merge", succeeded={"merge": 1}))
    assert not announcements.is_wanted(due("merge", succeeded={"merge": 1}))
    assert announcements.is_wanted(due("merge", succeeded={"merge": 2}))


def test_a_merge_that_the_last_run_may_have_passed_over_is_announced_at_once(
    announcements: Announcements, clock: Clock
) -> None:
    assert announcements.is_wanted(due("snapshot", "gc"))
    clock.seconds += 1
    assert not announcements.is_wanted(due("gc", "index", succeeded={"snapshot": 1}))
    assert announcements.is_wanted(due("gc", "merge", succeeded={"snapshot": 1}))
    assert not announcements.is_wanted(due("gc", "merge", succeeded={"snapshot": 1}))


def test_a_job_that_fails_starts_fewer_and_fewer_runs(
    announcements: Announcements, clock: Clock
) -> None:
    announced = 0
    for second in range(3_600):
        clock.seconds += 1
        # It runs for three seconds of each minute, and never succeeds.
        announced += announcements.is_wanted(due("merge", running=second % 60 < 3))
    assert announced <= 12


# -- the trigger


async def stream(*items: Mapping[str, DueTable]) -> AsyncIterator[Mapping[str, DueTable]]:
    for item in items:
        yield item


def events(table: str, *items: Mapping[str, DueTable]) -> list[Any]:
    async def collect() -> list[Any]:
        trigger = TableDueTrigger(table=table)
        return [event.payload async for event in trigger.filter_shared_stream(stream(*items))]

    return asyncio.run(collect())


def test_a_trigger_announces_its_own_table() -> None:
    both = {"flights": due("merge"), "ships": due("gc")}
    assert events("flights", both, both) == [{"jobs": {"merge": "a limit"}}]
    assert events("trains", both) == []


def test_all_tables_share_one_stream_and_arguments_never_change() -> None:
    triggers = [TableDueTrigger(table=name) for name in ("a", "b")]
    assert len({trigger.shared_stream_key() for trigger in triggers}) == 1
    path, arguments = triggers[0].serialize()
    assert arguments == {"table": "a"}
    assert path == "memwal_airflow.triggers.due.TableDueTrigger"
    (watcher,) = due_asset("a").watchers
    assert watcher.trigger.serialize() == (path, arguments)


def test_the_stream_goes_on_when_nothing_can_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """An exception would end the triggers of all tables at once."""
    monkeypatch.setenv("MEMWAL_CATALOG_URL", f"sqlite:///{tmp_path / 'none' / 'catalog.db'}")
    monkeypatch.setattr("memwal_airflow.triggers.due.POLL_SECONDS", 0.01)
    monkeypatch.setattr(due_tables_module, "REFRESH_SECONDS", 0.0)

    async def follow() -> None:
        shared = TableDueTrigger.open_shared_stream({"table": "a"})
        assert inspect.isasyncgen(shared)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(anext(shared), 1)

    asyncio.run(follow())


# -- the tables


class Polls:
    """Polls until a condition holds, in one event loop."""

    def __init__(self, tables: DueTables) -> None:
        self.tables = tables

    async def until(self, holds: Callable[[Mapping[str, DueTable]], bool]) -> Any:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = await self.tables.poll()
            if holds(found):
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"last poll: {found}")


def run(catalog: Catalog, work: Callable[[Polls], Any], **options: Any) -> Any:
    async def go() -> Any:
        tables = DueTables(catalog=catalog, **options)
        try:
            return await work(Polls(tables))
        finally:
            tables.close()

    return asyncio.run(go())


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_tables_module, "REFRESH_SECONDS", 0.05)


def served(catalog: Catalog, backlog: Any, *jobs: str) -> None:
    for job in jobs:
        with catalog.record_run("flights", job) as done:
            done.finish(JobResult(job=job, table=backlog.uri, version=1))


def test_what_is_due_is_told_until_it_is_served(backlog: Any, catalog: Catalog) -> None:
    catalog.register("flights", uri=backlog.uri, policy=EAGER)
    backlog.table.build_snapshot()
    served(catalog, backlog, "gc", "quality")

    async def work(polls: Polls) -> None:
        found = await polls.until(lambda found: "flights" in found)
        assert set(found["flights"].jobs) == {"merge"}
        assert not found["flights"].is_served
        backlog.table.merge()
        backlog.table.build_indexes()
        backlog.table.build_snapshot()
        await polls.until(lambda found: not found)

    run(catalog, work)
    (sample,) = catalog.latest_samples()
    assert sample.table == "flights"
    assert catalog.get("flights").regions == 2


def test_a_running_job_and_the_last_success_are_told(backlog: Any, catalog: Catalog) -> None:
    catalog.register("flights", uri=backlog.uri, policy=EAGER)
    served(catalog, backlog, "gc")

    async def work(polls: Polls) -> None:
        with catalog.record_run("flights", "merge") as merge:
            found = await polls.until(lambda found: "flights" in found)
            merge.finish(JobResult(job="merge", table=backlog.uri, version=1))
        assert found["flights"].is_served
        assert set(found["flights"].succeeded) == {"gc"}

    run(catalog, work)


def test_a_job_between_two_tries_is_served(backlog: Any, catalog: Catalog) -> None:
    """A run that started then would wait behind the tries, and begin three more."""
    catalog.register("flights", uri=backlog.uri, policy=EAGER)
    served(catalog, backlog, "gc", "quality", "snapshot")
    with pytest.raises(StoreUnavailableError), catalog.record_run("flights", "merge"):
        raise StoreUnavailableError("the server does not answer")

    async def is_served(polls: Polls) -> bool:
        found = await polls.until(lambda found: "flights" in found)
        return bool(found["flights"].is_served)

    assert run(catalog, is_served)


def test_a_job_whose_tries_ended_without_a_record_is_not_served_for_long(
    backlog: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing records a failure if the machine of the task is gone."""
    monkeypatch.setattr(due_tables_module, "RETRY_SECONDS", 1.5)
    catalog.register("flights", uri=backlog.uri, policy=EAGER)
    served(catalog, backlog, "gc", "quality", "snapshot")
    with pytest.raises(StoreUnavailableError), catalog.record_run("flights", "merge"):
        raise StoreUnavailableError("the server does not answer")

    def is_free(found: Mapping[str, DueTable]) -> bool:
        return "flights" in found and not found["flights"].is_served

    run(catalog, lambda polls: polls.until(is_free))


def test_a_job_that_waits_for_its_next_try_is_not_due(backlog: Any, catalog: Catalog) -> None:
    catalog.register("flights", uri=backlog.uri, policy=EAGER)
    catalog.backoffs.record_failure("flights", "merge", "no space")
    served(catalog, backlog, "snapshot")

    async def work(polls: Polls) -> None:
        found = await polls.until(lambda found: "flights" in found)
        assert "merge" not in found["flights"].jobs

    run(catalog, work)


def test_options_of_a_reference_are_read_once_for_all_its_tables(
    backlog: Any, catalog: Catalog, tmp_path: Any
) -> None:
    for name in ("a", "b", "c"):
        catalog.register(name, uri=backlog.uri, policy=EAGER, storage_options_ref="airflow:lake")
    read: list[str | None] = []

    async def options(ref: str | None) -> dict[str, str]:
        read.append(ref)
        return {}

    run(
        catalog,
        lambda polls: polls.until(lambda found: set(found) == {"a", "b", "c"}),
        read_options=options,
    )
    assert set(read) == {"airflow:lake"}
    assert len(read) <= 3
