"""Changes as data frames and streams of Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from support.data.tables import MakeTable, flush, flush_and_merge, rows, state
from support.oracles.native import dataset

import memwal
import memwal.spark
from memwal.base_table.refs import list_read_tags
from memwal.spark.version_compat import BATCH_LIMITS, STREAM_WRITES

COPY = {"op_column": "_change", "drop_extra_columns": "true"}


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    memwal.spark.register(spark)


def told(frame: Any) -> dict[int, int | None]:
    """Key to number, None for a delete."""
    found = frame.toArrow()
    assert len(found) == len(set(found.column("id").to_pylist()))
    return {row["id"]: row["n"] for row in found.to_pylist()}


def test_a_data_frame_of_changes(spark: Any, make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    flush_and_merge(table, dict.fromkeys(range(20), 0))
    first = table.changes().token
    flush(table, {1: 1, 30: 1}, [2])
    reader = spark.read.format("memwal").options(changes_after=first, partitions=2)
    frame = reader.load(table.uri)
    assert frame.columns == ["id", "n", "text", "_change", "_gen", "_region", "_position"]
    table.upsert(rows({4: 4}))
    middle = table.changes().token
    fresh = reader.option("fresh", "true").load(table.uri)
    flush_and_merge(table, {1: 2}, [3])
    expected = {1: 1, 30: 1, 2: None}
    assert told(frame) == expected
    assert {row.id for row in frame.filter("_change = 'delete'").collect()} == {2}
    assert told(fresh) == expected | {4: 4}
    ended = reader.options(changes_until=middle, columns="n").load(table.uri)
    assert told(ended).keys() == {1, 30, 2, 4}
    assert ended.columns[:2] == ["id", "n"]
    everything = spark.read.format("memwal").option("changes_after", "start").load(table.uri)
    assert told(everything) == state(table)
    nothing = spark.read.format("memwal").option("changes_after", "now").load(table.uri)
    assert told(nothing) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"changes_after": "yesterday"},
        {"changes_after": "now", "version": "1"},
        {"changes_until": "now"},
        {"maxRowsPerTrigger": "5"},
        {"changes_after": "start", "columns": "other"},
    ],
)
def test_wrong_options_of_a_load(spark: Any, table: memwal.Table, options: dict[str, str]) -> None:
    with pytest.raises(PySparkException):
        spark.read.format("memwal").options(**options).load(table.uri).collect()


@pytest.mark.skipif(not STREAM_WRITES.here, reason="this Spark writes no streams")
class TestStream:
    """A copy of a table that a stream keeps."""

    @pytest.fixture(autouse=True)
    def tables(self, spark: Any, make_table: MakeTable, tmp_path: Path) -> None:
        self.spark = spark
        self.table = make_table(buckets=3)
        self.copy = make_table(buckets=2)
        self.checkpoint = tmp_path / "checkpoint"

    def run(self, **options: str) -> list[int]:
        """Read what there is; return the number of rows of each batch."""
        query = (
            self.spark.readStream.format("memwal")
            .options(**{"changes_after": "start"} | options)
            .load(self.table.uri)
            .writeStream.format("memwal")
            .options(checkpointLocation=str(self.checkpoint), **COPY)
            .trigger(availableNow=True)
            .start(self.copy.uri)
        )
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]

    def forget(self, kind: str) -> None:
        """Take away what Spark wrote last about a batch, as if its driver had died before."""
        folder = self.checkpoint / kind
        newest = max(int(file.name) for file in folder.iterdir() if file.name.isdigit())
        for name in (f"{newest}", f".{newest}.crc"):
            (folder / name).unlink()

    def test_each_change_arrives(self) -> None:
        flush_and_merge(self.table, dict.fromkeys(range(20), 0))
        self.run()
        assert state(self.copy) == state(self.table)
        flush(self.table, {1: 1, 30: 1}, [2])
        self.run()
        assert state(self.copy) == state(self.table)
        self.table.merge()
        self.run()
        assert state(self.copy) == state(self.table)
        # Each batch let the version of the one before go.
        assert len({tag.version for tag in list_read_tags(self.table.location)}) <= 3

    def test_a_batch_comes_again(self) -> None:
        """The driver dies before it notes that a batch is written, and changes go on."""
        flush(self.table, dict.fromkeys(range(20), 0))
        self.run()
        flush(self.table, {1: 1}, [2])
        self.run()
        self.forget("commits")
        flush_and_merge(self.table, {1: 2, 2: 2}, [3])
        self.run()
        assert state(self.copy) == state(self.table)

    @pytest.mark.skipif(not BATCH_LIMITS.here, reason="this Spark has no limits of batches")
    def test_batches_have_a_limit(self) -> None:
        for part in range(6):
            flush(self.table, dict.fromkeys(range(part * 10, part * 10 + 10), 0))
        counts = self.run(maxRowsPerTrigger="9")
        assert sum(counts) == 60
        assert max(counts) <= 10
        self.forget("commits")
        flush(self.table, {1: 1}, [2])
        self.run(maxRowsPerTrigger="20")
        assert state(self.copy) == state(self.table)

    @pytest.mark.skipif(not BATCH_LIMITS.here, reason="this Spark tells no start of a batch")
    def test_a_consumer_keeps_its_tokens(self) -> None:
        flush(self.table, dict.fromkeys(range(20), 0))
        self.run(consumer="copy", protect_seconds="0")
        assert not list_read_tags(self.table.location)
        flush(self.table, {1: 1}, [2])
        self.run(consumer="copy", protect_seconds="0")
        flush(self.table, [3])
        for _ in range(2):
            self.table.merge()
            self.table.compact(min_fragments=2)
            self.table.collect_garbage(
                dry_run=False, grace_seconds=0, retention_seconds=0, version_retention_seconds=0
            )
        self.run(consumer="copy", protect_seconds="0")
        assert state(self.copy) == state(self.table)
        (consumer,) = self.table.status().consumers
        assert consumer.epoch == 3
        with pytest.raises(PySparkException):
            self.spark.read.format("memwal").options(changes_after="start", consumer="copy").load(
                self.table.uri
            ).collect()

    def test_a_column_that_is_added(self) -> None:
        flush(self.table, dict.fromkeys(range(5), 0))
        self.run()
        self.forget("commits")
        for each in (self.table, self.copy):
            dataset(each).add_columns(pa.field("extra", pa.int64()))
        self.table.upsert({"id": 9, "n": 9, "text": "9=9", "extra": 7})
        self.run(fresh="true")
        assert state(self.copy) == state(self.table.fresh())
        assert set(self.copy.scan().to_table().column("extra").to_pylist()) == {None, 7}
