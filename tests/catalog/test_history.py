import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from support.data import statuses
from support.processes import running_python
from support.waiting import until

import memwal.catalog.runs as active_run_module
from memwal.catalog import Catalog, Policy, Pruned, RunState
from memwal.catalog.models import JobRunRow
from memwal.errors import InvalidInputError, ObjectNotFoundError, StoreUnavailableError
from memwal.jobs.job import JobResult
from memwal.jobs.status import TableStatus

RESULT = JobResult(job="merge", table="/data/a.lance", version=7, commits=1, metrics={"rows": 3})


def status(*, generations: int, wal: int) -> TableStatus:
    backlog = {
        "backlog_generations": generations,
        "backlog_rows": 10 * generations,
        "backlog_bytes": 5_000_000_000 * generations,
        "unflushed_wal_entries": wal,
    }
    return statuses.status(*(statuses.region(number, **backlog) for number in (1, 2)), indexes=())


def test_a_run_that_ends_well_keeps_its_result(catalog: Catalog) -> None:
    with catalog.record_run("a", "merge", external_id="x") as run:
        assert catalog.runs()[0].state is RunState.RUNNING
        run.finish(RESULT)
    (kept,) = catalog.runs(table="a")
    assert kept.state is RunState.SUCCEEDED
    assert kept.result == json.loads(json.dumps(RESULT.to_dict()))
    assert kept.finished_at is not None
    assert kept.finished_at >= kept.started_at
    assert (kept.job, kept.external_id, kept.error) == ("merge", "x", None)


def test_a_run_that_fails_keeps_its_error_and_raises_it(catalog: Catalog) -> None:
    with pytest.raises(KeyboardInterrupt), catalog.record_run("a", "merge"):
        raise KeyboardInterrupt("stop")
    (kept,) = catalog.runs()
    assert (kept.state, kept.result, kept.error) == (
        RunState.FAILED,
        None,
        "KeyboardInterrupt",
    )


def test_a_run_without_a_result_is_a_mistake(catalog: Catalog) -> None:
    with pytest.raises(InvalidInputError, match="finish"), catalog.record_run("a", "merge"):
        pass
    assert catalog.runs()[0].state is RunState.FAILED


def test_a_second_try_gives_up_on_the_first(catalog: Catalog) -> None:
    lost = catalog.start_run("a", "merge", external_id="x")
    other_job = catalog.start_run("a", "gc", external_id="x")
    other_id = catalog.start_run("a", "merge", external_id="y")
    unnamed = catalog.start_run("a", "merge")
    again = catalog.start_run("a", "merge", external_id="x")
    states = {run.run_id: run.state for run in catalog.runs()}
    assert states == {
        lost: RunState.ABANDONED,
        other_job: RunState.RUNNING,
        other_id: RunState.RUNNING,
        unnamed: RunState.RUNNING,
        again: RunState.RUNNING,
    }


def test_a_run_ends_in_one_way(catalog: Catalog) -> None:
    run = catalog.start_run("a", "merge")
    with pytest.raises(InvalidInputError):
        catalog.finish_run(run)
    with pytest.raises(InvalidInputError):
        catalog.finish_run(run, result={}, error="x")


def test_runs_are_newest_first_and_filtered(catalog: Catalog) -> None:
    ids = [catalog.start_run(table, job) for table in "ab" for job in ("merge", "gc")]
    assert [run.run_id for run in catalog.runs()] == ids[::-1]
    assert [run.run_id for run in catalog.runs(limit=1)] == ids[-1:]
    assert [run.run_id for run in catalog.runs(table="a", job="gc")] == [ids[1]]
    assert catalog.runs()[0].to_dict()["state"] == "running"


def test_backlog_is_summed_over_regions_and_comes_back_oldest_first(catalog: Catalog) -> None:
    samples = [catalog.record_backlog("a", status(generations=n, wal=3)) for n in (1, 2, 3)]
    catalog.record_backlog("b", status(generations=9, wal=0))
    assert catalog.backlog_points("a", since=samples[0].at, most=10) == samples
    assert [sample.generations for sample in samples] == [2, 4, 6]
    assert (samples[2].rows, samples[2].bytes, samples[2].wal_entries) == (60, 30_000_000_000, 6)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert catalog.backlog_points("a", since=later, most=10) == []
    assert catalog.backlog_points("a", since=samples[1].at, most=10)[0] == samples[1]


