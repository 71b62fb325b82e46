"""``df.write.format("memwal")`` in a real Spark session."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from support.data.changes import CHANGES, change
from support.data.tables import MakeTable, rows, state

import memwal
import memwal.spark
from memwal.format.paths import STAGED_ROWS_DIR
from memwal.spark.session import without_harmless_warnings

COLUMNS = "id bigint, n bigint, text string"


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    memwal.spark.register(spark)


def save(frame: Any, table: memwal.Table, mode: str = "append", **options: object) -> None:
    frame.write.format("memwal").mode(mode).options(**options).save(table.uri)


def staged(table: memwal.Table) -> list[str]:
    return [info.key for info in table.location.store.list(STAGED_ROWS_DIR)]


def test_rows_of_many_tasks_are_upserted_and_deleted(spark: Any, make_table: MakeTable) -> None:
    table = make_table(buckets=3)
    table.upsert(rows(dict.fromkeys(range(50), 0)))
    changes = [change(key, 1, at=1) for key in range(40)]
    changes += [change(0, 2, at=2), change(1, 0, at=2, op="d"), change(2, 0, at=0, op="d")]
    frame = spark.createDataFrame(changes, CHANGES).repartition(4)
    save(frame, table, op_column="op", sequence_by="at")
    expected = dict.fromkeys(range(40), 1) | dict.fromkeys(range(40, 50), 0) | {0: 2}
    del expected[1]
    assert state(table) == expected
    with pytest.raises(PySparkException, match="sequence_by"):
        save(frame.drop("op", "at"), table)
    assert state(table) == expected


def test_tasks_that_fail_and_come_again_write_once(spark: Any, make_table: MakeTable) -> None:
    """Each task has rows for an object."""
    schema = pa.schema([("n", pa.int64()), ("payload", pa.binary())])
    table = make_table(schema, primary_key=(), region_spec=memwal.RegionSpec.bucket("n", 2))

    def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for batch in batches:
            payload = pa.array([bytes(50_000)] * batch.num_rows)
            yield pa.record_batch([batch.column(0), payload], names=["n", "payload"])
        if context is not None and context.attemptNumber() == 0:
            raise ValueError("the first attempt")

    with without_harmless_warnings():
        frame = spark.range(20, numPartitions=2).mapInArrow(once, "n bigint, payload binary")
    for _ in range(2):
        save(frame, table, source="nightly", version=1)
    assert Counter(table.scan().to_table()["n"].to_pylist()) == Counter(range(20))
    assert staged(table) == []


def test_a_table_is_not_overwritten(spark: Any, table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    frame = spark.createDataFrame([(2, 2, "2=2")], COLUMNS)
    with pytest.raises(PySparkException, match="not overwritten"):
        save(frame, table, mode="overwrite")
    assert state(table) == {1: 1}


def test_insert_into_a_view(spark: Any, table: memwal.Table) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW written ({COLUMNS}) USING memwal "
        f"OPTIONS (path '{table.uri}')"
    )
    spark.sql("INSERT INTO written VALUES (1, 1, '1=1'), (2, 2, '2=2')")
    assert state(table) == {1: 1, 2: 2}
