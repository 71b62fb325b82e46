from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from memwal.catalog import Catalog, RunState
from memwal.errors import InvalidInputError
from memwal.maintenance.results import JobResult
from memwal.maintenance.status import RegionBacklog, TableStatus

RESULT = JobResult(job="merge", table="/data/a.lance", version=7, commits=1, figures={"rows": 3})


def status(*, generations: int, wal: int) -> TableStatus:
    regions = tuple(
        RegionBacklog(
            region_id=f"00000000-0000-0000-0000-00000000000{number}",
            writer_epoch=1,
            sealed=False,
            current_generation=5,
            merged_generation=0,
            backlog_generations=generations,
            backlog_rows=10 * generations,
            backlog_bytes=5_000_000_000 * generations,
            oldest_backlog_seconds=1.0,
            unflushed_wal_entries=wal,
            retained_generations=0,
        )
        for number in (1, 2)
    )
    return TableStatus(
        uri="/data/a.lance", version=7, regions=regions, indexes=(), snapshot_age_seconds=None
    )


def test_a_run_that_ends_well_keeps_its_result(catalog: Catalog) -> None:
    with catalog.record_run("a", "merge", external_id="x") as run:
        assert catalog.runs()[0].state is RunState.RUNNING
        run.finish(RESULT)
    (kept,) = catalog.runs(table="a")
    assert kept.state is RunState.SUCCEEDED
    assert kept.result == RESULT.to_dict() | {"problems": []}
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
        "KeyboardInterrupt: stop",
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
    assert catalog.backlog_history("a") == samples
    assert catalog.backlog_history("a", limit=2) == samples[1:]
    assert [sample.generations for sample in samples] == [2, 4, 6]
    assert (samples[2].rows, samples[2].bytes, samples[2].wal_entries) == (60, 30_000_000_000, 6)
    assert catalog.backlog_history("a", since=datetime.now(UTC) + timedelta(hours=1)) == []
    assert catalog.backlog_history("a", since=samples[1].at)[0] == samples[1]
