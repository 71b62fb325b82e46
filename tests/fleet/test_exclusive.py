"""A compaction that merges keep out gets exclusive access, and they start again behind it."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from support.data.tables import base_state, numbered

import memwal
from memwal.catalog import Catalog
from memwal.catalog.leases import job_resource
from memwal.errors import ConflictError, LeaseLostError
from memwal.fleet import JobRequest, Runtime, Skipped, SkipReason, exclusive, run_job
from memwal.fleet.exclusive import combined_result, exclusive_lease, wait_for_exclusive
from memwal.jobs.job import JobResult

Managed = Callable[..., memwal.Table]
FRAGMENTS = 4


@pytest.fixture
def fragmented(catalog: Catalog, managed: Managed) -> memwal.Table:
    """A managed table of many small fragments, with nothing that waits for a merge."""
    table = managed(generations=0)
    for number in range(FRAGMENTS):
        table.upsert(numbered(10 * number, 10, n=number))
        table.merge()
    return table


class Crowd:
    """Runs tasks, and before the commit of each batch has another row of every fragment merged."""

    def __init__(self, catalog: Catalog, table: memwal.Table) -> None:
        self.catalog = catalog
        self.table = table
        self.outcomes: list[JobResult | Skipped] = []

    def __call__(self, tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        results = [function(task) for task in tasks]
        call = len(self.outcomes)
        with self.table.writer() as writer:
            for fragment in range(FRAGMENTS):
                writer.upsert(numbered(10 * fragment + call, 1, n=1000 + call))
        self.outcomes.append(run_job(self.catalog, JobRequest("flights", "merge", force=True)))
        return results

    def state(self) -> dict[int, int]:
        calls = len(self.outcomes)
        return {
            key: 1000 + key % 10 if key % 10 < calls else key // 10 for key in range(10 * FRAGMENTS)
        }


def test_a_compaction_gets_through_where_each_merge_touches_every_fragment(
    catalog: Catalog, fragmented: memwal.Table
) -> None:
    crowd = Crowd(catalog, fragmented)
    result = run_job(
        catalog, JobRequest("flights", "compact", force=True), runtime=Runtime(run=crowd)
    )

    assert isinstance(result, JobResult)
    *lost, refused = crowd.outcomes
    assert all(isinstance(found, JobResult) and found.commits for found in lost)
    assert isinstance(refused, Skipped)
    assert refused.reason_code is SkipReason.RUNNING
    assert (result.commits, result.warnings) == (1, ())
    assert result.metrics["rewrites_lost"] == len(lost) == 2
    assert result.metrics["fragments_removed"] >= FRAGMENTS
    assert catalog.leases.list() == []
    # What had to wait is merged now.
    merged = run_job(catalog, JobRequest("flights", "merge", force=True))
    assert isinstance(merged, JobResult)
    assert merged.commits == 1
    assert base_state(fragmented) == crowd.state()
    assert len(catalog.runs()) == 2 + len(lost)


def test_a_compaction_that_gets_no_turn_says_so(
    catalog: Catalog, fragmented: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive, "_WAIT", timedelta(seconds=0.2))
    crowd = Crowd(catalog, fragmented)
    with catalog.leases.acquire(job_resource("flights", "index"), holder="build-host:4"):
        result = run_job(
            catalog, JobRequest("flights", "compact", force=True), runtime=Runtime(run=crowd)
        )
    assert isinstance(result, JobResult)
    assert result.commits == 0
    _, no_access = result.warnings
    assert "build-host:4" in no_access
    assert catalog.leases.list() == []
    assert base_state(fragmented) == crowd.state()


def test_a_lost_lease_ends_the_compaction(catalog: Catalog, fragmented: memwal.Table) -> None:
    expected = base_state(fragmented)
    crowd = Crowd(catalog, fragmented)

    def lose(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        results = [function(task) for task in tasks]
        if any(lease.resource.endswith("/exclusive") for lease in catalog.leases.list()):
            catalog.leases.release(job_resource("flights", "merge"))
            return results
        return crowd([], function) or results

    with pytest.raises(LeaseLostError):
        run_job(catalog, JobRequest("flights", "compact", force=True), runtime=Runtime(run=lose))
    assert catalog.leases.list() == []
    assert base_state(fragmented).keys() == expected.keys()
    assert fragmented.base().dataset.count_rows() == len(expected)


def test_exclusive_access_waits_for_who_is_at_work(catalog: Catalog) -> None:
    lease = catalog.leases.acquire(job_resource("flights", "merge"))
    ended = threading.Event()

    def end() -> None:
        ended.set()
        lease.release()

    threading.Timer(0.3, end).start()
    with exclusive_lease(catalog.leases, "flights", indexes=["id_idx"]) as look:
        assert ended.is_set()
        look()
        held = {record.resource for record in catalog.leases.list()}
        assert held == {
            job_resource("flights", "exclusive"),
            job_resource("flights", "merge"),
            job_resource("flights", "index"),
            job_resource("flights", "index", part="id_idx"),
        }
    with pytest.raises(ConflictError):
        look()


@pytest.mark.parametrize("job", ["merge", "index"])
def test_others_stand_back_for_a_while(catalog: Catalog, managed: Managed, job: str) -> None:
    managed()
    # Only the exclusive lease: the others are not kept back by one of their own.
    with catalog.leases.acquire(job_resource("flights", "exclusive"), holder="host-1:17"):
        found = run_job(catalog, JobRequest("flights", job, force=True))
        assert isinstance(found, Skipped)
        assert found.reason_code is SkipReason.RUNNING
        assert "host-1:17" in found.reason
        with pytest.raises(ConflictError):
            wait_for_exclusive(catalog.leases, "flights", wait=timedelta(seconds=0.1))
        assert isinstance(
            run_job(catalog, JobRequest("flights", "snapshot", force=True)), JobResult
        )
    with suppress(ConflictError), exclusive_lease(catalog.leases, "flights", indexes=()):
        # They wait as long as they were told.
        timer = threading.Timer(0.2, catalog.leases.release, [job_resource("flights", "exclusive")])
        timer.start()
        left = wait_for_exclusive(catalog.leases, "flights", wait=timedelta(seconds=240))
        assert left is not None
        assert timedelta(0) < left < timedelta(seconds=240)
        timer.join()
    assert isinstance(run_job(catalog, JobRequest("flights", job, force=True)), JobResult)


def test_nobody_stands_back_from_a_turn_that_ran_out(
    catalog: Catalog, managed: Managed, leave_lease: Callable[..., None]
) -> None:
    """A compaction died with exclusive access: nobody renews its leases, or gives them back."""
    managed()
    for name in ("exclusive", "merge"):
        leave_lease(name, timedelta(seconds=5), holder="dead:1")
    found = run_job(catalog, JobRequest("flights", "merge"))
    assert isinstance(found, Skipped)
    assert "dead:1" in found.reason
    assert isinstance(
        run_job(catalog, JobRequest("flights", "merge", wait=timedelta(seconds=240))), JobResult
    )
    assert wait_for_exclusive(catalog.leases, "nobody", wait=None) is None


def test_results_are_added_up() -> None:
    first = JobResult(
        job="compact",
        table="t",
        version=1,
        tasks=2,
        seconds=1.5,
        metrics={"rewrites_lost": 2, "fragments_removed": 0},
        warnings=("met others",),
    )
    second = JobResult(
        job="compact",
        table="t",
        version=3,
        tasks=1,
        commits=1,
        seconds=0.5,
        metrics={"fragments_removed": 4},
    )
    both = combined_result(first, second)
    assert (both.tasks, both.commits, both.seconds, both.version) == (3, 1, 2.0, 3)
    assert both.metrics == {"rewrites_lost": 2, "fragments_removed": 4}
    assert both.warnings == ()
