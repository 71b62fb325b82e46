"""Merging and indexing until what had been flushed at a moment is in the base table."""

import itertools
import shutil
from typing import Any

import lance
import pytest
from support.data.tables import (
    REGION,
    MakeTable,
    base_state,
    folder,
    manifest,
    merged,
    numbered,
    rows,
    state,
)
from support.stores.faulty_store import FaultyStores

import memwal
from memwal import WriterOptions
from memwal.base_table.region_marks import UNMARKED, read_mark, write_marks
from memwal.errors import ConflictError, RegionFencedError, StoreFullError, TableSetupError
from memwal.format.paths import generation_dir, region_dir, region_marks_dir
from memwal.jobs.options import CheckpointOptions
from memwal.jobs.progress import JobProgress, Unit
from memwal.jobs.table import checkpoint as checkpointing
from memwal.lsm.indexes.catchup import caught_up
from memwal.region.manifest_store import discover_regions


def test_merges_and_indexes_all_that_is_flushed(make_table: MakeTable) -> None:
    table = make_table(buckets=2, maintained_indexes=["id_idx"])
    writer = table.writer()
    for turn in range(3):
        writer.upsert(numbered(0, 30, n=turn))
        writer.flush()
    writer.upsert(rows({1: 99}))

    result = table.checkpoint(flush=False)

    writer.abort()
    assert base_state(table) == dict.fromkeys(range(30), 2)
    base = table.base()
    assert caught_up(base, "id_idx") == base.details.merged
    assert len(base.details.merged) == 2
    # Of the row that its writer has not flushed.
    assert (len(result.warnings), result.metrics["unflushed_regions"]) == (1, 1)
    assert result.metrics["generations"] == 6
    assert result.version == base.version


def test_writes_marks_that_another_merger_did_not_write(table: memwal.Table) -> None:
    """It recorded the progress, and is paused, or has died."""
    table.upsert(rows({1: 1}))
    table.merge()
    shutil.rmtree(folder(table) / region_marks_dir(REGION))
    write_marks(table.location.store, {REGION: UNMARKED})

    table.checkpoint()

    mark = read_mark(table.location.store, REGION)
    assert mark is not None
    assert mark.merged == merged(table) == 1


def test_of_a_table_without_a_backlog_does_nothing(table: memwal.Table) -> None:
    version = table.base().version
    assert table.checkpoint().commits == 0
    table.upsert(rows({1: 1}))
    table.merge()
    version = table.base().version
    result = table.checkpoint()
    assert (result.commits, result.version) == (0, version)


@pytest.mark.parametrize("idle", [1, checkpointing._MAX_IDLE_MERGES - 1])
def test_goes_on_after_rounds_in_which_others_came_first(table: memwal.Table, idle: int) -> None:
    with table.writer() as writer:
        for key in range(3):
            writer.upsert(rows({key: key}))
            writer.flush()
    calls: list[int] = []

    def run(tasks: Any, function: Any) -> list[Any]:
        calls.append(len(tasks))
        return [function(task) for task in tasks] if len(calls) > idle else []

    checkpointing.checkpoint(table.location, CheckpointOptions(run=run))

    assert merged(table) == 3
    assert len(calls) == idle + 1


def test_of_a_region_that_cannot_be_read_completes_the_others(make_table: MakeTable) -> None:
    """Though each commit has room for one generation, and its own come first."""
    table = make_table(buckets=2)
    with table.writer() as writer:
        for turn in range(3):
            writer.upsert(numbered(0, 30, n=turn))
            writer.flush()
    bad, good = table.region_ids()
    shutil.rmtree(folder(table) / generation_dir(bad, manifest(table, bad).flushed[0].path))

    with pytest.raises(ConflictError, match=str(bad)):
        table.checkpoint(commit_bytes=1)

    assert merged(table, good) == 3
    assert merged(table, bad) == 0


