import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from unittest.mock import MagicMock

import pytest
from memwal_airflow.assets import watched_asset
from memwal_airflow.triggers import due as due_module
from memwal_airflow.triggers import due_tables as due_tables_module
from memwal_airflow.triggers.due import (
    EVENT_SECONDS,
    FIRST_HOLD_SECONDS,
    FIRST_REPEAT_SECONDS,
    LAST_REPEAT_SECONDS,
    UNSTARTED_SECONDS,
    Announcements,
    Announcer,
    TablesDueTrigger,
)
from memwal_airflow.triggers.due_tables import (
    START_TIME,
    DueTable,
    DueTables,
    due_reasons,
    shard_of,
)

from memwal.catalog import Catalog, Policy
from memwal.errors import StoreUnavailableError
from memwal.fleet.tables import Survey
from memwal.jobs.due import Due
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


def announced(announcements: Announcements, table: DueTable) -> bool:
    """Announce if it is time, without an active run."""
    wanted = announcements.is_wanted(table)
    if wanted:
        announcements.announce(table)
    return wanted


def event_of(
    announcer: Announcer, tables: Mapping[str, DueTable], *, active: Collection[str] = ()
) -> dict[str, Any]:
    """Return the tables of the event that follows now."""
    return announcer.announce(tables, announcer.wanted_tables(tables), active=active)


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
    assert announced(announcements, due("merge"))
    pauses = []
    since = clock.seconds
    for _ in range(8):
        while not announced(announcements, due("merge")):
            clock.seconds += 1
        pauses.append(clock.seconds - since)
        since = clock.seconds
    assert pauses[0] == FIRST_REPEAT_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_REPEAT_SECONDS


def test_a_new_trigger_does_not_know_what_the_last_one_announced(clock: Clock) -> None:
    for _ in range(2):
        assert announced(Announcements(clock=clock), due("merge"))


def test_nothing_while_a_job_runs(announcements: Announcements, clock: Clock) -> None:
    assert announced(announcements, due("merge", "gc"))
    for _ in range(100):
        clock.seconds += 10
        assert not announced(announcements, due("merge", running=True))
    clock.seconds += FIRST_REPEAT_SECONDS - 1
    # The merge of the run is done, and its collection has not begun.
    assert not announced(announcements, due("gc", succeeded={"merge": 1}))
    clock.seconds += 1
    assert announced(announcements, due("gc", succeeded={"merge": 1}))


def test_what_is_due_when_all_that_was_announced_is_done_is_announced_at_once(
    announcements: Announcements, clock: Clock
) -> None:
    jobs = ("merge", "snapshot", "gc", "index")
    for number, job in enumerate(jobs):
        assert announced(announcements, due(job, succeeded=dict.fromkeys(jobs[:number], 1)))
        assert not announced(announcements, due(job, succeeded=dict.fromkeys(jobs[:number], 1)))
        clock.seconds += 1


def test_a_job_that_succeeded_and_is_due_again_is_announced_at_once(
    announcements: Announcements, clock: Clock
) -> None:
    assert announced(announcements, due("merge", succeeded={"merge": 1}))
    assert not announced(announcements, due("merge", succeeded={"merge": 1}))
    assert announced(announcements, due("merge", succeeded={"merge": 2}))


def test_a_merge_that_the_last_run_may_have_passed_over_is_announced_at_once(
    announcements: Announcements, clock: Clock
) -> None:
    assert announced(announcements, due("snapshot", "gc"))
    clock.seconds += 1
    assert not announced(announcements, due("gc", "index", succeeded={"snapshot": 1}))
    assert announced(announcements, due("gc", "merge", succeeded={"snapshot": 1}))
    assert not announced(announcements, due("gc", "merge", succeeded={"snapshot": 1}))


def test_a_job_that_fails_starts_fewer_and_fewer_runs(
    announcements: Announcements, clock: Clock
) -> None:
    count = 0
    for second in range(3_600):
        clock.seconds += 1
        # It runs for three seconds of each minute, and never succeeds.
        count += announced(announcements, due("merge", running=second % 60 < 3))
    assert count <= 12


