"""Work beside the jobs of the policy: leased in place of those, and recorded."""

from collections.abc import Callable
from datetime import timedelta

import pytest

import memwal
from memwal.catalog import Catalog, RunState
from memwal.catalog.leases import job_resource
from memwal.errors import LeaseLostError, ObjectNotFoundError
from memwal.fleet import JobRequest, Runtime, Skipped, SkipReason, run_job, run_recorded
from memwal.jobs.job import Guard, JobResult

Managed = Callable[..., memwal.Table]
RESULT = JobResult(job="checkpoint", table="t", version=3)


def test_it_is_recorded_and_keeps_the_jobs_away_that_it_stands_for(
    catalog: Catalog, managed: Managed
) -> None:
    managed()

    def perform(guard: Guard) -> JobResult:
        guard()
        found = run_job(catalog, JobRequest("flights", "merge"))
        assert isinstance(found, Skipped)
        assert found.reason_code is SkipReason.RUNNING
        assert isinstance(run_job(catalog, JobRequest("flights", "snapshot")), JobResult)
        return RESULT

    done = run_recorded(
        catalog,
        "flights",
        "checkpoint",
        perform,
        instead_of=("merge", "index"),
        runtime=Runtime(external_id="x"),
    )

    assert done is RESULT
    latest = next(run for run in catalog.runs() if run.job == "checkpoint")
    assert (latest.state, latest.external_id, latest.version_after) == (
        RunState.SUCCEEDED,
        "x",
        3,
    )
    assert catalog.leases.list() == []


def test_it_waits_for_those_jobs_and_then_says_so(catalog: Catalog, managed: Managed) -> None:
    managed()
    with catalog.leases.acquire(job_resource("flights", "index")):
        found = run_recorded(
            catalog,
            "flights",
            "checkpoint",
            lambda guard: pytest.fail("somebody else is at work"),
            instead_of=("merge", "index"),
            wait=timedelta(seconds=0.1),
        )
    assert isinstance(found, Skipped)
    assert found.reason_code is SkipReason.RUNNING
    assert (catalog.runs(), catalog.leases.list()) == ([], [])


def test_a_lost_lease_is_heard_of_at_the_next_look(catalog: Catalog, managed: Managed) -> None:
    managed()

    def perform(guard: Guard) -> JobResult:
        catalog.leases.release(job_resource("flights", "merge"))
        guard()
        return RESULT

    with pytest.raises(LeaseLostError, match="flights/merge"):
        run_recorded(catalog, "flights", "checkpoint", perform, instead_of=("merge",))
    assert catalog.runs()[0].state is RunState.FAILED


def test_a_caller_may_want_it_to_stop(catalog: Catalog, managed: Managed) -> None:
    managed()

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run_recorded(
            catalog, "flights", "verify", lambda guard: RESULT, runtime=Runtime(guard=stop)
        )


def test_a_table_that_is_not_registered(catalog: Catalog) -> None:
    with pytest.raises(ObjectNotFoundError):
        run_recorded(catalog, "none", "verify", lambda guard: RESULT)
