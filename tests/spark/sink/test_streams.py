"""Streams into tables: each batch once, whatever Spark repeats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from support.data.changes import CHANGES, batch, change
from support.data.tables import MakeTable, rows, state

import memwal
import memwal.spark
from memwal.errors import InvalidInputError, MemWalError, SourceRestartedError
from memwal.format.paths import STAGED_ROWS_DIR
from memwal.spark.data_source import MemWalDataSource
from memwal.spark.sink import staged_rows
from memwal.spark.sink.options import parse_write_options
from memwal.spark.sink.plan import plan_write
from memwal.spark.sink.writers import MemWalWriter, TaskRows
from memwal.spark.version_compat import STREAM_WRITES

if TYPE_CHECKING:
    from memwal.spark.sink.stream_writer import MemWalStreamWriter

pytestmark = pytest.mark.skipif(not STREAM_WRITES.here, reason="this Spark writes no streams")


class Query:
    """A query without Spark: a writer for each batch, and another one for its commit."""

    def __init__(self, table: memwal.Table, query_id: str, **options: str) -> None:
        self.table = table
        self.query_id = query_id
        self.options = {"path": table.uri, "op_column": "op", "sequence_by": "at"} | options

    def writer(self) -> MemWalStreamWriter:
        from memwal.spark.sink.stream_writer import MemWalStreamWriter

        parsed = parse_write_options(self.options)
        columns = CHANGES.replace(" bigint", "").replace(" string", "").split(", ")
        return MemWalStreamWriter(plan_write(self.table.location, parsed, columns, overwrite=False))

    def stage(self, *tasks: list[tuple[Any, ...]]) -> list[TaskRows]:
        plan = self.writer()._plan
        found = [plan.stage(batch(*changes).to_batches()) if changes else () for changes in tasks]
        return [TaskRows(parts, self.query_id) for parts in found]

    def run(self, number: int, *tasks: list[tuple[Any, ...]]) -> None:
        self.writer().commit(self.stage(*tasks), number)


class TestBatches:
    def test_that_come_again_or_late_are_not_written_again(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        query = Query(table, "a")
        first = [change(key, 0) for key in range(9)]
        query.run(0, first[:5], [], first[5:])
        query.run(1, [change(1, 0, op="d"), change(2, 2)])
        with table.writer() as producer:
            producer.upsert(rows({1: 8, 2: 8}))
            query.run(0, first)
            query.run(1, [change(1, 0, op="d")], [change(2, 2)])
            # No writer was fenced.
            producer.upsert(rows({3: 8}))
        assert state(table) == dict.fromkeys(range(9), 0) | {1: 8, 2: 8, 3: 8}

    def test_of_a_new_checkpoint_are_all_written(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        Query(table, "a").run(7, [change(1, 1)])
        Query(table, "b").run(0, [change(1, 2)])
        assert state(table) == {1: 2}

    def test_without_rows(self, table: memwal.Table) -> None:
        Query(table, "a").run(0, [], [])
        assert table.applied("spark-query-a") == {}

    def test_of_which_a_task_is_missing_are_refused(self, table: memwal.Table) -> None:
        query = Query(table, "a")
        with pytest.raises(MemWalError):
            query.writer().commit([*query.stage([]), None], 0)
        with pytest.raises(MemWalError):
            other = Query(table, "b").stage([change(2, 2)])
            query.writer().commit([*query.stage([change(1, 1)]), *other], 0)
        assert state(table) == {}


class TestSource:
    """A name of several queries, one after another."""

    def test_a_region_that_the_old_query_did_not_reach_is_not_written_alone(
        self, make_table: MakeTable
    ) -> None:
        table = make_table(buckets=3)
        everything = [change(key, 2) for key in range(20)]
        Query(table, "old", source="s").run(9, [change(1, 1)])
        with pytest.raises(SourceRestartedError):
            Query(table, "new", source="s").run(0, everything)
        assert state(table) == {1: 1}
        for number in (0, 8):
            Query(table, "new", source="s", on_restart="continue").run(number, everything)
        assert state(table) == {1: 1}
        Query(table, "new", source="s", on_restart="new").run(0, everything)
        assert state(table) == dict.fromkeys(range(20), 2)
        Query(table, "new", source="s").run(1, [change(3, 3)])
        with pytest.raises(SourceRestartedError):
            Query(table, "old", source="s", on_restart="new").run(10, everything)
        assert state(table) == dict.fromkeys(range(20), 2) | {3: 3}

    def test_a_data_frame_of_a_new_checkpoint_is_not_skipped(self, table: memwal.Table) -> None:
        """Both queries write data frames in ``foreachBatch``."""

        def write(query: str, version: int, *changes: tuple[Any, ...], **more: str) -> None:
            of = Query(table, query, source="s", version=str(version), **more)
            MemWalWriter(of.writer()._plan).commit(of.stage([*changes]))

        write("", 3, change(1, 0))
        write("a", 7, change(1, 1))
        write("a", 7, change(1, 2))
        assert state(table) == {1: 1}
        with pytest.raises(SourceRestartedError):
            write("b", 0, change(1, 3))
        write("b", 0, change(1, 3), on_restart="new")
        assert state(table) == {1: 3}

    def test_a_query_that_continues_writes_each_later_batch(self, make_table: MakeTable) -> None:
        table = make_table(buckets=3)
        Query(table, "old", source="s").run(2, [change(1, 1)])
        query = Query(table, "new", source="s", on_restart="continue")
        for number in (3, 4, 4, 3):
            query.run(number, [change(key, number) for key in range(9)])
        assert state(table) == dict.fromkeys(range(9), 4)

    def test_batches_that_are_taken_for_written_leave_no_objects(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(staged_rows, "_MESSAGE_BYTES", 0)
        Query(table, "old", source="s").run(2, [change(1, 1)])
        Query(table, "new", source="s", on_restart="continue").run(0, [change(1, 2)])
        assert list(table.location.store.list(STAGED_ROWS_DIR)) == []
        assert state(table) == {1: 1}


@pytest.mark.parametrize(
    "options", [{"version": "1"}, {"partial": "true"}, {"on_restart": "maybe"}]
)
def test_options_that_a_stream_cannot_have(table: memwal.Table, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        MemWalDataSource({"path": table.uri, "checkpointlocation": "c"} | options).streamWriter(
            None, False
        )


@pytest.mark.parametrize(
    "options",
    [
        {"source": "s"},
        {"op_column": "op", "version": "1"},
        {"source": "s", "version": "1", "partial": "true"},
        {"on_restart": "new"},
    ],
)
def test_options_that_a_data_frame_cannot_have(
    table: memwal.Table, options: dict[str, str]
) -> None:
    with pytest.raises(InvalidInputError):
        MemWalDataSource({"path": table.uri} | options).writer(None, False)


class TestSpark:
    @pytest.fixture
    def folder(self, spark: Any, tmp_path: Path) -> Path:
        memwal.spark.register(spark)
        (tmp_path / "changes").mkdir()
        return tmp_path

    def add(self, folder: Path, name: str, *changes: tuple[Any, ...]) -> None:
        frame = batch(*changes).to_pandas()
        frame.to_json(folder / "changes" / name, orient="records", lines=True)

    def run(
        self, spark: Any, folder: Path, table: memwal.Table, mode: str = "append", **options: str
    ) -> None:
        stream = spark.readStream.schema(CHANGES).json(str(folder / "changes"))
        if mode == "complete":
            stream = stream.groupBy("id").count()
        query = (
            stream.writeStream.format("memwal")
            .options(op_column="op", sequence_by="at", **options)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .queryName("changes")
            .outputMode(mode)
            .trigger(availableNow=True)
            .start(table.uri)
        )
        query.awaitTermination()

    def test_a_batch_that_comes_again(
        self, spark: Any, folder: Path, make_table: MakeTable
    ) -> None:
        """The checkpoint loses the end of the last batch, which comes after another producer."""
        table = make_table(buckets=4)
        self.add(folder, "0.json", *(change(key, key, at=key) for key in range(20)))
        self.run(spark, folder, table)
        assert state(table) == {key: key for key in range(20)}
        self.add(folder, "1.json", change(1, 0, at=30, op="d"), change(2, 5, at=31), change(2, 4))
        self.run(spark, folder, table)
        expected = {key: key for key in range(20) if key != 1} | {2: 5}
        assert state(table) == expected
        for file in (folder / "checkpoint" / "commits").glob("*1*"):
            file.unlink()
        with table.writer() as producer:
            producer.upsert(rows({1: 8, 2: 8}))
        self.run(spark, folder, table)
        assert state(table) == expected | {1: 8, 2: 8}

    def test_a_complete_result_would_overwrite(
        self, spark: Any, folder: Path, table: memwal.Table
    ) -> None:
        table.upsert(rows({1: 1}))
        self.add(folder, "0.json", change(2, 2))
        with pytest.raises((StreamingQueryException, PySparkException), match="not overwritten"):
            self.run(spark, folder, table, mode="complete")
        assert state(table) == {1: 1}
