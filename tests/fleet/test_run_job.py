"""One job of one managed table: due, leased, recorded, within the limits of its policy."""

import pickle
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from support.data.tables import base_state, merged, numbered

import memwal
import memwal.catalog.runs as runs_module
from memwal.base_table.snapshot import open_base
from memwal.catalog import Catalog, RunState
from memwal.catalog.leases import job_resource
from memwal.errors import (
    ConflictError,
    InvalidInputError,
    LeaseLostError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.fleet import JobRequest, JobSpec, Runtime, Skipped, SkipReason, run_job, survey
from memwal.fleet.job_spec import run_locally
from memwal.jobs.job import JobResult, SkippedRegion, guarded
from memwal.jobs.options import CompactOptions, GcOptions, IndexOptions, MergeOptions
from memwal.region.router import bucket_region_id

Managed = Callable[..., memwal.Table]
Poison = Callable[[memwal.Table, UUID, int], Callable[[], None]]
BAD, GOOD = bucket_region_id(0), bucket_region_id(1)


def done(found: JobResult | Skipped) -> JobResult:
    assert isinstance(found, JobResult), found
    return found


def skipped(found: JobResult | Skipped) -> SkipReason:
    assert isinstance(found, Skipped), found
    return found.reason_code


def test_a_job_is_recorded_with_its_lease(catalog: Catalog, managed: Managed) -> None:
    table = managed()
    before = table.base().version
    result = done(
        run_job(catalog, JobRequest("flights", "merge"), runtime=Runtime(external_id="dag/1"))
    )
    assert result.metrics["generations"] == 6
    (run,) = catalog.runs()
    assert (run.job, run.state, run.external_id) == ("merge", RunState.SUCCEEDED, "dag/1")
    assert (run.version_before, run.version_after) == (before, table.base().version)
    assert (run.done, run.total, run.lease_token) == (1, 1, 1)
    assert catalog.leases.list() == []
    assert catalog.leases.list(held_only=False)[0].resource == job_resource("flights", "merge")


@pytest.mark.parametrize("job", ["merge", "index", "compact", "snapshot", "gc"])
def test_each_job_runs_by_force(catalog: Catalog, managed: Managed, job: str) -> None:
    managed()
    assert done(run_job(catalog, JobRequest("flights", job, force=True))).job == job
    assert catalog.last_runs("flights").keys() == {job}


def test_what_is_not_due_is_skipped(catalog: Catalog, managed: Managed) -> None:
    managed(generations=0)
    found = run_job(catalog, JobRequest("flights", "merge"))
    assert skipped(found) is SkipReason.NOT_DUE
    assert isinstance(found, Skipped)
    assert (found.job, found.table) == ("merge", "flights")
    assert found.to_dict()["skipped"] == SkipReason.NOT_DUE.value
    assert found.reason in str(found)
    assert catalog.runs() == []


def test_a_job_that_another_process_did_since_the_survey_is_skipped(
    catalog: Catalog, managed: Managed
) -> None:
    table = managed()
    request = JobRequest("flights", "merge", survey=survey(catalog, catalog.get("flights")))
    assert done(run_job(catalog, request)).metrics["generations"] == 6
    assert skipped(run_job(catalog, request)) is SkipReason.NOT_DUE
    table.upsert(numbered(0, 20, n=9))
    assert done(run_job(catalog, request)).metrics["generations"] == 2
    assert len(catalog.runs()) == 2


def test_quiet_hours_hold_a_job_back_and_force_does_not_mind(
    catalog: Catalog, managed: Managed
) -> None:
    table = managed()
    policy = replace(
        catalog.get("flights").policy, quiet_hours=("00:00-12:00 UTC", "12:00-00:00 UTC")
    )
    catalog.update("flights", policy=policy)
    assert skipped(run_job(catalog, JobRequest("flights", "merge"))) is SkipReason.QUIET
    assert merged(table, BAD) == 0
    assert done(run_job(catalog, JobRequest("flights", "merge", force=True))).commits == 1


def test_a_dry_run_changes_nothing(catalog: Catalog, managed: Managed) -> None:
    table = managed()
    version = table.base().version
    found = run_job(catalog, JobRequest("flights", "merge", dry_run=True))
    assert skipped(found) is SkipReason.DRY_RUN
    assert re.search(r"\b3\b", str(found))
    assert done(run_job(catalog, JobRequest("flights", "gc", dry_run=True))).job == "gc"
    assert (table.base().version, catalog.runs(), catalog.leases.list(held_only=False)) == (
        version,
        [],
        [],
    )


def test_the_limits_of_the_policy_reach_the_job(catalog: Catalog, managed: Managed) -> None:
    managed()
    policy = replace(
        catalog.get("flights").policy,
        merge_commit_bytes=2 << 20,
        merge_run_bytes=3 << 20,
        gc_grace_seconds=170,
        gc_retention_seconds=80,
        gc_index_grace_seconds=85,
        gc_version_retention_seconds=90,
        compact_min_fragments=5,
        compact_deleted_percent=30,
    )
    catalog.update("flights", policy=policy)
    specs: list[JobSpec] = []

    def execute(spec: JobSpec, guard: Callable[[], None]) -> JobResult:
        guard()
        specs.append(spec)
        return JobResult(job=spec.job, table=spec.table.uri, version=1)

    for job in ("merge", "compact", "gc"):
        run_job(
            catalog,
            JobRequest("flights", job, run_bytes=5 << 20, force=job != "merge"),
            runtime=Runtime(execute=execute),
        )
    assert [spec.options for spec in specs] == [
        MergeOptions(commit_bytes=2 << 20, run_bytes=3 << 20, regions=(BAD, GOOD)),
        CompactOptions(min_fragments=2, deleted_percent=30, commit_bytes=2 << 20, attempts=2),
        GcOptions(
            dry_run=False,
            grace_seconds=170,
            retention_seconds=80,
            index_grace_seconds=85,
            version_retention_seconds=90,
        ),
    ]


def test_some_regions(catalog: Catalog, managed: Managed) -> None:
    table = managed()
    done(run_job(catalog, JobRequest("flights", "merge", regions=[GOOD])))
    assert (merged(table, GOOD), merged(table, BAD)) == (3, 0)
    nowhere = uuid4()
    with pytest.raises(InvalidInputError, match=str(nowhere)):
        run_job(catalog, JobRequest("flights", "merge", regions=[nowhere]))
    assert merged(table, BAD) == 0
    assert catalog.runs()[0].state is RunState.FAILED


def test_wrong_names(catalog: Catalog, managed: Managed) -> None:
    managed()
    with pytest.raises(InvalidInputError, match="sweep"):
        run_job(catalog, JobRequest("flights", "sweep"))
    with pytest.raises(ObjectNotFoundError):
        run_job(catalog, JobRequest("trains", "merge"))


def test_a_table_that_cannot_be_opened_is_a_failed_run(catalog: Catalog) -> None:
    catalog.register("gone", uri="/nowhere/gone.lance")
    with pytest.raises(TableSetupError):
        run_job(catalog, JobRequest("gone", "merge"))
    (run,) = catalog.runs()
    assert (run.state, run.error is not None) == (RunState.FAILED, True)
    assert catalog.leases.list() == []


def test_a_failed_run_whose_end_is_not_written_is_abandoned(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.register("gone", uri="/nowhere/gone.lance")

    def finish_run(*_: object, **__: object) -> None:
        raise StoreUnavailableError("the catalog does not answer, or the process dies here")

    monkeypatch.setattr(catalog, "finish_run", finish_run)
    with pytest.raises(TableSetupError):
        run_job(catalog, JobRequest("gone", "merge"))
    monkeypatch.setattr(runs_module, "RUN_SILENCE", timedelta(0))
    (run,) = catalog.runs()
    assert run.state is RunState.ABANDONED


def test_options_in_airflow_are_given_by_the_caller(catalog: Catalog, managed: Managed) -> None:
    managed()
    catalog.update("flights", storage_options_ref="airflow:lake")
    with pytest.raises(InvalidInputError, match="'lake'"):
        run_job(catalog, JobRequest("flights", "merge"))
    assert (
        done(
            run_job(catalog, JobRequest("flights", "merge"), runtime=Runtime(storage_options={}))
        ).commits
        == 1
    )


def test_a_second_run_skips_or_waits(catalog: Catalog, managed: Managed) -> None:
    table = managed()
    lease = catalog.leases.acquire(job_resource("flights", "merge"), holder="host-1:17")
    found = run_job(catalog, JobRequest("flights", "merge"))
    assert skipped(found) is SkipReason.RUNNING
    assert "host-1:17" in str(found)
    threading.Timer(0.3, lease.release).start()
    assert (
        done(run_job(catalog, JobRequest("flights", "merge", wait=timedelta(seconds=240)))).commits
        == 1
    )
    # What was due when it began to wait is not done twice.
    assert (
        skipped(run_job(catalog, JobRequest("flights", "merge", wait=timedelta(0))))
        is SkipReason.NOT_DUE
    )
    assert merged(table, BAD) == 3


def steal(catalog: Catalog, job: str) -> None:
    catalog.leases.release(job_resource("flights", job))


@pytest.mark.few(2)
@pytest.mark.parametrize("job", ["merge", "compact", "snapshot", "gc"])
def test_who_lost_the_lease_changes_nothing_more(
    catalog: Catalog, managed: Managed, job: str
) -> None:
    table = managed()
    table.merge()
    with table.writer() as writer:
        writer.upsert(numbered(100, 20))
        writer.flush()
        table.merge()
        writer.upsert(numbered(200, 20))
    version = table.base().version

    def execute(spec: JobSpec, guard: Callable[[], None]) -> JobResult:
        steal(catalog, job)
        return run_locally(table, spec, guard=guard)

    with pytest.raises(LeaseLostError):
        run_job(catalog, JobRequest("flights", job, force=True), runtime=Runtime(execute=execute))
    assert table.base().version == version
    (run,) = catalog.runs()
    assert run.state is RunState.FAILED
    assert (run.error or "").startswith("LeaseLostError: ")


def test_an_executor_may_leave_a_job_to_this_process(catalog: Catalog, managed: Managed) -> None:
    table = managed()
    specs: list[JobSpec] = []

    def decline(spec: JobSpec, guard: Callable[[], None]) -> None:
        specs.append(spec)

    runtime = Runtime(execute=decline)
    result = done(run_job(catalog, JobRequest("flights", "merge"), runtime=runtime))
    assert result.metrics["generations"] > 0
    assert table.status().backlog_generations == 0
    done(run_job(catalog, JobRequest("flights", "gc", dry_run=True, force=True), runtime=runtime))
    due, forced = specs
    assert due.status is not None
    assert due.status.backlog_generations == result.metrics["generations"]
    assert forced.status is None


class Stopped(ConflictError):
    """Raised by a caller who wants the job to end."""


def test_an_index_build_looks_at_the_lease_before_its_tasks(
    catalog: Catalog, managed: Managed
) -> None:
    managed()

    def runner(tasks: Any, function: Any) -> Any:
        raise AssertionError("it was run")

    def guard() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        run_job(
            catalog,
            JobRequest("flights", "index", force=True),
            runtime=Runtime(run=runner, guard=guard),
        )


def test_a_lease_lost_between_two_commits(catalog: Catalog, managed: Managed) -> None:
    table = managed(buckets=1, generations=4)
    policy = replace(catalog.get("flights").policy, merge_commit_bytes=1 << 20)
    catalog.update("flights", policy=policy)
    looks = 0

    def guard() -> None:
        nonlocal looks
        looks += 1
        if looks == 4:
            steal(catalog, "merge")

    def execute(spec: JobSpec, look: Callable[[], None]) -> JobResult:
        return table.merge(commit_bytes=1, guard=look)

    with pytest.raises(ConflictError):
        run_job(
            catalog, JobRequest("flights", "merge"), runtime=Runtime(execute=execute, guard=guard)
        )
    assert 0 < merged(table, bucket_region_id(0)) < 4
    done(run_job(catalog, JobRequest("flights", "merge")))
    assert base_state(table) == dict.fromkeys(range(20), 3)


def test_guards_do_not_travel() -> None:
    def refuse() -> None:
        raise ConflictError("no")

    bound = guarded(_guarded_task, refuse)
    with pytest.raises(ConflictError):
        bound(1)
    assert pickle.loads(pickle.dumps(bound))(1) == 2
    assert guarded(_guarded_task, None) is _guarded_task


def _guarded_task(task: int, *, guard: Callable[[], None] | None = None) -> int:
    if guard is not None:
        guard()
    return task + 1


class TestSkippedRegions:
    def test_a_poisoned_generation_from_end_to_end(
        self, catalog: Catalog, managed: Managed, poison: Poison, try_now: Callable[[], None]
    ) -> None:
        table = managed()
        repair = poison(table, BAD, 2)
        result = done(run_job(catalog, JobRequest("flights", "merge")))
        assert [region.region_id for region in result.skipped_regions] == [str(BAD)]
        assert (merged(table, BAD), merged(table, GOOD)) == (1, 3)
        (record,) = catalog.backoffs.skipped_regions("flights")
        assert (record.region_id, record.generation, record.attempts) == (str(BAD), 2, 1)
        assert record.waiting

        # Nothing else is due, and the region is left alone.
        found = run_job(catalog, JobRequest("flights", "merge"))
        assert skipped(found) is SkipReason.BACKOFF
        assert len(catalog.runs()) == 1

        # The others go on.
        table.upsert(numbered(0, 20, n=9))
        result = done(run_job(catalog, JobRequest("flights", "merge")))
        assert result.skipped_regions == ()
        assert (merged(table, BAD), merged(table, GOOD)) == (1, 4)
        assert catalog.backoffs.skipped_regions("flights") == [record]

        # Later, and then longer.
        pauses = [record.next_try_at - record.since]
        for attempt in range(2, 5):
            try_now()
            assert (
                done(run_job(catalog, JobRequest("flights", "merge"))).skipped_regions[0].generation
                == 2
            )
            (record,) = catalog.backoffs.skipped_regions("flights")
            assert (record.attempts, record.waiting) == (attempt, True)
            pauses.append(record.next_try_at - record.since)
        assert pauses == sorted(pauses)
        assert pauses[-1] > 4 * pauses[0]

        repair()
        assert skipped(run_job(catalog, JobRequest("flights", "merge"))) is SkipReason.BACKOFF
        assert (
            done(run_job(catalog, JobRequest("flights", "merge", force=True))).skipped_regions == ()
        )
        assert catalog.backoffs.skipped_regions("flights") == []
        assert base_state(table) == dict.fromkeys(range(20), 9)

    def test_a_region_that_somebody_else_merged_is_not_skipped(
        self, catalog: Catalog, managed: Managed, poison: Poison
    ) -> None:
        table = managed()
        repair = poison(table, BAD, 1)
        done(run_job(catalog, JobRequest("flights", "merge")))
        assert len(catalog.backoffs.skipped_regions("flights")) == 1
        repair()
        table.merge()
        table.upsert(numbered(0, 20, n=9))
        done(run_job(catalog, JobRequest("flights", "merge")))
        assert catalog.backoffs.skipped_regions("flights") == []
        assert open_base(table.location).details.merged[GOOD] == 4

    @pytest.mark.parametrize("uses_survey", [False, True])
    def test_a_region_that_the_table_does_not_have_is_forgotten(
        self, catalog: Catalog, managed: Managed, uses_survey: bool
    ) -> None:
        managed()
        state = survey(catalog, catalog.get("flights"))
        gone = SkippedRegion(region_id=str(uuid4()), generation=1, reason="of an earlier table")
        catalog.backoffs.skip_regions("flights", [gone])
        specs: list[JobSpec] = []
        request = JobRequest("flights", "merge", run_bytes=1_000_000_000)
        request = replace(
            request, **({"survey": state} if uses_survey else {"due": state.due["merge"]})
        )
        done(run_job(catalog, request, runtime=Runtime(execute=lambda spec, _: specs.append(spec))))
        assert [spec.options.skip_regions for spec in specs] == [()]
        assert catalog.backoffs.skipped_regions("flights") == []


def test_one_index_is_judged_and_built_alone_under_its_own_lease(
    catalog: Catalog, make_table: Any
) -> None:
    table = make_table(maintained_indexes=["n_idx", "id_idx"])
    table.upsert(numbered(0, 5))
    table.merge()
    catalog.register("flights", uri=table.uri)

    with catalog.leases.acquire(job_resource("flights", "index", part="n_idx")):
        assert (
            skipped(run_job(catalog, JobRequest("flights", "index", index="n_idx")))
            is SkipReason.RUNNING
        )
        specs: list[JobSpec] = []

        def execute(spec: JobSpec, guard: Callable[[], None]) -> JobResult:
            specs.append(spec)
            return run_locally(table, spec, guard=guard)

        result = done(
            run_job(
                catalog,
                JobRequest("flights", "index", index="id_idx"),
                runtime=Runtime(execute=execute),
            )
        )
    assert result.metrics == {"indexes": 1}
    assert specs[0].options == IndexOptions(indexes=("id_idx",))
    assert (
        skipped(run_job(catalog, JobRequest("flights", "index", index="id_idx")))
        is SkipReason.NOT_DUE
    )
    assert done(run_job(catalog, JobRequest("flights", "index", index="n_idx"))).commits == 1
    assert skipped(run_job(catalog, JobRequest("flights", "index"))) is SkipReason.NOT_DUE


def test_an_index_that_does_not_exist_is_refused(catalog: Catalog, managed: Managed) -> None:
    managed()
    with pytest.raises(InvalidInputError, match="other"):
        run_job(catalog, JobRequest("flights", "index", index="other"))
    with pytest.raises(InvalidInputError, match="merge"):
        run_job(catalog, JobRequest("flights", "merge", index="n_idx"))
