"""The face of a table."""

import pickle
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import lance
import lancedb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.data.tables import (
    REGION,
    MakeTable,
    keys,
    manifest,
    numbered,
    rows,
    state,
)

import memwal
from memwal.errors import (
    ArgumentTypeError,
    InvalidInputError,
    RegionFencedError,
    TableSetupError,
)
from memwal.inputs.addresses import location_of
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
    table.upsert(numbered(0, 50))
    assert table.region_ids() == known


def test_lists_regions_that_somebody_else_made(make_table: MakeTable) -> None:
    table = make_table()
    table.upsert(rows({1: 1}))
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
    table.upsert(numbered(0, 40))
    sent = []

    def elsewhere(tasks, function):  # type: ignore[no-untyped-def]
        sent.append(len(tasks))
        found = [pickle.loads(pickle.dumps(task)) for task in tasks]
        ours = pickle.loads(pickle.dumps(function))
        return [pickle.loads(pickle.dumps(ours(task))) for task in found]

    table.merge(commit_bytes=100, run=elsewhere)
    table.build_indexes(run=elsewhere)
    table.build_snapshot(run=elsewhere)
    table.collect_garbage(dry_run=False, max_tasks=3, run=elsewhere)

    assert sent == [1, 1, 3]
    assert state(table) == dict.fromkeys(range(40), 0)


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
    table.upsert(rows({1: 1}))
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


def test_steps_and_deletes_take_streams_and_series(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2, 3: 3, 4: 4}))
        stream = pa.table({"id": [1]}).to_reader()
        writer.apply(source="s", version=1, deletes=stream)
        writer.delete(pd.Series([2]))
        writer.delete(pl.Series("any name", [3]))
        assert state(writer) == {4: 4}
        assert writer.lookup(pd.Series([4, 3])).count_rows() == 1


class TestWithoutAWriter:
    """One call opens a writer, writes, flushes and closes."""

    def test_rows_are_seen_by_every_reader_afterwards(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        table.upsert({"id": 1, "n": 1, "text": "1=1"})
        table.upsert([{"id": 2, "n": 2, "text": "2=2"}, {"id": 3, "n": 3, "text": "3=3"}])
        table.upsert({"id": [3], "n": [4], "text": ["3=4"]})
        table.upsert({"id": 2, "text": "2=2"}, partial=True)
        table.delete(1)
        assert state(memwal.open(table.uri)) == {2: 2, 3: 4}
        assert table.status().unflushed_wal_entries == 0

    def test_rows_that_do_not_fit_change_nothing(self, table: memwal.Table) -> None:
        for data in ({"id": 1}, [{"id": 1, "n": "x", "text": None}], 7):
            with pytest.raises(InvalidInputError):
                table.upsert(data)
        with pytest.raises(ArgumentTypeError):
            table.delete()
        assert table.status().regions == ()

    def test_a_writer_that_is_open_is_fenced(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1}))
            table.upsert(rows({2: 2}))
            with pytest.raises(RegionFencedError):
                writer.upsert(rows({3: 3}))
            writer.abort()
            assert state(table) == {1: 1, 2: 2}

    def test_what_a_table_tells(self, make_table: MakeTable) -> None:
        table = make_table(maintained_indexes=["id_idx"])
        version = table.version
        table.upsert(numbered(0, 10, n=3))
        table.merge()
        assert table.version > version
        assert table.count_rows() == 10
        assert table.count_rows(filter="id < 4") == 4
        assert table.head().num_rows == 5
        assert table.head(3).num_rows == 3
        assert table.to_arrow().equals(table.scan().to_table())
        assert table.to_polars()["n"].sum() == 30
        assert table.to_pandas()["n"].sum() == 30
        (index,) = table.list_indices()
        assert (index.name, index.columns, index.maintained) == ("id_idx", ("id",), True)
        table.base().dataset.create_scalar_index("n", "BTREE", name="n_idx")
        assert [(i.name, i.maintained) for i in table.list_indices()] == [
            ("id_idx", True),
            ("n_idx", False),
        ]


class TestDeleteByCondition:
    def test_deletes_what_passes_wherever_it_is(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        with table.writer() as writer:
            writer.upsert(numbered(0, 10, n=1))
            writer.flush()
            table.merge()
            writer.upsert(numbered(10, 10, n=1))
            writer.flush()
            writer.upsert(numbered(20, 10, n=1))
            writer.upsert(numbered(0, 5, n=2))
            writer.delete(where="n = 1 and id % 2 = 0")
            expected = {n: 2 if n < 5 else 1 for n in range(30) if n < 5 or n % 2}
            assert state(writer) == expected
        assert state(table) == expected
        table.delete(where="n = 1")
        assert state(table) == dict.fromkeys(range(5), 2)
        table.delete(where="n = 17")
        assert state(table) == dict.fromkeys(range(5), 2)

    def test_sees_writes_that_were_not_waited_for(self, table: memwal.Table) -> None:
        for durable in (True, False):
            options = memwal.WriterOptions(durable=durable, buffer_interval=3600.0)
            with table.writer(options=options) as writer:
                for key in range(20):
                    writer.upsert(rows({key: 1}), wait=False)
                writer.delete(where="n = 1")
            assert state(table) == {}

    def test_of_a_table_that_is_divided_by_another_column(self, make_table: MakeTable) -> None:
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                ("at", pa.timestamp("us")),
                ("n", pa.int8()),
            ]
        )
        spec = memwal.RegionSpec.year("at", immutable=True)
        table = make_table(schema, region_spec=spec)
        for key, year in ((1, 2020), (2, 2021), (3, 2021)):
            table.upsert({"id": key, "at": datetime(year, 5, 5), "n": key})
        table.delete(where="n = 2")
        assert table.scan(columns=["id"]).to_polars()["id"].sort().to_list() == [1, 3]
        table.delete({"id": 1, "at": date(2020, 5, 5)})
        assert table.scan(columns=["id"]).to_pylist() == [{"id": 3}]

    def test_a_region_that_may_not_be_claimed_keeps_all_in_place(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=4)
        table.upsert(numbered(0, 40))
        with table.writer(region_ids=table.region_ids()[:1]) as writer:
            with pytest.raises(InvalidInputError):
                writer.delete(where="n = 0")
            assert state(writer) == dict.fromkeys(range(40), 0)

    def test_wrong_conditions(self, table: memwal.Table) -> None:
        table.upsert(rows({1: 1}))
        with table.writer() as writer:
            for wrong in ("nope = 1", "n = ", "n", ""):
                with pytest.raises(InvalidInputError):
                    writer.delete(where=wrong)
            with pytest.raises(ArgumentTypeError):
                writer.delete(1, where="n = 1")
            with pytest.raises(ArgumentTypeError):
                writer.delete()
            assert state(writer) == {1: 1}


