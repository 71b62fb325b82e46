"""Many tables at once: all are served, and what is broken stops nothing else."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.data.policies import spoil_policy
from support.data.tables import MakeTable, base_state, folder, merged, numbered
from support.waiting import caught_elsewhere, until

import memwal
from memwal.catalog import Catalog, Policy, RunState
from memwal.catalog.leases import job_resource
from memwal.catalog.records import ManagedTable
from memwal.errors import InvalidInputError, StoreUnavailableError, TableSetupError
from memwal.fleet import Budget, Fleet, JobRequest, Outcome, Runtime, overview, run_job
from memwal.fleet import scheduler as fleet_module
from memwal.fleet.polls import TablePolls
from memwal.jobs.job import JobResult, TaskRunner, run_in_process
from memwal.jobs.merge import job as merge_job
from memwal.jobs.options import MergeOptions, SnapshotOptions
from memwal.jobs.table import snapshot as snapshot_job
from memwal.region.router import bucket_region_id
from memwal.storage.location import TableLocation

Managed = Callable[..., memwal.Table]
PATIENCE_SECONDS = 240


def kinds(outcomes: list[Outcome]) -> dict[tuple[str, str], str]:
    return {
        (one.table, one.job): "failed" if one.failed_job else type(one.result).__name__
        for one in outcomes
    }


@pytest.fixture
def many(make_table: MakeTable, catalog: Catalog) -> dict[str, memwal.Table]:
    """Return more registered tables than there are workers, with a generation each."""
    found = {}
    for number in range(10):
        table = make_table()
        table.upsert(numbered(0, 3, n=number))
        name = f"t{number:02}"
        catalog.register(name, uri=table.uri, policy=Policy(merge_at_generations=1))
        found[name] = table
    return found


class TestOneProcess:
    def test_many_tables(self, catalog: Catalog, many: dict[str, memwal.Table]) -> None:
        outcomes = Fleet(catalog, budget=Budget(jobs=4)).run_once()
        assert all(merged(table) == 1 for table in many.values())
        found = kinds(outcomes)
        assert {found[name, "merge"] for name in many} == {"JobResult"}
        assert {found[name, "snapshot"] for name in many} == {"JobResult"}
        assert {found[name, "gc"] for name in many} == {"CollectionResult"}
        assert len(catalog.runs(limit=1_000)) == len(outcomes) == 3 * len(many)
        assert all(one.backlog is not None for one in overview(catalog))
        # All is done.
        assert Fleet(catalog).run_once() == []

    def test_some_tables_until_nothing_of_them_is_due(
        self, catalog: Catalog, make_table: MakeTable
    ) -> None:
        policy = Policy(merge_at_generations=1, index_at_generations=1, run_retention_seconds=0)
        for name in ("mine", "other"):
            table = make_table(maintained_indexes=["id_idx"])
            table.upsert(numbered(0, 3))
            catalog.register(name, uri=table.uri, policy=policy)
        old = catalog.start_run("mine", "verify", external_id="dag/run/drain/-1")
        catalog.finish_run(old, error="no space")
        fleet = Fleet(catalog, tables=["mine"], runtime=Runtime(external_id="dag/run/drain/-1"))
        assert fleet.run_once(seconds=0) == []
        found = [(one.table, one.job) for one in fleet.run_once(seconds=PATIENCE_SECONDS)]
        # The index is due after the merge only; and no job runs twice.
        assert found.index(("mine", "merge")) < found.index(("mine", "index"))
        assert set(found) == {("mine", job) for job in ("merge", "index", "snapshot", "gc")}
        # The old run was not pruned.
        assert len(found) == len(set(found)) == len(catalog.runs()) - 1
        assert {run.external_id for run in catalog.runs()} == {"dag/run/drain/-1"}

    def test_quiet_hours_keep_the_failure_of_a_job(
        self, catalog: Catalog, managed: Managed
    ) -> None:
        always = ("00:00-12:00 UTC", "12:00-00:00 UTC")
        managed(policy=Policy(merge_at_generations=1, quiet_hours=always))
        failed = catalog.backoffs.record_failure("flights", "merge", "no space")
        Fleet(catalog).run_once()
        assert catalog.backoffs.failed_jobs() == [failed]
        catalog.update("flights", policy=Policy(merge_at_generations=1_000, quiet_hours=always))
        Fleet(catalog).run_once()
        assert catalog.backoffs.failed_jobs() == []

    def test_each_table_has_a_runner_of_its_own(
        self, catalog: Catalog, many: dict[str, memwal.Table]
    ) -> None:
        ran: set[str] = set()

        def runner(table: ManagedTable) -> TaskRunner:
            def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
                ran.add(table.name)
                return run_in_process(tasks, function)

            return run

        Fleet(catalog, runner=runner).run_once()
        assert ran == set(many)
        assert all(merged(table) == 1 for table in many.values())

    def test_what_is_broken_hides_nothing_and_stops_no_other(
        self, catalog: Catalog, managed: Managed, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        good = managed("good")
        torn = managed("torn")
        for file in (folder(torn) / "_versions").iterdir():
            file.write_bytes(b"nonsense")
        catalog.register("absent", uri=str(tmp_path / "absent.lance"))
        catalog.register(
            "closed", uri="s3://bucket/t.lance", storage_options_ref=str(tmp_path / "no.json")
        )
        catalog.register("foreign", uri="s3://b/t.lance", storage_options_ref="airflow:lake")
        # Nobody listens there.
        options = tmp_path / "unreachable.json"
        nowhere = {"aws_endpoint": "http://127.0.0.1:9", "allow_http": "true"}
        secret = {"aws_access_key_id": "a", "aws_secret_access_key": "hush-hush"}
        options.write_text(json.dumps({**nowhere, **secret, "aws_region": "us-east-1"}))
        catalog.register("unreachable", uri="s3://b/t.lance", storage_options_ref=str(options))
        found = kinds(Fleet(catalog).run_once())
        assert found["good", "merge"] == "JobResult"
        assert base_state(good) == dict.fromkeys(range(20), 2)
        bad = {"torn", "absent", "closed", "foreign", "unreachable"}
        for name in bad:
            assert found[name, "status"] == "failed"
        failed = {one.table: one for one in catalog.backoffs.failed_jobs()}
        assert set(failed) == bad
        assert "StoreUnavailableError" in failed["unreachable"].reason
        assert "hush-hush" not in caplog.text + str(failed)
        assert str(tmp_path / "absent.lance") in failed["absent"].reason
        assert str(tmp_path / "no.json") in failed["closed"].reason
        assert "'lake'" in failed["foreign"].reason

    def test_a_policy_that_cannot_be_read_stops_its_table_alone(
        self, catalog: Catalog, managed: Managed
    ) -> None:
        good = managed("good")
        bad = managed("bad")
        spoil_policy(catalog, "bad", "{")
        outcomes = Fleet(catalog).run_once()
        assert [(one.table, one.job) for one in outcomes if one.failed] == [("bad", "status")]
        assert merged(good, bucket_region_id(0)) > 0
        assert merged(bad, bucket_region_id(0)) == 0
        with pytest.raises(InvalidInputError):
            run_job(catalog, JobRequest("bad", "merge", force=True))
        assert merged(bad, bucket_region_id(0)) == 0

    def test_memory_is_given_back_after_each_job_whatever_came_of_it(
        self, catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []
        run_job = fleet_module.run_job

        def recorded(*given: Any, **options: Any) -> Any:
            events.append("job")
            if len(events) == 1:
                raise StoreUnavailableError("not now; try again later")
            return run_job(*given, **options)

        monkeypatch.setattr(fleet_module, "run_job", recorded)
        monkeypatch.setattr(fleet_module, "release_free_memory", lambda: events.append("back"))
        managed("a")
        managed("b")
        Fleet(catalog, budget=Budget(jobs=1)).run_once()
        assert len(events) > 4
        assert events == ["job", "back"] * (len(events) // 2)

    def test_failures_are_tried_later_and_later(
        self, catalog: Catalog, managed: Managed, tmp_path: Path, try_now: Callable[[], None]
    ) -> None:
        fleet = Fleet(catalog)
        table = managed("late")
        aside = tmp_path / "aside"
        folder(table).rename(aside)
        assert kinds(fleet.run_once()) == {("late", "status"): "failed"}
        assert fleet.run_once() == []
        try_now()
        (outcome,) = fleet.run_once()
        assert outcome.failed_job is not None
        assert outcome.failed_job.attempts == 2
        pause = outcome.failed_job.next_try_at - datetime.now(UTC)
        assert timedelta(minutes=1) < pause < timedelta(minutes=2)
        aside.rename(folder(table))
        assert fleet.run_once() == []
        try_now()
        assert kinds(fleet.run_once())["late", "merge"] == "JobResult"
        assert catalog.backoffs.failed_jobs() == []

    def test_a_job_that_fails_leaves_the_others_of_its_table(
        self, catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = managed()

        def fail(location: TableLocation, options: SnapshotOptions) -> JobResult:
            raise RuntimeError("unexpected")

        monkeypatch.setattr(snapshot_job, "build_snapshot", fail)
        fleet = Fleet(catalog)
        found = kinds(fleet.run_once())
        assert found["flights", "snapshot"] == "failed"
        assert found["flights", "merge"] == "JobResult"
        assert merged(table, bucket_region_id(0)) == 3
        (failed,) = catalog.backoffs.failed_jobs()
        assert failed.job == "snapshot"
        assert "RuntimeError" in failed.reason
        assert ("flights", "snapshot") not in kinds(fleet.run_once())

    def test_rows_of_the_catalog_are_forgotten(self, catalog: Catalog, managed: Managed) -> None:
        managed()
        policy = replace(
            catalog.get("flights").policy, run_retention_seconds=0, sample_retention_seconds=0
        )
        catalog.update("flights", policy=policy)
        failed = catalog.start_run("flights", "index")
        catalog.finish_run(failed, error="no")
        Fleet(catalog).run_once()
        assert "index" not in {run.job for run in catalog.runs()}

    def test_bytes_are_shared(
        self, catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b", "c"):
            managed(name)
        seen: list[tuple[str, int | None]] = []
        gate = threading.Barrier(2, timeout=PATIENCE_SECONDS)

        def run_job(catalog: Catalog, request: JobRequest, *, runtime: Runtime) -> Any:
            seen.append((request.table, request.run_bytes))
            if len(seen) < 3:
                gate.wait()
            return JobResult(job=request.job, table=request.table, version=1)

        monkeypatch.setattr(fleet_module, "run_job", run_job)
        monkeypatch.setattr(fleet_module, "JOBS", ("merge",))
        due = fleet_module.QueuedJob
        monkeypatch.setattr(
            fleet_module, "QueuedJob", lambda **given: due(**{**given, "bytes": 40 << 20})
        )
        Fleet(catalog, budget=Budget(jobs=2, bytes=50 << 20)).run_once()
        assert sorted(one for _, one in seen[:2]) == [10 << 20, 50 << 20]
        # What the two gave back by then.
        assert seen[2][1] in (10 << 20, 40 << 20, 50 << 20)


@contextmanager
def running(fleet: Fleet) -> Iterator[None]:
    """Run a fleet on a thread, and stop it behind the block."""
    thread = threading.Thread(target=fleet.run_forever, kwargs={"every": 0.2})
    thread.start()
    try:
        yield
    finally:
        fleet.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


class TestForever:
    def test_it_goes_on_until_it_is_stopped(self, catalog: Catalog, managed: Managed) -> None:
        table = managed()
        catalog.update("flights", policy=replace(catalog.get("flights").policy, schedule=1.0))
        region = bucket_region_id(0)
        with running(Fleet(catalog)):
            until(lambda: merged(table, region) == 3)
            table.upsert(numbered(0, 20, n=7))
            # Of both regions: a run that is stopped between them leaves one, and fails.
            until(lambda: base_state(table) == dict.fromkeys(range(20), 7))
            until(lambda: {one.state for one in catalog.runs()} == {RunState.SUCCEEDED})
        assert base_state(table) == dict.fromkeys(range(20), 7)

    def test_what_another_process_did_meanwhile_is_not_done_again(
        self, catalog: Catalog, managed: Managed
    ) -> None:
        table = managed()
        catalog.update("flights", policy=replace(catalog.get("flights").policy, schedule=1.0))
        done: list[str] = []
        changes = itertools.count(1)

        def runner(_: ManagedTable) -> TaskRunner:
            def run(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
                table.build_snapshot()
                return run_in_process(tasks, function)

            return run

        def options(_: ManagedTable) -> None:
            """Change the table after the last due job, so that it is polled; then stop."""
            if "gc" in done:
                table.set_writer_defaults(max_memtable_rows=next(changes))
                if next(changes) > 3:
                    fleet.stop()

        fleet = Fleet(
            catalog,
            runner=runner,
            storage_options=options,
            on_outcome=lambda outcome: done.append(outcome.job),
        )
        fleet.run_forever(every=0.1)
        assert done == ["merge", "gc"]

    def test_a_job_that_another_process_runs_is_not_tried_all_the_time(
        self, catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = managed()
        policy = replace(catalog.get("flights").policy, poll_seconds=3_600)
        catalog.update("flights", policy=policy)
        real = TablePolls.turn
        turns = 0

        async def turn(polls: TablePolls, **options: Any) -> None:
            nonlocal turns
            turns += 1
            await real(polls, **options)

        def on_outcome(outcome: Outcome) -> None:
            nonlocal turns
            turns = 0

        monkeypatch.setattr(TablePolls, "turn", turn)
        with catalog.leases.acquire(job_resource("flights", "merge")):
            fleet = Fleet(catalog, on_outcome=on_outcome)
            with running(fleet):
                until(lambda: turns > 10, seconds=60)
        assert merged(table, bucket_region_id(0)) == 0

    def test_a_folder_that_does_not_answer_stops_nothing_else(
        self, catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        table = managed()
        catalog.add_folder(str(tmp_path))
        answers = threading.Event()
        ended: list[str] = []

        def register_folder(*_: object) -> list[ManagedTable]:
            answers.wait(60)
            ended.append("search")
            return []

        monkeypatch.setattr(fleet_module, "register_folder", register_folder)
        with running(Fleet(catalog)):
            until(lambda: merged(table, bucket_region_id(0)) == 3)
        assert not ended
        answers.set()
        until(lambda: ended)

    def test_a_catalog_that_does_not_answer_is_waited_for(
        self, catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = managed()
        whole = catalog.list
        answers = iter([StoreUnavailableError("busy")] * 3)

        def tables(**options: Any) -> Any:
            for error in answers:
                raise error
            return whole(**options)

        monkeypatch.setattr(catalog, "list", tables)
        with pytest.raises(StoreUnavailableError):
            Fleet(catalog).run_once()
        with running(Fleet(catalog)):
            until(lambda: merged(table, bucket_region_id(0)) == 3)

    def test_a_catalog_without_a_schema(self, tmp_path: Path) -> None:
        empty = Catalog(f"sqlite:///{tmp_path / 'none.db'}")
        with pytest.raises(TableSetupError):
            Fleet(empty).run_forever()

    def test_a_table_without_a_schedule_is_left_alone(
        self, catalog: Catalog, managed: Managed
    ) -> None:
        by_hand, other = managed("by-hand"), managed("other")
        catalog.update("by-hand", policy=replace(catalog.get("by-hand").policy, schedule=None))
        bad = replace(catalog.get("other").policy, schedule="0 0 L * *")
        catalog.register("bad", uri=other.uri, policy=bad)
        told: list[Outcome] = []
        with running(Fleet(catalog, on_outcome=told.append)):
            until(lambda: merged(other, bucket_region_id(0)) == 3)
            until(lambda: any(one.table == "bad" for one in told))
        assert merged(by_hand, bucket_region_id(0)) == 0

    def test_jobs_end_before_their_next_commit(
        self, catalog: Catalog, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = managed(buckets=1, generations=6)
        region = bucket_region_id(0)
        whole = merge_job.merge

        told: list[Outcome] = []
        fleet = Fleet(catalog, on_outcome=told.append)

        def in_small_commits(location: TableLocation, options: MergeOptions) -> JobResult:
            assert options.guard is not None
            guard = _stop_at(fleet, 4, options.guard)
            return whole(location, replace(options, commit_bytes=1, guard=guard))

        monkeypatch.setattr(merge_job, "merge", in_small_commits)
        fleet.run_once()
        assert 0 < merged(table, region) < 6
        assert [(one.job, one.result, one.failed_job) for one in told][-1] == ("merge", None, None)
        assert catalog.backoffs.failed_jobs() == []
        assert catalog.leases.list() == []
        monkeypatch.undo()
        Fleet(catalog).run_once()
        assert base_state(table) == dict.fromkeys(range(20), 5)

    def test_a_signal_that_another_thread_catches_ends_it(self, catalog: Catalog) -> None:
        fleet = Fleet(catalog)
        with caught_elsewhere(signal.SIGTERM, fleet.stop):
            fleet.run_forever()

    def test_wrong_numbers(self, catalog: Catalog) -> None:
        with pytest.raises(InvalidInputError):
            Budget(jobs=0)
        with pytest.raises(InvalidInputError):
            Fleet(catalog).run_forever(every=0)


def _stop_at(fleet: Fleet, look: int, check: Callable[[], None]) -> Callable[[], None]:
    looks = 0

    def stopping() -> None:
        nonlocal looks
        looks += 1
        if looks == look:
            fleet.stop()
        check()

    return stopping


class Process:
    """``memwal fleet run`` in a process of its own."""

    def __init__(self, url: str, *arguments: object) -> None:
        self.popen = subprocess.Popen(
            [
                *(sys.executable, "-m", "memwal.cli.commands.app"),
                *("fleet", "run", "--catalog", url, "--json", *map(str, arguments)),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, number: int) -> tuple[int, list[dict[str, Any]], str]:
        self.popen.send_signal(number)
        out, err = self.popen.communicate(timeout=PATIENCE_SECONDS)
        return self.popen.returncode, [json.loads(line) for line in out.splitlines()], err


@pytest.fixture
def start(url: str) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def go(*arguments: object) -> Process:
        started.append(Process(url, *arguments))
        return started[-1]

    yield go
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.communicate(timeout=PATIENCE_SECONDS)


class TestProcesses:
    @pytest.mark.slow
    def test_two_fleets_of_which_one_is_killed(
        self, catalog: Catalog, managed: Managed, start: Callable[..., Process]
    ) -> None:
        tables = {
            f"t{number}": managed(f"t{number}", buckets=1, generations=2) for number in range(8)
        }
        region = bucket_region_id(0)
        options = ("--every", 0.2, "--jobs", 1, "--lease-seconds", 2)
        first, second = start(*options), start(*options)
        until(lambda: len(catalog.runs(state=RunState.RUNNING)) > 0)
        first.popen.send_signal(signal.SIGKILL)
        until(lambda: all(merged(table, region) == 2 for table in tables.values()))
        code, outcomes, err = second.end(signal.SIGTERM)
        assert code == 0, err
        assert {one["table"] for one in outcomes} <= set(tables)
        assert all(base_state(t) == dict.fromkeys(range(20), 1) for t in tables.values())
        # Nobody did at once what somebody else was doing.
        runs = [run for run in catalog.runs(limit=1_000) if run.job == "merge"]
        for name in tables:
            mine = sorted((r for r in runs if r.table == name), key=lambda r: r.lease_token or 0)
            tokens = [run.lease_token for run in mine]
            assert len(set(tokens)) == len(tokens)
            ended = [run.finished_at for run in mine]
            for before, run in zip(ended, mine[1:], strict=False):
                assert before is None or before <= run.started_at
        assert catalog.leases.list() == []

    def test_told_to_end(
        self, catalog: Catalog, managed: Managed, start: Callable[..., Process]
    ) -> None:
        table = managed()
        process = start()
        until(lambda: "gc" in catalog.last_runs("flights"))
        code, outcomes, err = process.end(signal.SIGTERM)
        assert code == 0, err
        assert "Traceback" not in err
        assert {one["job"] for one in outcomes} == {"merge", "snapshot", "gc"}
        assert base_state(table) == dict.fromkeys(range(20), 2)
