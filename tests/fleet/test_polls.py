import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event
from support.data import statuses
from support.data.policies import IDLE
from support.data.tables import numbered

import memwal
from memwal.catalog import Catalog, Policy
from memwal.catalog.backoff import Backoffs
from memwal.catalog.records import STATUS_JOB, ManagedTable
from memwal.errors import StoreUnavailableError
from memwal.fleet import polls as polls_module
from memwal.fleet.polls import FailureTracker, Outcome, ReadLimits, TablePolls
from memwal.fleet.tables import Survey
from memwal.fleet.watch import TableWatch
from memwal.jobs.job import JobResult
from memwal.jobs.policy import SEEN_SECONDS

Managed = Callable[..., memwal.Table]


class Loop:
    """Turns of the loop, in each of which the time of every table has come."""

    def __init__(self, polls: TablePolls) -> None:
        self.polls = polls
        self.results: list[Survey | Outcome] = []

    async def turn(self) -> None:
        for name in self.polls.tables:
            self.polls.restart(name)
        await self.polls.turn()
        await asyncio.sleep(0.01)
        self.results += self.polls.finished_results()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not holds():
                await self.turn()

    def surveys(self, name: str) -> list[Survey]:
        return [r for r in self.results if isinstance(r, Survey) and r.table.name == name]

    def failures(self) -> list[Outcome]:
        return [result for result in self.results if isinstance(result, Outcome)]