def test_nothing_before_the_run_that_a_new_trigger_finds_has_done_its_job(
    announcements: Announcements, clock: Clock
) -> None:
    assert not announced(announcements, due("merge", running=True))
    assert announced(announcements, due("index"))


def test_what_is_due_behind_an_active_run_waits_no_longer_than_the_run_lasts(clock: Clock) -> None:
    for length in (1, 10, 100, 10_000):
        announcements = Announcements(clock=clock)
        announcements.announce(due("gc"))
        began, asked = clock.seconds, 0
        while clock.seconds < began + length:
            if announcements.is_wanted(due("gc", "merge")):
                asked += 1
                announcements.hold(due("gc", "merge"))
            clock.seconds += 1
        assert asked <= 30
        while not announced(announcements, due("gc", "merge")):
            clock.seconds += 1
        assert clock.seconds - began <= length + LAST_REPEAT_SECONDS
        assert clock.seconds - began <= 2 * length + FIRST_HOLD_SECONDS
        # A job of the run has ended: it may be over soon.
        announcements.hold(due("merge"))
        assert not announcements.is_wanted(due("merge"))
        assert announcements.is_wanted(due("merge", succeeded={"merge": 1}))


# -- what one event names


def test_an_event_names_what_is_due_and_the_next_one_what_came_since(clock: Clock) -> None:
    announcer = Announcer(clock=clock)
    flights, ships = due("merge", succeeded={"merge": 7}), due("gc")
    assert event_of(announcer, {"flights": flights}) == {
        "flights": {"jobs": {"merge": "a limit"}, "succeeded": {"merge": 7}}
    }
    both = {"flights": flights, "ships": ships}
    clock.seconds += EVENT_SECONDS - 1
    assert event_of(announcer, both) == {}
    clock.seconds += 1
    assert set(event_of(announcer, both)) == {"ships"}
    assert event_of(announcer, {}) == {}


def test_an_event_that_was_lost_is_sent_again(clock: Clock) -> None:
    announcer = Announcer(clock=clock)
    times = []
    for _ in range(100):
        if event_of(announcer, {"flights": due("merge")}):
            times.append(clock.seconds)
        clock.seconds += 1
    assert times == [100, 100 + FIRST_REPEAT_SECONDS, 100 + 3 * FIRST_REPEAT_SECONDS]


def test_tables_with_an_active_run_are_left_out_until_it_ends(clock: Clock) -> None:
    announcer = Announcer(clock=clock)
    both = {"flights": due("merge"), "ships": due("merge")}
    assert announcer.announced_before(announcer.wanted_tables(both)) == []
    assert set(event_of(announcer, both)) == {"flights", "ships"}
    clock.seconds += FIRST_REPEAT_SECONDS
    assert announcer.announced_before(announcer.wanted_tables(both)) == ["flights", "ships"]
    assert set(event_of(announcer, both, active={"ships"})) == {"flights"}
    clock.seconds += EVENT_SECONDS
    assert set(event_of(announcer, both)) == {"ships"}


def test_tables_that_are_gone_are_forgotten(clock: Clock) -> None:
    announcer = Announcer(clock=clock)
    for number in range(100):
        assert event_of(announcer, {f"t{number}": due("merge")})
        clock.seconds += LAST_REPEAT_SECONDS / 4
    assert len(announcer._tables) <= 5


def test_an_event_has_a_size_and_the_next_one_the_rest(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_module, "MAX_TABLES", 2)
    announcer = Announcer(clock=clock)
    tables = {name: due("merge") for name in "abcde"}
    named = []
    for _ in range(4):
        named.append(sorted(event_of(announcer, tables)))
        clock.seconds += EVENT_SECONDS
    assert named == [["a", "b"], ["c", "d"], ["e"], []]


