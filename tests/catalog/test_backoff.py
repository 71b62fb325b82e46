"""Skipped regions and failed jobs: kept, tried again later and later, and forgotten."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from memwal.catalog import Catalog
from memwal.catalog.backoff import FIRST_DELAY, LONGEST_DELAY, retry_delay
from memwal.catalog.records import STATUS_JOB
from memwal.jobs.job import SkippedRegion

ONE, TWO = str(UUID(int=1)), str(UUID(int=2))


def skipped(region: str, generation: int = 3, reason: str = "gone") -> SkippedRegion:
    return SkippedRegion(region_id=region, generation=generation, reason=reason)


@given(st.integers(1, 10_000))
def test_pauses_double_up_to_six_hours_and_are_uneven(attempts: int) -> None:
    whole = min(FIRST_DELAY * 2 ** min(attempts - 1, 12), LONGEST_DELAY)
    found = [retry_delay(attempts) for _ in range(20)]
    assert all(whole * 0.9 <= one <= whole for one in found)
    assert len(set(found)) > 1


@pytest.mark.few(1)
def test_the_pause_grows_with_each_try(each_url: str) -> None:
    catalog = Catalog(each_url)
    catalog.backoffs.skip_regions("flights", [skipped(ONE), skipped(TWO)])
    pauses = []
    for attempt in range(1, 5):
        (first, second) = catalog.backoffs.skipped_regions("flights")
        assert (first.attempts, second.attempts) == (attempt, 1)
        assert first.waiting
        pauses.append(first.next_try_at - first.since)
        catalog.backoffs.skip_regions("flights", [skipped(ONE, reason=f"try {attempt}")])
    assert pauses == sorted(pauses)
    assert pauses[-1] > timedelta(minutes=7)
    assert first.reason == "try 3"
    # Another generation has not failed before.
    catalog.backoffs.skip_regions("flights", [skipped(ONE, generation=4)])
    (first, _) = catalog.backoffs.skipped_regions("flights")
    assert (first.attempts, first.generation) == (1, 4)
    catalog.close()


def test_retry_and_release(catalog: Catalog) -> None:
    catalog.backoffs.skip_regions("flights", [skipped(ONE), skipped(TWO)])
    catalog.backoffs.skip_regions("trains", [skipped(ONE)])
    (retried,) = catalog.backoffs.retry_regions("flights", [ONE])
    assert (retried.region_id, retried.waiting, retried.attempts) == (ONE, False, 1)
    assert [one.waiting for one in catalog.backoffs.skipped_regions()] == [False, True, True]
    assert len(catalog.backoffs.retry_regions("flights")) == 2
    catalog.backoffs.clear_regions("flights", [ONE, TWO])
    assert [one.table for one in catalog.backoffs.skipped_regions()] == ["trains"]


def test_failed_jobs(each_catalog: Catalog) -> None:
    backoffs = each_catalog.backoffs
    first = backoffs.record_failure("flights", "merge", "no such bucket")
    # Another process met the same.
    assert backoffs.record_failure("flights", "merge", "no such bucket") == first
    with each_catalog.database.writing() as session:
        session.execute(text("UPDATE failed_jobs SET next_try_at = since"))
    second = backoffs.record_failure("flights", "merge", "x" * 5_000)
    assert (first.attempts, second.attempts, first.since) == (1, 2, second.since)
    assert second.next_try_at - second.since > first.next_try_at - first.since
    backoffs.record_failure("flights", STATUS_JOB, "no")
    assert [one.job for one in backoffs.failed_jobs()] == ["merge", STATUS_JOB]
    assert len(second.reason) == 2_000
    assert second.to_dict()["since"] == second.since.isoformat()
    backoffs.clear_failure("flights", "merge")
    assert [one.job for one in backoffs.failed_jobs()] == [STATUS_JOB]


def test_a_change_of_the_table_makes_its_failed_jobs_due(each_catalog: Catalog) -> None:
    backoffs = each_catalog.backoffs
    for name in ("flights", "trains"):
        each_catalog.register(name, uri=f"/lake/{name}.lance")
        backoffs.record_failure(name, STATUS_JOB, "there is no table")
    each_catalog.update("flights", uri="/lake/moved.lance")
    flights, trains = backoffs.failed_jobs()
    assert (flights.waiting, trains.waiting) == (False, True)
    # It is not over, and goes on with the second pause.
    assert flights.attempts == 1
    again = backoffs.record_failure("flights", STATUS_JOB, "there is no table")
    assert (again.attempts, again.since, again.waiting) == (2, flights.since, True)


def test_many_write_the_same_at_once(each_catalog: Catalog) -> None:
    backoffs = each_catalog.backoffs

    def fail(number: int) -> int:
        backoffs.skip_regions("flights", [skipped(ONE)])
        return backoffs.record_failure("flights", "merge", f"{number}").attempts

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fail, range(16))) == [1] * 16
    assert backoffs.skipped_regions()[0].attempts == 16


def test_what_is_not_registered_is_forgotten(catalog: Catalog) -> None:
    catalog.register("flights", uri="/data/f.lance")
    for name in ("flights", "trains"):
        catalog.backoffs.skip_regions(name, [skipped(ONE)])
        catalog.backoffs.record_failure(name, "merge", "no")
    catalog.prune()
    assert [one.table for one in catalog.backoffs.skipped_regions()] == ["flights"]
    assert [one.table for one in catalog.backoffs.failed_jobs()] == ["flights"]
    with catalog.database.reading() as session:
        assert session.execute(text("SELECT count(*) FROM skipped_regions")).scalar_one() == 1


@pytest.mark.parametrize("regions", [[], [TWO]])
def test_nothing_to_retry(catalog: Catalog, regions: list[str]) -> None:
    catalog.backoffs.skip_regions("flights", [skipped(ONE)])
    assert catalog.backoffs.retry_regions("flights", regions) == []
    assert catalog.backoffs.skipped_regions()[0].waiting


def test_reasons_may_hold_what_is_no_text(each_catalog: Catalog) -> None:
    each_catalog.register("t", uri="/t")
    odd, plain = "torn a\0b\ud800", "torn a?b?"
    each_catalog.backoffs.record_failure("t", "merge", odd)
    each_catalog.backoffs.skip_regions("t", [skipped(ONE, reason=odd)])
    each_catalog.finish_run(each_catalog.start_run("t", "merge"), error=odd)
    assert each_catalog.backoffs.failed_jobs()[0].reason == plain
    assert each_catalog.backoffs.skipped_regions("t")[0].reason == plain
    assert each_catalog.runs()[0].error == plain