def test_keys_and_steps_in_the_forms_of_callers(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    with table.writer() as writer:
        writer.apply(
            source="s", version=1, upserts=[{"id": n, "n": n, "text": f"{n}={n}"} for n in range(6)]
        )
        writer.apply(
            source="s", version=2, upserts={"id": 9, "n": 9, "text": "9=9"}, deletes=[0, 1]
        )
        writer.apply(source="s", version=3, deletes=5)
        for wrong in ([1.5], "x", {"n": 1}, object()):
            with pytest.raises(InvalidInputError):
                writer.apply(source="s", version=4, deletes=wrong)
        assert state(writer) == {2: 2, 3: 3, 4: 4, 9: 9}
        assert state(writer.lookup([2, 3]).to_table()) == {2: 2, 3: 3}


def test_a_bad_row_loses_nothing(make_table: MakeTable) -> None:
    """Nothing of a call is written if one of its values does not fit, in whatever region it is."""
    table = make_table(buckets=4)
    with table.writer() as writer:
        writer.upsert(numbered(0, 20))
        entries = writer.stats().totals.entries
        for bad in (2**70, 1.5, "x", [1], True):
            data = [{"id": n, "n": n, "text": f"{n}={n}"} for n in range(20)]
            data[13]["n"] = bad
            with pytest.raises(InvalidInputError, match=r"\bn\b.*\brow 13\b"):
                writer.upsert(data)
            with pytest.raises(InvalidInputError, match=r"\brow 1\b"):
                writer.delete([3, bad])
        assert writer.stats().totals.entries == entries
        assert state(writer) == dict.fromkeys(range(20), 0)
    assert state(table) == dict.fromkeys(range(20), 0)


class TestOpen:
    def test_takes_a_path_or_a_table_that_is_open(self, tmp_path: Path) -> None:
        uri = tmp_path / "t.lance"
        made = memwal.create(uri, rows({}).schema, primary_key=["id"], region_spec="bucket:id:2")
        made.upsert(rows({1: 1}))
        for given in (
            str(uri),
            uri,
            lance.dataset(str(uri)),
            lance.dataset(str(uri), version=1),
            lancedb.connect(tmp_path).open_table("t"),
        ):
            opened = memwal.open(given)
            assert opened.uri == str(uri)
            assert state(opened) == {1: 1}

    def test_a_branch_that_is_open_is_refused(self, tmp_path: Path) -> None:
        dataset = lance.write_dataset(rows({1: 1}), tmp_path / "t.lance")
        branch = dataset.create_branch("side")
        with pytest.raises(TableSetupError, match="side"):
            memwal.open(branch)
        assert memwal.open(dataset).base().version == dataset.version

    def test_storage_options_go_along(self) -> None:
        options = {"timeout": "7s", "client_max_retries": "1"}
        dataset = lance.write_dataset(rows({}), "memory://options", storage_options=options)
        location = location_of(dataset, {"client_max_retries": "2"})
        assert location.storage_options == {"timeout": "7s", "client_max_retries": "2"}

    @pytest.mark.parametrize(
        "given", [None, 1, b"x", ["t.lance"], rows({})], ids=lambda given: type(given).__name__
    )
    def test_nothing_else_is_a_table(self, given: Any) -> None:
        with pytest.raises(ArgumentTypeError):
            memwal.open(given)
        with pytest.raises(ArgumentTypeError):
            memwal.enable(given, region_spec=None)


def test_durations_are_numbers_or_timedeltas(table: memwal.Table) -> None:
    hour = timedelta(hours=1)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}), wait=False).wait(hour)
        writer.flush(timeout=hour)
        writer.close(timeout=hour)
    table.checkpoint(timeout_seconds=hour)
    table.build_snapshot()
    for age in (3600, 3600.0, hour):
        assert table.at_most(age).count_rows() == 1
        assert table.at_most(age).lookup(1).count_rows() == 1
    assert (
        table.collect_garbage(grace_seconds=hour).metrics
        == table.collect_garbage(grace_seconds=3600).metrics
    )
    for wrong in (-1, timedelta(seconds=-1), 1e300, float("inf")):
        with pytest.raises(InvalidInputError):
            table.at_most(wrong)
    with pytest.raises(InvalidInputError):
        table.collect_garbage(grace_seconds=-hour)