def test_a_table_that_is_announced_in_vain_is_unstarted(clock: Clock) -> None:
    announcer = Announcer(clock=clock)

    def follow(due_tables: Mapping[str, DueTable], *, seconds: float) -> set[str]:
        for _ in range(int(seconds)):
            event_of(announcer, due_tables)
            clock.seconds += 1
        return announcer.unstarted_tables()

    both = {"flights": due("merge"), "ships": due("merge")}
    assert follow(both, seconds=UNSTARTED_SECONDS - 1) == set()
    assert follow(both, seconds=2) == {"flights", "ships"}
    both["flights"] = due("merge", running=True)
    assert follow(both, seconds=2) == {"ships"}
    both["ships"] = due("merge", succeeded={"merge": 1})
    assert follow(both, seconds=2) == set()
    assert follow({}, seconds=2 * UNSTARTED_SECONDS) == set()


# -- the trigger


def test_the_arguments_of_a_trigger_name_no_table() -> None:
    (watcher,) = watched_asset(1, shards=3).watchers
    assert watcher.trigger.serialize() == (
        "memwal_airflow.triggers.due.TablesDueTrigger",
        {"shard": 1, "shards": 3, "drained": False},
    )
    assert len({watched_asset(shard, shards=3).uri for shard in range(3)}) == 3


def first_event(*, shard: int = 0, shards: int = 1) -> Any:
    async def read() -> Any:
        events = TablesDueTrigger(shard=shard, shards=shards).run()
        try:
            return (await asyncio.wait_for(anext(events), 120)).payload
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    return asyncio.run(read())


def test_one_event_names_all_tables_that_are_due(
    backlog: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(5)]
    for name in names:
        catalog.register(name, uri=backlog.uri, policy=EAGER)
    polled = due_tables_module.DueTables.poll

    async def all_at_once(tables: DueTables) -> Mapping[str, DueTable]:
        found = await polled(tables)
        return found if len(found) == len(names) else {}

    monkeypatch.setattr(due_tables_module.DueTables, "poll", all_at_once)
    monkeypatch.setattr(due_module, "POLL_SECONDS", 0.01)
    told = first_event()["tables"]
    assert set(told) == set(names)
    assert "merge" in told["t0"]["jobs"]


@pytest.mark.parametrize("drained", [False, True])
def test_the_trigger_asks_for_active_runs_before_it_repeats(
    backlog: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, drained: bool
) -> None:
    """Not if one DAG runs the jobs of all tables, which have no runs of their own."""
    catalog.register("flights", uri=backlog.uri, policy=EAGER)
    monkeypatch.setattr(due_module, "POLL_SECONDS", 0.01)
    for name in ("EVENT_SECONDS", "FIRST_REPEAT_SECONDS", "FIRST_HOLD_SECONDS"):
        monkeypatch.setattr(due_module, name, 0.0)
    # Once for the API; then active twice; then Airflow does not answer.
    answers: list[set[str]] = [set(), {"flights"}, {"flights"}]
    asked: list[list[str]] = []

    def active_runs(tables: Collection[str]) -> set[str]:
        asked.append(list(tables))
        return answers.pop(0)

    monkeypatch.setattr(due_module, "active_runs", active_runs)

    async def read() -> None:
        events = TablesDueTrigger(drained=drained).run()
        for _ in range(2):
            event = await asyncio.wait_for(anext(events), 120)
            assert set(event.payload["tables"]) == {"flights"}
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(read())
    assert asked == ([] if drained else [[""], *[["flights"]] * 3])