def test_leaves_what_is_flushed_later(table: memwal.Table) -> None:
    """It ends though a producer never does."""
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    writer.flush()
    key = [1]

    def run(tasks: Any, function: Any) -> list[Any]:
        key[0] += 1
        writer.upsert(rows({key[0]: key[0]}))
        writer.flush()
        return [function(task) for task in tasks]

    table.checkpoint(run=run)

    writer.abort()
    assert merged(table) >= 1
    assert state(table) == {n: n for n in range(1, key[0] + 1)}


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("by", ["claim", "unset"])
def test_an_open_writer_was_refused(table: memwal.Table, by: str, durable: bool) -> None:
    stale = table.writer(options=WriterOptions(durable=durable))
    stale.upsert(rows({1: 1}), wait=True)
    if by == "unset":
        lance.dataset(table.uri).drop_index("__lance_mem_wal")
        error: type[memwal.MemWalError] = TableSetupError
        with pytest.raises(error):
            stale.upsert(rows({2: 2}), wait=True)
        table = memwal.enable(table.uri, region_spec="unsharded")
    else:
        error = RegionFencedError
    with table.writer() as writer:
        writer.upsert(rows({3: 3}))
        if durable:
            table.checkpoint()
            assert base_state(table) == {1: 1, 3: 3}
        else:
            with pytest.raises(error):
                table.checkpoint()
    stale.abort()
    table.checkpoint()
    assert base_state(table) == {1: 1, 3: 3}


def test_rows_of_a_refused_writer_are_counted_as_unflushed(table: memwal.Table) -> None:
    stale = table.writer()
    stale.upsert(rows({1: 1}))
    lance.dataset(table.uri).drop_index("__lance_mem_wal")
    with pytest.raises(TableSetupError):
        stale.upsert(rows({2: 2}))
    table = memwal.enable(table.uri, region_spec="unsharded")
    result = table.checkpoint()
    assert (len(result.warnings), result.metrics["unflushed_regions"]) == (1, 1)
    table.recover(min_age_seconds=0)
    assert not table.checkpoint().warnings
    assert base_state(table) == {1: 1}
    stale.abort()


def test_a_flush_that_fails_in_another_region_fails_the_checkpoint(
    faults: FaultyStores, make_table: MakeTable
) -> None:
    table = make_table(buckets=2)
    store = faults.of(table.location)
    stale = table.writer()
    stale.upsert(numbered(0, 10))
    first, second = sorted(discover_regions(table.location.store))
    with table.writer(region_ids=[first]) as writer:
        writer.claim()
        store.fail("sync", f"{region_dir(second)}/*_gen_*", StoreFullError("full"), times=9)
        with pytest.raises(StoreFullError):
            table.checkpoint()
    stale.abort()


def test_flushes_the_writers_of_this_process(table: memwal.Table, make_table: MakeTable) -> None:
    other = make_table()
    with table.writer() as writer, other.writer() as elsewhere:
        writer.upsert(rows({1: 1}))
        elsewhere.upsert(rows({2: 2}))

        memwal.open(table.uri).checkpoint()

        assert base_state(table) == {1: 1}
        assert elsewhere.stats().regions[0].memtable_rows == 1
        writer.upsert(rows({1: 11}))
    writer.close()
    table.checkpoint()
    assert base_state(table) == {1: 11}


def test_tells_how_far_it_is(table: memwal.Table) -> None:
    with table.writer() as writer:
        for key in range(3):
            writer.upsert(rows({key: key}))
            writer.flush()
    told: list[JobProgress] = []

    table.checkpoint(commit_bytes=1, progress=told.append)

    merging = [step for step in told if step.step == "merging"]
    assert [step.done for step in merging] == [0, 1, 2, 3]
    assert {(step.total, step.unit) for step in merging} == {(3, Unit.GENERATIONS)}
    assert told[0].step == "recovering"


def test_ends_at_its_deadline_and_can_go_on(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.writer() as writer:
        for key in range(3):
            writer.upsert(rows({key: key}))
            writer.flush()
    clock = itertools.count(1_000)
    with monkeypatch.context() as patched:
        patched.setattr(checkpointing.time, "monotonic", lambda: float(next(clock)))
        with pytest.raises(ConflictError):
            table.checkpoint(commit_bytes=1, timeout_seconds=5)
    assert 0 < merged(table) < 3
    table.checkpoint()
    assert merged(table) == 3
