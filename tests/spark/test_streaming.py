"""Streams into tables: each batch once, whatever Spark repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.data.changes import CHANGES, batch, change
from support.data.tables import SCHEMA, MakeTable, generations, rows, state
from support.stores.faulty_store import skip_waits

import memwal
import memwal.spark
from memwal.errors import InvalidInputError, SourceRestartedError, TableSetupError
from memwal.format.wal_layout import NewestStep
from memwal.lsm.wal.applied_steps import Step
from memwal.spark import streaming
from memwal.spark.streaming import (
    BatchNumbering,
    BatchWrite,
    OnRestart,
    number_batches,
)

SOURCE = "query"


def sink(table: memwal.Table, **options: Any) -> streaming.BatchSink:
    given = {"op_column": "op", "sequence_by": "at", "source": SOURCE} | options
    return memwal.spark.foreach_batch(table.uri, **given)


def task(table: memwal.Table, version: int, **options: Any) -> BatchWrite:
    """What an executor does, without Spark."""
    return BatchWrite(sink(table, **options), Step(SOURCE, version))


def outcome(write: BatchWrite, rows: pa.Table) -> tuple[int, int]:
    (told,) = list(write(rows.to_batches()))
    return told["written"][0].as_py(), told["skipped"][0].as_py()


class TestTask:
    def test_comes_twice_and_is_written_once(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        table.upsert(rows({9: 9}))
        changes = batch(*(change(key, 1) for key in range(8)), change(9, 0, op="d"))
        assert outcome(task(table, 0), changes) == (3, 0)
        assert state(table) == dict.fromkeys(range(8), 1)
        with table.writer() as producer:
            producer.upsert(rows({1: 7, 9: 7}))
            assert outcome(task(table, 0), changes) == (0, 3)
            producer.upsert(rows({2: 7}))  # not fenced: nothing was there to write
        assert state(table) == {**dict.fromkeys(range(8), 1), 1: 7, 2: 7, 9: 7}

    def test_an_older_batch_of_a_driver_that_was_paused(self, table: memwal.Table) -> None:
        assert outcome(task(table, 5), batch(change(1, 5))) == (1, 0)
        assert outcome(task(table, 4), batch(change(1, 4))) == (0, 1)
        assert state(table) == {1: 5}

    def test_what_is_written_and_not_flushed_is_flushed_when_it_comes_again(
        self, table: memwal.Table
    ) -> None:
        writer = table.writer()
        writer.apply(upserts=rows({1: 1}), source=SOURCE, version=0)
        writer.abort()
        assert state(table) == {}
        assert outcome(task(table, 0), batch(change(1, 1))) == (0, 1)
        assert state(table) == {1: 1}
        assert len(generations(table)) == 1

    def test_two_attempts_at_once(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second one claims the region while the first one is about to write."""
        real = memwal.Table.writer
        others = []

        def claimed_by_another(self: memwal.Table, **options: Any) -> Any:
            writer = real(self, **options)
            if not others:
                writer.claim()
                others.append(True)
                others.append(outcome(task(table, 0), batch(change(1, 1))))
            return writer

        monkeypatch.setattr(memwal.Table, "writer", claimed_by_another)
        assert outcome(task(table, 0), batch(change(1, 1))) == (0, 1)
        assert others == [True, (1, 0)]
        assert state(table) == {1: 1}

    def test_gives_up_after_some_tries(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from memwal.errors import RegionFencedError

        tries = []

        def fenced(self: memwal.Table, **options: Any) -> Any:
            tries.append(1)
            raise RegionFencedError("again")

        monkeypatch.setattr(memwal.Table, "writer", fenced)
        skip_waits(monkeypatch, streaming)
        with pytest.raises(RegionFencedError):
            list(task(table, 0)(batch(change(1, 1)).to_batches()))
        assert len(tries) == 6

    def test_deletes_of_rows_of_which_only_the_key_is_given(self, make_table: MakeTable) -> None:
        schema = pa.schema([*SCHEMA, pa.field("must", pa.string(), nullable=False)])
        table = make_table(schema, buckets=2)
        full = batch(change(1, 1), change(2, 2)).append_column("must", pa.array(["a", "b"]))
        outcome(task(table, 0), full)
        gone = batch((1, None, None, "d", 1)).append_column("must", pa.nulls(1, pa.string()))
        outcome(task(table, 1), gone)
        assert table.scan().to_table()["id"].to_pylist() == [2]


class TestNumbering:
    """What the first batch of a query decides about its numbers."""

    def decide(
        self, batch: int, *recorded: NewestStep, on_restart: OnRestart | None = None
    ) -> BatchNumbering:
        return number_batches(SOURCE, "own", recorded, batch, on_restart=on_restart)

    def test_a_source_without_batches_and_one_that_goes_on(self) -> None:
        begun = BatchNumbering(SOURCE, "own")
        assert self.decide(0) == begun
        assert self.decide(3, NewestStep(3, "own"), NewestStep(2, "own")) == begun

    @pytest.mark.parametrize("batch", [0, 9, 10])
    def test_another_checkpoint_needs_a_choice(self, batch: int) -> None:
        with pytest.raises(SourceRestartedError):
            self.decide(batch, NewestStep(9, "old"))

    def test_new_replaces_and_is_remembered(self) -> None:
        old = NewestStep(9, "old", ("older",))
        begun = self.decide(0, old, NewestStep(3, "older"), on_restart="new")
        assert begun == BatchNumbering(SOURCE, "own", ("old", "older"))
        own = NewestStep(0, "own", begun.replaces)
        assert self.decide(0, own, old) == self.decide(1, own, old, on_restart="new") == begun
        with pytest.raises(SourceRestartedError):
            number_batches(SOURCE, "old", [own, old], 10, on_restart="new")

    def test_continue_counts_on(self) -> None:
        recorded = (NewestStep(9, "old", ("older",)), NewestStep(4, "older"), NewestStep(2, "old"))
        begun = self.decide(0, *recorded, on_restart="continue")
        assert begun == BatchNumbering(SOURCE, "old", ("older",), 9)
        with pytest.raises(SourceRestartedError):
            self.decide(9, *recorded, NewestStep(1, "own"), NewestStep(1, "other"))

    def test_batches_that_were_recorded_without_a_query(self) -> None:
        assert self.decide(10, NewestStep(9)) == BatchNumbering(SOURCE, "own", ("",))
        with pytest.raises(SourceRestartedError):
            self.decide(9, NewestStep(9))


class TestRestart:
    """A sink under one name, before and after its checkpoint is replaced."""

    def test_a_region_that_the_old_query_did_not_reach_is_not_written_alone(
        self, spark: Any, make_table: MakeTable, tmp_path: Path
    ) -> None:
        table = make_table(buckets=3)
        for name in ("old", "new"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "metadata").write_text(json.dumps({"id": f"query {name}"}))
        old, new = str(tmp_path / "old"), f"{tmp_path}/new/"
        sink(table, checkpoint=old)(spark.createDataFrame([change(1, 1)], CHANGES), 9)
        everything = spark.createDataFrame([change(k, 2) for k in range(20)], CHANGES)
        with pytest.raises(SourceRestartedError):
            sink(table, checkpoint=new)(everything, 0)
        assert state(table) == {1: 1}
        sink(table, checkpoint=new, on_restart="continue")(everything, 0)
        assert state(table) == {1: 1}
        sink(table, checkpoint=new, on_restart="new")(everything, 0)
        assert state(table) == dict.fromkeys(range(20), 2)
        sink(table, checkpoint=new)(spark.createDataFrame([change(3, 3)], CHANGES), 1)
        with pytest.raises(SourceRestartedError):
            sink(table, checkpoint=old, on_restart="new")(everything, 10)
        assert state(table) == dict.fromkeys(range(20), 2) | {3: 3}


def test_a_column_that_the_table_lacks_is_refused_unless_it_may_go(
    spark: Any, table: memwal.Table
) -> None:
    frame = spark.createDataFrame([(*change(1, 1), "x")], f"{CHANGES}, more string")
    with pytest.raises(InvalidInputError, match="more"):
        sink(table)(frame, 0)
    assert state(table) == {}
    sink(table, drop_extra_columns=True)(frame, 0)
    assert state(table) == {1: 1}


def test_refuses_at_once_what_cannot_work(make_table: MakeTable, tmp_path: Path) -> None:
    with pytest.raises(TableSetupError):
        memwal.spark.foreach_batch(str(tmp_path / "nothing"))
    table = make_table()
    with pytest.raises(InvalidInputError):
        memwal.spark.foreach_batch(table.uri, op_column="id")
    with pytest.raises(InvalidInputError, match="max_parallelism"):
        memwal.spark.foreach_batch(table.uri, max_parallelism=0)


def test_secrets_are_not_shown(table: memwal.Table) -> None:
    made = sink(table, storage_options={"aws_secret_access_key": "hush"})
    assert "hush" not in repr(made)


class TestStream:
    @pytest.mark.slow
    def test_a_stream_with_deletes_goes_on_from_its_checkpoint(
        self, spark: Any, make_table: MakeTable, tmp_path: Path
    ) -> None:
        table = make_table(buckets=4)
        folder = tmp_path / "changes"

        def run(source: str | None = None) -> None:
            stream = spark.readStream.schema(CHANGES).json(str(folder))
            query = (
                stream.writeStream.foreachBatch(sink(table, source=source))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        def add(name: str, *changes: tuple[Any, ...]) -> None:
            folder.mkdir(exist_ok=True)
            names = CHANGES.replace(" bigint", "").replace(" string", "").split(", ")
            frame = batch(*changes).select(names).to_pandas()
            frame.to_json(folder / name, orient="records", lines=True)

        add("0.json", *(change(key, key, at=key) for key in range(20)))
        run()
        assert state(table) == {key: key for key in range(20)}
        add("1.json", change(1, 0, at=30, op="d"), change(2, 5, at=31), change(2, 4, at=30))
        run()
        expected = {key: key for key in range(20) if key != 1} | {2: 5}
        assert state(table) == expected

        # The checkpoint loses the end of the last batch, which comes again, after another producer.
        for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
            file.unlink()
        with table.writer() as producer:
            producer.upsert(rows({1: 8, 2: 8}))
        run()
        assert state(table) == expected | {1: 8, 2: 8}

    def test_several_tasks_share_the_regions(self, spark: Any, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        frame = spark.createDataFrame([change(k, k) for k in range(40)], CHANGES).repartition(3)
        sink(table, max_parallelism=3)(frame, 0)
        assert state(table) == {key: key for key in range(40)}
        assert {len(generations(table, region)) for region in table.region_ids()} == {1}
        frame = spark.createDataFrame([change(k, 0) for k in range(40)], CHANGES)
        sink(table)(frame, 0)
        assert state(table) == {key: key for key in range(40)}

    @pytest.mark.slow
    def test_regions_that_only_the_data_tells(self, spark: Any, make_table: MakeTable) -> None:
        table = make_table(region_spec=memwal.RegionSpec.truncate("id", 10))
        frame = spark.createDataFrame([change(k, k) for k in range(60)], CHANGES)
        sink(table, max_parallelism=4)(frame, 0)
        assert state(table) == {key: key for key in range(60)}
        assert len(table.region_ids()) == 6

    def test_a_batch_that_does_not_fit(self, spark: Any, table: memwal.Table) -> None:
        frame = spark.createDataFrame([(1, 2)], "id bigint, n bigint")
        with pytest.raises(InvalidInputError, match="text, op, at"):
            sink(table)(frame, 0)
        with pytest.raises(InvalidInputError, match="source"):
            sink(table, source=None)(spark.createDataFrame([change(1, 1)], CHANGES), 0)
        assert state(table) == {}