@pytest.fixture
def hours_pass(each_catalog: Catalog) -> Callable[[float], None]:
    """Return a function that makes every run of the catalog older by so many hours."""

    def go(hours: float) -> None:
        with each_catalog.database.writing() as session:
            for row in session.scalars(select(JobRunRow)):
                row.started_at -= timedelta(hours=hours)
                if row.heartbeat_at is not None:
                    row.heartbeat_at -= timedelta(hours=hours)

    return go


def test_versions_rows_and_bytes_are_taken_from_the_result(each_catalog: Catalog) -> None:
    result = JobResult(
        job="merge",
        table="/data/a.lance",
        version=8,
        metrics={"generations": 2, "rows_upserted": 5, "rows_deleted": 2, "bytes": 1 << 40},
    )
    with each_catalog.record_run("a", "merge", version_before=6) as run:
        run.finish(result)
    kept = each_catalog.run(run.run_id)
    assert (kept.version_before, kept.version_after) == (6, 8)
    assert (kept.rows, kept.bytes) == (7, 1 << 40)
    with pytest.raises(ObjectNotFoundError, match=str(run.run_id + 1)):
        each_catalog.run(run.run_id + 1)


def test_a_run_under_a_lease_keeps_its_token(each_catalog: Catalog) -> None:
    each_catalog.leases.acquire("t").release()
    with (
        each_catalog.leases.acquire("t") as lease,
        each_catalog.record_run("a", "merge", lease=lease) as run,
    ):
        run.finish(RESULT)
    assert each_catalog.run(run.run_id).lease_token == lease.token == 2


def test_progress_is_seen_while_a_run_goes_on_and_kept_at_its_end(
    each_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_run_module, "PROGRESS_SECONDS", 0.02)
    seen = threading.Event()
    done: list[int | None] = []

    def task(number: int) -> int:
        until(lambda: not number or each_catalog.runs()[0].done == number)
        done.append(each_catalog.runs()[0].done)
        seen.set()
        return number

    with each_catalog.record_run("a", "merge") as run:
        assert run.run_tasks([0, 1, 2], task) == [0, 1, 2]
        run.progress(done=3, total=3, rows=40, bytes=50)
        run.finish(RESULT)
    assert done[1:] == [1, 2]
    kept = each_catalog.run(run.run_id)
    # Of rows, the result knows better.
    assert (kept.done, kept.total, kept.rows, kept.bytes) == (3, 3, 3, 50)


def test_progress_is_written_at_most_every_second(catalog: Catalog) -> None:
    told = []

    class Book:
        def update_run(self, run_id: int, **progress: int) -> None:
            told.append(progress)

    run = active_run_module.ActiveRun(Book(), 1)
    started = time.monotonic()
    for n in range(1000):
        run.progress(done=n, total=1000)
    while not told:
        time.sleep(0.05)
    assert run.stop() == {"done": 999, "total": 1000}
    assert len(told) <= 1 + (time.monotonic() - started) // active_run_module.PROGRESS_SECONDS
    assert told[0] == {"done": 999, "total": 1000}


def test_a_run_that_says_nothing_any_more_is_abandoned(
    each_catalog: Catalog, hours_pass: Callable[[float], None]
) -> None:
    beating = each_catalog.start_run("a", "merge", beats=True)
    quiet = each_catalog.start_run("a", "gc")
    running = [run.run_id for run in each_catalog.runs(state=RunState.RUNNING)]
    assert running == [quiet, beating]
    hours_pass(0.1)
    assert each_catalog.run(beating).state is RunState.ABANDONED
    assert [run.run_id for run in each_catalog.runs(state=RunState.RUNNING)] == [quiet]
    assert [run.run_id for run in each_catalog.runs(state=RunState.ABANDONED)] == [beating]
    # It was only asleep.
    each_catalog.update_run(beating, done=1, total=2)
    assert each_catalog.run(beating).state is RunState.RUNNING
    hours_pass(0.1)
    each_catalog.start_run("a", "merge")
    # It stays given up, as if it had been alive a moment ago.
    hours_pass(-0.1)
    kept = each_catalog.run(beating)
    assert kept.state is RunState.ABANDONED
    assert kept.finished_at is not None
    assert kept.done == 1


@pytest.mark.few(1)
def test_a_killed_process_leaves_a_run_that_is_given_up(
    each_catalog: Catalog, each_url: str, hours_pass: Callable[[float], None]
) -> None:
    code = (
        "import sys, time; from memwal.catalog import Catalog\n"
        "with Catalog(sys.argv[1]).record_run('a', 'merge') as run:\n"
        "    print(run.run_id, flush=True); time.sleep(60)\n"
    )
    with running_python(code, each_url) as child:
        assert child.stdout is not None
        run_id = int(child.stdout.readline())
    assert each_catalog.run(run_id).state is RunState.RUNNING
    hours_pass(0.1)
    assert each_catalog.run(run_id).state is RunState.ABANDONED