def test_the_trigger_goes_on_while_the_catalog_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, backlog: Any
) -> None:
    """An exception would cost its memory of what it announced."""
    url = f"sqlite:///{tmp_path / 'catalog.db'}"
    monkeypatch.setenv("MEMWAL_CATALOG_URL", url)
    monkeypatch.setattr(due_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(due_tables_module, "REFRESH_SECONDS", 0.0)

    async def follow() -> None:
        events = TablesDueTrigger().run()
        coming = asyncio.ensure_future(anext(events))
        done, _ = await asyncio.wait([coming], timeout=0.5)
        assert not done
        with contextlib.closing(Catalog(url)) as catalog:
            catalog.migrate()
            catalog.register("flights", uri=backlog.uri, policy=EAGER)
        event = await asyncio.wait_for(coming, 120)
        assert set(event.payload["tables"]) == {"flights"}
        await events.aclose()  # type: ignore[attr-defined]

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


def test_a_job_that_succeeded_after_the_look_is_not_announced(
    backlog: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run and what it did are in the catalog and the table, and not in the survey."""
    catalog.register("flights", uri=backlog.uri, policy=EAGER)
    served(catalog, backlog, "gc")
    find_jobs, find_due = due_tables_module.due_reasons, due_tables_module.due_table
    seen: list[DueTable | None] = []

    def serve_first(*arguments: Any, **options: Any) -> dict[str, str]:
        if not seen:
            served(catalog, backlog, "merge")
        return find_jobs(*arguments, **options)

    def see(*arguments: Any, **options: Any) -> DueTable | None:
        seen.append(find_due(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(due_tables_module, "due_reasons", serve_first)
    monkeypatch.setattr(due_tables_module, "due_table", see)
    # A slow look lets the next one read the runs before the merge is recorded.
    monkeypatch.setattr("memwal.fleet.polls.WORK_SECONDS", 0.0)

    async def work(polls: Polls) -> None:
        # The merge that is recorded here left the backlog: it is due by the next look.
        await polls.until(lambda found: "flights" in found and "merge" in found["flights"].jobs)

    run(catalog, work)
    assert seen[0] is None or "merge" not in seen[0].jobs


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


@pytest.mark.parametrize(("critical", "expected"), [(False, {"gc"}), (True, {"gc", "merge"})])
def test_what_quiet_hours_hold_back_in_a_moment_is_left_out(
    critical: bool, expected: set[str]
) -> None:
    before = datetime(2026, 3, 2, 8, tzinfo=UTC) - START_TIME / 2
    table = MagicMock(policy=Policy(quiet_hours=("08:00-18:00 UTC",)))
    jobs = {
        "merge": Due(reason="a limit", critical=critical),
        "gc": Due(reason="a limit", critical=True),
        "index": Due(),
    }
    survey = Survey(table=table, status=MagicMock(), due=jobs, skipped_regions=(), last_runs={})
    failures = MagicMock()
    failures.is_backing_off.return_value = False
    assert set(due_reasons(failures, survey, now=before)) == expected
    assert set(due_reasons(failures, survey, now=before - START_TIME)) == {"gc", "merge"}


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


def test_each_table_is_looked_at_in_one_shard(backlog: Any, catalog: Catalog) -> None:
    names = {f"t{number}" for number in range(12)}
    for name in names:
        catalog.register(name, uri=backlog.uri, policy=EAGER, storage_options_ref="airflow:lake")
    looked_at = []
    for shard in range(2):
        expected = {name for name in names if shard_of(name, 2) == shard}

        async def polled(polls: Polls, expected: set[str] = expected) -> set[str]:
            return set(await polls.until(lambda found: expected <= set(found)))

        looked_at.append(run(catalog, polled, read_options=no_options, shard=shard, shards=2))
    assert looked_at[0] | looked_at[1] == names
    assert not looked_at[0] & looked_at[1]
    assert all(looked_at)


async def no_options(_: str | None) -> dict[str, str]:
    return {}


def test_tables_that_no_run_starts_are_recorded_until_one_does(
    backlog: Any, catalog: Catalog
) -> None:
    for name in ("flights", "ships"):
        catalog.register(name, uri=backlog.uri, policy=EAGER)

    def recorded() -> list[tuple[str, str, int]]:
        return [(f.table, f.job, f.attempts) for f in catalog.backoffs.failed_jobs()]

    async def follow(polls: Polls) -> None:
        await polls.until(lambda found: set(found) == {"flights", "ships"})
        for _ in range(3):
            await polls.tables.record_unstarted({"flights", "ships"})
        assert recorded() == [("flights", "not_started", 1), ("ships", "not_started", 1)]
        await polls.tables.record_unstarted({"ships"})
        assert recorded() == [("ships", "not_started", 1)]

    async def follow_anew(polls: Polls) -> None:
        """As the trigger of another triggerer."""
        await polls.until(lambda found: set(found) == {"flights", "ships"})
        await polls.tables.record_unstarted(set())
        assert recorded() == []

    run(catalog, follow)
    run(catalog, follow_anew)
