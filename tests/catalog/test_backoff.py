"""Held regions and tables in trouble: kept, tried again later and later, and forgotten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from memwal.catalog import Catalog
from memwal.catalog.backoff import FIRST_PAUSE, LONGEST_PAUSE, LOOK, pause
from memwal.jobs.job import SkippedRegion

ONE, TWO = str(UUID(int=1)), str(UUID(int=2))


def held(region: str, generation: int = 3, reason: str = "gone") -> SkippedRegion:
    return SkippedRegion(region_id=region, generation=generation, reason=reason)


@given(st.integers(1, 10_000))
def test_pauses_double_up_to_six_hours_and_are_uneven(attempts: int) -> None:
    whole = min(FIRST_PAUSE * 2 ** min(attempts - 1, 12), LONGEST_PAUSE)
    found = [pause(attempts) for _ in range(20)]
    assert all(whole * 0.9 <= one <= whole for one in found)
    assert len(set(found)) > 1


def test_the_pause_grows_with_each_try(each_url: str) -> None:
    catalog = Catalog(each_url)
    catalog.setbacks.hold("flights", [held(ONE), held(TWO)])
    pauses = []
    for attempt in range(1, 5):
        (first, second) = catalog.setbacks.held("flights")
        assert (first.attempts, second.attempts) == (attempt, 1)
        assert first.waiting
        pauses.append(first.next_try_at - first.since)
        catalog.setbacks.hold("flights", [held(ONE, reason=f"try {attempt}")])
    assert pauses == sorted(pauses)
    assert pauses[-1] > timedelta(minutes=7)
    assert first.reason == "try 3"
    # Another generation has not failed before.
    catalog.setbacks.hold("flights", [held(ONE, generation=4)])
    (first, _) = catalog.setbacks.held("flights")
    assert (first.attempts, first.generation) == (1, 4)
    catalog.close()


def test_retry_and_release(catalog: Catalog) -> None:
    catalog.setbacks.hold("flights", [held(ONE), held(TWO)])
    catalog.setbacks.hold("trains", [held(ONE)])
    (retried,) = catalog.setbacks.retry("flights", [ONE])
    assert (retried.region_id, retried.waiting, retried.attempts) == (ONE, False, 1)
    assert [one.waiting for one in catalog.setbacks.held()] == [False, True, True]
    assert len(catalog.setbacks.retry("flights")) == 2
    catalog.setbacks.release("flights", [ONE, TWO])
    assert [one.table for one in catalog.setbacks.held()] == ["trains"]


def test_troubles(each_catalog: Catalog) -> None:
    setbacks = each_catalog.setbacks
    first = setbacks.failed("flights", "merge", "no such bucket")
    # Another process met the same.
    assert setbacks.failed("flights", "merge", "no such bucket") == first
    with each_catalog.database.writing() as session:
        session.execute(text("UPDATE job_troubles SET next_try_at = since"))
    second = setbacks.failed("flights", "merge", "x" * 5_000)
    assert (first.attempts, second.attempts, first.since) == (1, 2, second.since)
    assert second.next_try_at - second.since > first.next_try_at - first.since
    setbacks.failed("flights", LOOK, "no")
    assert [one.job for one in setbacks.troubles()] == [LOOK, "merge"]
    assert len(second.reason) == 2_000
    assert second.to_dict()["since"] == second.since.isoformat()
    setbacks.recovered("flights", "merge")
    assert [one.job for one in setbacks.troubles()] == [LOOK]


def test_many_write_the_same_at_once(each_catalog: Catalog) -> None:
    setbacks = each_catalog.setbacks

    def fail(number: int) -> int:
        setbacks.hold("flights", [held(ONE)])
        return setbacks.failed("flights", "merge", f"{number}").attempts

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fail, range(16))) == [1] * 16
    assert setbacks.held()[0].attempts == 16


def test_what_is_not_registered_is_forgotten(catalog: Catalog) -> None:
    catalog.register("flights", uri="/data/f.lance")
    for name in ("flights", "trains"):
        catalog.setbacks.hold(name, [held(ONE)])
        catalog.setbacks.failed(name, "merge", "no")
    catalog.prune()
    assert [one.table for one in catalog.setbacks.held()] == ["flights"]
    assert [one.table for one in catalog.setbacks.troubles()] == ["flights"]
    with catalog.database.reading() as session:
        assert session.execute(text("SELECT count(*) FROM held_regions")).scalar_one() == 1


@pytest.mark.parametrize("regions", [[], [TWO]])
def test_nothing_to_retry(catalog: Catalog, regions: list[str]) -> None:
    catalog.setbacks.hold("flights", [held(ONE)])
    assert catalog.setbacks.retry("flights", regions) == []
    assert catalog.setbacks.held()[0].waiting


def test_reasons_may_hold_what_is_no_text(each_catalog: Catalog) -> None:
    each_catalog.register("t", uri="/t")
    odd, plain = "torn a\0b\ud800", "torn a?b?"
    each_catalog.setbacks.failed("t", "merge", odd)
    each_catalog.setbacks.hold("t", [held(ONE, reason=odd)])
    each_catalog.finish_run(each_catalog.start_run("t", "merge"), error=odd)
    assert each_catalog.setbacks.troubles()[0].reason == plain
    assert each_catalog.setbacks.held("t")[0].reason == plain
    assert each_catalog.runs()[0].error == plain