def test_an_ended_run_is_not_brought_back(each_catalog: Catalog) -> None:
    run = each_catalog.start_run("a", "merge")
    each_catalog.finish_run(run, error="x")
    each_catalog.update_run(run, done=1, total=2)
    assert each_catalog.run(run).state is RunState.FAILED


def test_a_failure_is_told_also_when_the_catalog_is_not_there(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise StoreUnavailableError("gone")

    class TheRealOne(Exception):
        pass

    with pytest.raises(TheRealOne), catalog.record_run("a", "merge"):
        monkeypatch.setattr(catalog, "finish_run", gone)
        raise TheRealOne
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_last_runs_are_those_that_succeeded(each_catalog: Catalog) -> None:
    first, second, failed = (each_catalog.start_run("a", "merge") for _ in range(3))
    each_catalog.finish_run(first, result={})
    ended = each_catalog.finish_run(second, result={}).finished_at
    each_catalog.finish_run(failed, error="x")
    each_catalog.finish_run(each_catalog.start_run("b", "gc"), result={})
    assert each_catalog.last_runs("a") == {"merge": ended}
    assert each_catalog.last_runs("none") == {}


def test_old_history_is_forgotten_but_not_the_latest_success(each_catalog: Catalog) -> None:
    old, latest, failed = (each_catalog.start_run("a", "merge") for _ in range(3))
    each_catalog.finish_run(old, result={})
    each_catalog.finish_run(latest, result={})
    each_catalog.finish_run(failed, error="x")
    going = each_catalog.start_run("a", "merge", beats=True)
    each_catalog.start_run("b", "merge")
    for name in "ab":
        each_catalog.record_backlog(name, status(generations=1, wal=0))
    now = datetime.now(UTC) + timedelta(minutes=1)
    nothing = each_catalog.prune_history(
        "a", runs_before=now - timedelta(days=1), samples_before=now - timedelta(days=1)
    )
    assert nothing == Pruned(runs=0, samples=0)
    pruned = each_catalog.prune_history("a", runs_before=now, samples_before=now)
    assert pruned == Pruned(runs=3, samples=1)
    assert [run.run_id for run in each_catalog.runs(table="a")] == [latest]
    samples = each_catalog.backlog_points("b", since=now - timedelta(days=1), most=10)
    assert len(each_catalog.runs(table="b")) == len(samples) == 1
    assert going not in [run.run_id for run in each_catalog.runs()]


def test_policies_say_what_is_kept(each_catalog: Catalog) -> None:
    short = Policy(run_retention_seconds=60, sample_retention_seconds=3600)
    each_catalog.register("short", uri="/data/s.lance", policy=short)
    for name in ("short", "gone"):
        each_catalog.finish_run(each_catalog.start_run(name, "gc"), error="x")
        each_catalog.record_backlog(name, status(generations=1, wal=0))
    now = datetime.now(UTC)
    assert each_catalog.prune(now=now + timedelta(minutes=2)) == {
        "gone": Pruned(runs=0, samples=0),
        "short": Pruned(runs=1, samples=0),
    }
    assert each_catalog.prune(now=now + timedelta(days=8))["gone"] == Pruned(runs=0, samples=1)
    assert each_catalog.prune(now=now + timedelta(days=31))["gone"].runs == 1


def test_the_latest_status_of_every_table_is_kept(catalog: Catalog) -> None:
    catalog.record_backlog("a", status(generations=1, wal=0))
    newest = catalog.record_backlog("a", status(generations=2, wal=5))
    other = catalog.record_backlog("b", status(generations=3, wal=0))
    assert catalog.latest_samples() == [newest, other]
    kept, of_b = catalog.states()
    assert (kept.table, kept.at, kept.status) == ("a", newest.at, status(generations=2, wal=5))
    assert catalog.states(table="b") == [of_b]
    assert catalog.states(table="c") == []
    assert newest.lag_generations is None
    assert newest.version == kept.status.version
    assert newest.regions == len(kept.status.regions)


def test_a_status_survives_json() -> None:
    found = status(generations=2, wal=1)
    values = json.loads(json.dumps(found.to_dict()))
    assert TableStatus.from_dict(values) == found
    values["later"] = 1
    assert TableStatus.from_dict(values) == found
