"""The face of a table."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from uuid import UUID, uuid4

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.data.tables import REGION, MakeTable, keys, manifest, numbered, rows, state

import memwal
from memwal.errors import InvalidInputError, MemWalError, MissingExtraError, TableSetupError
from memwal.jobs.merge.job import plan_merge, run_merge_task
from memwal.region.manifest_store import RegionManifestStore
from memwal.region.router import bucket_region_id
from memwal.storage.location import TableLocation


def test_tells_what_it_is(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    assert table.primary_key == ("id",)
    assert table.schema.names == ["id", "n", "text"]
    assert table.uri in repr(table)
    assert table.location.uri == table.uri


def test_knows_its_regions_before_they_are_claimed(make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    known = sorted(bucket_region_id(number) for number in range(3))
    assert table.region_ids() == known
    with table.writer() as writer:
        writer.upsert(numbered(0, 50))
    assert table.region_ids() == known


def test_lists_regions_that_somebody_else_made(make_table: MakeTable) -> None:
    table = make_table()
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    other = uuid4()
    made = replace(manifest(table), region_id=other, version=1, flushed=())
    RegionManifestStore(table.location.store, other).commit(made)

    assert set(table.region_ids()) == {REGION, other}
    assert state(table) == {1: 1}


def test_a_whole_life(make_table: MakeTable) -> None:
    table = make_table(buckets=2, maintained_indexes=["id_idx"])
    with table.writer() as writer:
        writer.upsert(numbered(0, 30))
        writer.delete(keys(*range(0, 30, 3)))
        expected = {key: 0 for key in range(30) if key % 3}
        assert state(writer) == expected
        assert state(writer.lookup(keys(1, 3, 5)).to_table()) == {1: 0, 5: 0}
    assert state(table) == expected
    assert table.status().backlog_generations == 2
    assert table.merge().metrics["generations"] == 2
    assert table.build_indexes().warnings == ()
    assert table.build_snapshot().metrics["regions"] == 2
    assert table.collect_garbage().metrics["folders"] == 0
    assert table.checkpoint().warnings == ()
    assert table.status().backlog_generations == 0
    assert state(memwal.open(table.uri)) == expected


def test_jobs_run_where_they_are_told_to(make_table: MakeTable) -> None:
    table = make_table(buckets=4)
    with table.writer() as writer:
        writer.upsert(numbered(0, 40))
    sent = []

    def elsewhere(tasks, function):  # type: ignore[no-untyped-def]
        sent.append(len(tasks))
        found = [pickle.loads(pickle.dumps(task)) for task in tasks]
        ours = pickle.loads(pickle.dumps(function))
        return [pickle.loads(pickle.dumps(ours(task))) for task in found]

    table.merge(max_tasks=2, commit_bytes=100, run=elsewhere)
    table.build_indexes(run=elsewhere)
    table.build_snapshot(run=elsewhere)
    table.collect_garbage(dry_run=False, max_tasks=3, run=elsewhere)

    assert sent == [2, 1, 3]
    assert state(table) == dict.fromkeys(range(40), 0)


def test_tasks_can_be_sent_to_other_processes(make_table: MakeTable) -> None:
    table = make_table()
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    (task,) = pickle.loads(pickle.dumps(plan_merge(table.location)))
    assert pickle.loads(pickle.dumps(run_merge_task(task))).generations == 1


def test_two_handles_of_a_table_see_the_same(make_table: MakeTable) -> None:
    first = make_table()
    second = memwal.open(first.uri)
    with first.writer() as writer:
        writer.upsert(rows({1: 1}))
        assert state(second) == {}
        assert state(first) == {}
    assert state(second) == state(first) == {1: 1}


@pytest.mark.parametrize("seen", ["writer", "table"])
def test_wrong_questions_are_refused(make_table: MakeTable, seen: str) -> None:
    table = make_table()
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        reads = writer if seen == "writer" else table
        for ask in (
            lambda: reads.scan(columns=["nope"]).to_table(),
            lambda: reads.scan(limit=-1),
            lambda: reads.lookup(pa.array(["1"])).to_table(),
            lambda: reads.lookup(keys(1), columns=["nope"]).to_table(),
        ):
            with pytest.raises(InvalidInputError):
                ask()


def test_every_error_is_one_of_ours() -> None:
    kinds = [
        kind
        for kind in vars(memwal.errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(kinds) > 10
    assert all(issubclass(kind, MemWalError) for kind in kinds)
    assert all(kind("text").args == ("text",) for kind in kinds)


def test_columns_that_were_added_later(make_table: MakeTable) -> None:
    """Rows from before have no value in them, wherever they are."""
    table = make_table()
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    writer.flush()
    table.merge()
    writer.upsert(rows({2: 2}))
    writer.flush()
    writer.upsert(rows({3: 3}))
    table.base().dataset.add_columns(pa.field("more", pa.int32()))

    assert {row["id"]: row["more"] for row in writer.scan().to_table().to_pylist()} == {
        1: None,
        2: None,
        3: None,
    }
    writer.abort()
    with table.writer() as again:
        data = rows({4: 4}).append_column("more", pa.array([44], pa.int32()))
        again.upsert(data)
    expected = {1: None, 2: None, 3: None, 4: 44}
    found = {row["id"]: row["more"] for row in table.scan().to_table().to_pylist()}
    assert found == expected
    assert table.merge().warnings == ()
    found = {row["id"]: row["more"] for row in table.scan().to_table().to_pylist()}
    assert found == expected
    assert isinstance(table.region_ids()[0], UUID)


def test_a_branch_is_refused(make_table: MakeTable) -> None:
    table = make_table()
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
    table.merge()
    side = table.base().dataset.create_branch("side")

    with pytest.raises(TableSetupError, match="side"):
        memwal.open(side.uri)
    with pytest.raises(TableSetupError, match="side"):
        memwal.Table(TableLocation(side.uri, {})).writer()
    assert state(memwal.open(table.uri)) == {1: 1}


def test_a_version_that_is_not_stored(table: memwal.Table) -> None:
    stored = table.base().version
    with pytest.raises(TableSetupError, match=f"9999.*{stored}"):
        table.at(9999).scan().to_table()


def test_pandas_may_be_absent(table: memwal.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError):
        table.scan().to_pandas()


def test_steps_and_deletes_take_streams_and_series(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2, 3: 3, 4: 4}))
        stream = pa.table({"id": [1]}).to_reader()
        writer.apply(source="s", version=1, deletes=stream)
        writer.delete(pd.Series([2]))
        writer.delete(pl.Series("any name", [3]))
        assert state(writer) == {4: 4}
        assert writer.lookup(pd.Series([4, 3])).count_rows() == 1