def run(
    catalog: Catalog,
    work: Callable[[Loop], Coroutine[Any, Any, None]],
    *,
    select: Callable[[ManagedTable], bool] = lambda table: True,
    limits: ReadLimits | None = None,
    refresh_seconds: float = 0,
) -> Loop:
    async def options(table: ManagedTable) -> None:
        return None

    async def go() -> Loop:
        polls = TablePolls(
            catalog,
            storage_options=options,
            select=select,
            refresh_seconds=refresh_seconds,
            limits=limits,
        )
        loop = Loop(polls)
        try:
            await work(loop)
        finally:
            polls.close()
        return loop

    return asyncio.run(go())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tables that were read one by one."""
    names: list[str] = []
    real = TableWatch.poll

    def noted(watch: TableWatch, catalog: Catalog, table: ManagedTable, **options: Any) -> Any:
        names.append(table.name)
        return real(watch, catalog, table, **options)

    monkeypatch.setattr(TableWatch, "poll", noted)
    return names


def test_a_slow_table_delays_no_other(
    catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed("slow", policy=IDLE)
    managed("flights", policy=IDLE)
    answers = threading.Event()
    real = TableWatch.poll

    def poll(watch: TableWatch, catalog: Catalog, table: ManagedTable, **options: Any) -> Any:
        if table.name == "slow":
            answers.wait(120)
        return real(watch, catalog, table, **options)

    monkeypatch.setattr(TableWatch, "poll", poll)

    async def work(loop: Loop) -> None:
        await loop.until(lambda: len(loop.surveys("flights")) > 1)
        assert not loop.surveys("slow")
        answers.set()
        await loop.until(lambda: bool(loop.surveys("slow")))

    assert not run(catalog, work).failures()


@pytest.mark.parametrize(("refresh_seconds", "tables"), [(0, 2), (3600, 1)])
def test_the_catalog_is_read_again_after_its_seconds(
    catalog: Catalog, managed: Managed, refresh_seconds: float, tables: int
) -> None:
    managed("flights", policy=IDLE)

    async def work(loop: Loop) -> None:
        await loop.turn()
        managed("late", policy=IDLE)
        await loop.turn()

    assert len(run(catalog, work, refresh_seconds=refresh_seconds).polls.tables) == tables


def test_a_table_that_does_not_answer_is_recorded_as_failing(
    catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed("slow", policy=IDLE)
    ended = threading.Event()
    monkeypatch.setattr(TableWatch, "poll", lambda *_, **__: ended.wait(120))

    async def work(loop: Loop) -> None:
        await loop.until(lambda: bool(loop.failures()))
        ended.set()

    run(catalog, work, limits=ReadLimits(timeout=0.01))
    (failed,) = catalog.backoffs.failed_jobs()
    assert (failed.table, failed.job) == ("slow", "status")
    assert StoreUnavailableError.__name__ in failed.reason


def test_a_table_that_does_not_answer_has_one_thread(
    catalog: Catalog,
    managed: Managed,
    monkeypatch: pytest.MonkeyPatch,
    try_now: Callable[[], None],
) -> None:
    managed("slow", policy=IDLE)
    answers = threading.Event()
    real = TableWatch.poll
    reads = 0

    def poll(watch: TableWatch, *arguments: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        answers.wait(120)
        return real(watch, *arguments, **options)

    monkeypatch.setattr(TableWatch, "poll", poll)

    async def work(loop: Loop) -> None:
        await loop.until(lambda: bool(loop.failures()))
        for _ in range(5):
            try_now()
            await loop.turn()
        assert reads == 1
        answers.set()
        try_now()
        await loop.until(lambda: reads > 1)

    run(catalog, work, limits=ReadLimits(timeout=0.01))


def test_a_read_that_exceeds_its_limit_makes_room_for_the_next() -> None:
    async def work() -> None:
        limits = ReadLimits(max_reads=1, timeout=0.01)
        with pytest.raises(StoreUnavailableError, match="slow"):
            async with limits.reading("slow"):
                await asyncio.sleep(3600)
        async with limits.reading("next"):
            pass

    asyncio.run(work())


def test_not_more_reads_at_once_than_allowed() -> None:
    at_once = most = 0

    async def work() -> None:
        limits = ReadLimits(max_reads=2)

        async def read() -> None:
            nonlocal at_once, most
            async with limits.reading("a"):
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0)
                at_once -= 1

        await asyncio.gather(*(read() for _ in range(10)))

    asyncio.run(work())
    assert most == 2


def test_a_reload_does_not_drop_a_failure_that_is_recorded_beside_it(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = FailureTracker(catalog)
    record = threading.Thread(
        target=tracker.record, args=("flights", "merge", "", StoreUnavailableError("no answer"))
    )
    real = Backoffs.failed_jobs

    def failed_jobs(backoffs: Backoffs) -> Any:
        failed = real(backoffs)
        record.start()
        record.join(0.5)  # Without a lock it ends here, with one it waits for the reload.
        return failed

    monkeypatch.setattr(Backoffs, "failed_jobs", failed_jobs)
    tracker.read()
    record.join()
    assert tracker.is_backing_off("flights", "merge")


def test_a_table_that_cannot_be_read_waits_for_its_next_try_and_the_others_go_on(
    catalog: Catalog, managed: Managed, tmp_path: Path, try_now: Callable[[], None]
) -> None:
    catalog.register("broken", uri=str(tmp_path / "broken.lance"), policy=IDLE)
    aside = Path(managed("flights", policy=IDLE).uri)

    async def work(loop: Loop) -> None:
        await loop.until(lambda: bool(loop.failures()) and len(loop.surveys("flights")) > 3)
        (failed,) = loop.failures()
        assert (failed.table, failed.job, failed.failed) == ("broken", "status", True)
        assert [one.table for one in catalog.backoffs.failed_jobs()] == ["broken"]
        (tmp_path / "broken.lance").symlink_to(aside)
        try_now()
        await loop.until(lambda: bool(loop.surveys("broken")))

    run(catalog, work)
    assert catalog.backoffs.failed_jobs() == []


def test_unchanged_local_tables_share_one_check(
    catalog: Catalog, managed: Managed, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.fleet.watch.STAMP_SETTLES_NS", 0)
    table = managed("flights", policy=IDLE)

    async def work(loop: Loop) -> None:
        await _rest(loop, read, table, catalog)
        table.upsert(numbered(0, 1, n=9))
        before = len(read)
        await loop.until(lambda: len(read) > before)

    run(catalog, work)


async def _rest(loop: Loop, read: list[str], table: memwal.Table, catalog: Catalog) -> None:
    """Make nothing due, and turn until the quick check of a table is enough."""
    for job in (table.build_snapshot, table.collect_garbage):
        result = job()
        with catalog.record_run("flights", result.job) as done:
            done.finish(result)
    await loop.until(lambda: bool(loop.surveys("flights")))
    before = -1
    while len(read) != before:
        before = len(read)
        for _ in range(10):
            await loop.turn()


def test_a_quick_check_that_fails_reads_that_table_alone(
    catalog: Catalog, managed: Managed, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.fleet.watch.STAMP_SETTLES_NS", 0)
    table = managed("flights", policy=IDLE)

    async def work(loop: Loop) -> None:
        await _rest(loop, read, table, catalog)
        before = len(read)

        def fail(*arguments: object) -> bool:
            raise StoreUnavailableError("away")

        monkeypatch.setattr(TableWatch, "is_idle", fail)
        await loop.until(lambda: len(read) > before)

    assert not run(catalog, work).failures()


def test_a_file_system_that_hangs_delays_no_table(
    catalog: Catalog, managed: Managed, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.fleet.watch.STAMP_SETTLES_NS", 0)
    monkeypatch.setattr(polls_module, "QUICK_CHECK_SECONDS", 0.01)
    table = managed("flights", policy=IDLE)
    ended = threading.Event()

    async def work(loop: Loop) -> None:
        await loop.until(lambda: bool(loop.surveys("flights")))
        monkeypatch.setattr(TableWatch, "is_idle", lambda *_: ended.wait(120))
        before = len(read)
        await loop.until(lambda: len(read) > before + 2)
        ended.set()

    run(catalog, work)
    assert table.status().backlog_generations > 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the clock of the loop, which stands still until ``now`` is set."""
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(polls_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


async def _live(polls: TablePolls, clock: SimpleNamespace, seconds: int) -> list[Survey | Outcome]:
    """Make a turn each second, as the trigger does; return what the polls found."""
    found: list[Survey | Outcome] = []
    for _ in range(seconds):
        clock.now += 1
        await polls.turn()
        while polls.running:
            await asyncio.sleep(0.001)
        results = polls.finished_results()
        found += results
        surveys = [result for result in results if isinstance(result, Survey)]
        await polls.work.read([s.table.name for s in surveys if s.due["merge"].reason is not None])
    return found


@pytest.mark.parametrize("policy", [IDLE, replace(IDLE, merge_at_generations=1)])
def test_statements_do_not_grow_with_the_tables_that_wait(
    catalog: Catalog,
    managed: Managed,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
) -> None:
    monkeypatch.setattr("memwal.fleet.watch.STAMP_SETTLES_NS", 0)
    table = managed("t0", policy=policy, buckets=1)
    table.build_snapshot()
    uri = table.uri
    for number in range(1, 8):
        catalog.register(f"t{number}", uri=uri, policy=policy)
    for number in range(8):
        for job in ("gc", "snapshot"):
            with catalog.record_run(f"t{number}", job) as run_of:
                run_of.finish(JobResult(job=job, table=uri, version=1))
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    async def work(loop: Loop) -> None:
        polls = loop.polls
        await _live(polls, clock, 15)
        event.listen(catalog.database.engine, "before_cursor_execute", note)
        found = await _live(polls, clock, 60)
        event.remove(catalog.database.engine, "before_cursor_execute", note)
        due = [result for result in found if isinstance(result, Survey)]
        # An idle local table is not read; one that stays due is, every ten seconds.
        assert (policy is IDLE) == (not due)

    run(catalog, work, refresh_seconds=5)
    # Two a second at most, for any number of tables: the pauses between polls are drawn.
    assert len(statements) <= 120, statements


def test_the_catalog_knows_that_an_idle_table_is_looked_at(
    catalog: Catalog, managed: Managed, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.fleet.watch.STAMP_SETTLES_NS", 0)
    managed("flights", policy=IDLE)
    catalog.register("lost", uri="/nowhere", policy=IDLE)

    async def work(loop: Loop) -> None:
        await _live(loop.polls, clock, 60)
        (before,) = catalog.latest_samples()
        clock.now += SEEN_SECONDS
        await _live(loop.polls, clock, 60)
        (after,) = catalog.latest_samples()
        assert after.at == before.at
        assert after.known_at > before.known_at

    run(catalog, work)


def test_what_was_due_is_polled_first_after_a_start(
    catalog: Catalog, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a-idle", "b-new", "c-due", "d-due-first"):
        catalog.register(name, uri="/nowhere", policy=IDLE)
        if name != "b-new":
            catalog.record_backlog(name, statuses.status(statuses.region(1)))
    for name in ("d-due-first", "c-due"):
        catalog.reports.record_due(name, {"merge": "old"})
    polled: list[str] = []

    def poll(watch: TableWatch, catalog: Catalog, table: ManagedTable, **options: Any) -> Any:
        polled.append(table.name)
        raise StoreUnavailableError("no")

    monkeypatch.setattr(TableWatch, "poll", poll)

    async def work(loop: Loop) -> None:
        await _live(loop.polls, clock, 1)
        assert polled == ["d-due-first", "c-due", "b-new"]
        clock.now += IDLE.idle_poll_seconds
        await _live(loop.polls, clock, 1)
        assert polled[-1] == "a-idle"

    run(catalog, work, limits=ReadLimits(max_reads=1))


def test_a_job_that_ended_is_seen_at_once(
    catalog: Catalog, managed: Managed, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.fleet.watch.STAMP_SETTLES_NS", 0)
    table = managed("flights", policy=replace(IDLE, gc_interval_seconds=3_600))
    table.build_snapshot()

    async def work(loop: Loop) -> None:
        polls = loop.polls
        await _live(polls, clock, 15)
        with catalog.record_run("flights", "gc") as run_of:
            run_of.finish(table.collect_garbage())
        polls.restart("flights")
        (survey,) = await _live(polls, clock, 1)
        assert isinstance(survey, Survey)
        assert survey.due["gc"].reason is None

    run(catalog, work, refresh_seconds=5)


SCHEDULES = pytest.mark.parametrize("schedule", [86_400.0, "0 0 1 1 *"])


@SCHEDULES
def test_a_table_is_polled_again_after_a_job_whatever_its_schedule(
    catalog: Catalog, managed: Managed, clock: SimpleNamespace, schedule: str | float
) -> None:
    policy = replace(IDLE, schedule=schedule, poll_seconds=60)
    managed("flights", policy=policy)

    async def work(loop: Loop) -> None:
        polls = loop.polls
        await _live(polls, clock, 15)
        for at_once, seconds in ((True, 1), (False, 61)):
            assert not await _live(polls, clock, 120)
            polls.restart("flights", at_once=at_once)
            assert len(await _live(polls, clock, seconds)) == 1

    run(catalog, work)


@SCHEDULES
def test_a_table_that_cannot_be_read_is_polled_again_after_its_delay_whatever_its_schedule(
    catalog: Catalog,
    managed: Managed,
    clock: SimpleNamespace,
    tmp_path: Path,
    try_now: Callable[[], None],
    schedule: str | float,
) -> None:
    uri = managed("flights", policy=IDLE).uri
    catalog.register("away", uri=str(tmp_path / "away"), policy=replace(IDLE, schedule=schedule))

    async def work(loop: Loop) -> None:
        polls = loop.polls
        # Reads the catalog; a cron table is not due before.
        await polls.turn(busy=["flights", "away"])
        polls.restart("away")
        found = await _live(polls, clock, 60)
        assert [result.job for result in found if isinstance(result, Outcome)] == [STATUS_JOB]
        (tmp_path / "away").symlink_to(uri)
        try_now()
        names = [r.table.name for r in await _live(polls, clock, 15) if isinstance(r, Survey)]
        assert "away" in names

    run(catalog, work)


def test_the_status_after_the_last_change_is_recorded(
    catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a sample was taken shortly before that change, and the table is idle after it."""
    monkeypatch.setattr(polls_module, "SAMPLE_SECONDS", 2.0)
    table = managed("flights", policy=IDLE)

    async def work(loop: Loop) -> None:
        await loop.until(lambda: bool(loop.surveys("flights")))
        assert catalog.latest_samples()[0].generations > 0
        table.merge()
        await loop.until(lambda: catalog.latest_samples()[0].generations == 0)

    run(catalog, work)


def test_tables_come_and_go_with_the_catalog(catalog: Catalog, managed: Managed) -> None:
    table = managed("flights", policy=replace(IDLE, schedule=None))
    by_hand = "flights"

    async def work(loop: Loop) -> None:
        polls = loop.polls
        await polls.turn()
        assert set(polls.tables) == {by_hand}
        assert not polls.running
        catalog.register("other", uri=table.uri, policy=IDLE)
        await polls.turn()
        assert set(polls.running) == {"other"}
        catalog.update("flights", policy=IDLE)
        await polls.turn()
        assert "flights" in polls.running
        catalog.update("flights", enabled=False)
        await polls.turn(busy=("other",))
        assert set(polls.tables) == {"other"}
        catalog.update("other", policy=replace(IDLE, priority=7))
        await polls.turn()
        assert not polls.tables

    run(catalog, work, select=lambda table: table.policy.priority != 7)


def test_a_busy_table_is_not_polled(catalog: Catalog, managed: Managed) -> None:
    managed("flights", policy=IDLE)

    async def work(loop: Loop) -> None:
        await loop.polls.turn(busy=("flights",))
        assert not loop.polls.running
        await loop.polls.turn()
        assert set(loop.polls.running) == {"flights"}

    run(catalog, work)


def test_a_catalog_that_does_not_answer_is_asked_again(
    catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed("flights", policy=IDLE)
    real = catalog.revision
    away = True

    def revision() -> tuple[int, datetime | None]:
        if away:
            raise StoreUnavailableError("away")
        return real()

    monkeypatch.setattr(catalog, "revision", revision)

    async def work(loop: Loop) -> None:
        nonlocal away
        await loop.turn()
        assert not loop.polls.tables
        assert not loop.polls.catalog_answers
        with pytest.raises(StoreUnavailableError):
            await loop.polls.poll_all()
        away = False
        await loop.turn()
        assert loop.polls.catalog_answers
        away = True
        before = len(loop.results)
        # The tables that were read last are polled.
        await loop.until(lambda: len(loop.results) > before + 1)

    run(catalog, work)


def test_due_jobs_are_reported_when_they_change(catalog: Catalog, managed: Managed) -> None:
    table = managed("flights", policy=replace(IDLE, merge_at_generations=1))
    reported = catalog.reports.due_jobs

    async def work(loop: Loop) -> None:
        await loop.until(lambda: "merge" in [due.job for due in reported()])
        table.merge()
        await loop.until(lambda: "merge" not in [due.job for due in reported()])
        with table.writer() as writer:
            writer.upsert(numbered(0, 10))
            writer.flush()
        await loop.until(lambda: "merge" in [due.job for due in reported()])

    # What an earlier watcher reported is over.
    catalog.reports.record_due("flights", {"gc": "an hour"})
    run(catalog, work)
