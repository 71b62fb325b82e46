"""Tables without a primary key on Spark: each row once, in reads, streams and divided merges."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.faults.collecting import collect

import memwal
import memwal.spark
from memwal.errors import ConflictError
from memwal.spark.runner import spark_runner
from memwal.spark.source.partition_reader import open_pinned, read_partition
from memwal.spark.source.scan_plan import ReadOptions, plan_load

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})
COLUMNS = "n bigint, text string"


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers, "text": [f"row {n}" for n in numbers]}, SCHEMA)


def shown(found: pa.Table) -> Counter[int]:
    return Counter(found.column("n").to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    spec = memwal.RegionSpec.bucket("n", 3)
    return memwal.create(tmp_path / "t.lance", SCHEMA, primary_key=None, region_spec=spec)


@pytest.fixture
def filled(table: memwal.Table) -> memwal.Table:
    """Rows in the base table, in generations, and in the log of a writer that died."""
    table.append(rows(*range(20), *range(10)))
    table.merge()
    table.append(rows(*range(15)))
    writer = table.writer()
    writer.append(rows(*range(5), *range(5)))
    writer.abort()
    return table


def test_a_data_frame(spark: Any, filled: memwal.Table) -> None:
    memwal.spark.register(spark)
    for fresh in ("false", "true"):
        queries = filled.fresh() if fresh == "true" else filled
        expected = shown(queries.scan().to_table())
        reader = spark.read.format("memwal").option("partitions", 3).option("fresh", fresh)
        frame = reader.load(filled.uri)
        assert shown(frame.toArrow()) == expected
        assert frame.count() == expected.total()
        assert frame.filter("n < 5").count() == sum(expected[n] for n in range(5))
        assert frame.select("text").filter("n = 3").count() == expected[3]


def test_files_that_are_gone_are_no_longer_read(filled: memwal.Table) -> None:
    options = ReadOptions(uri=filled.uri, partitions=3, protect_seconds=0)
    plan = plan_load(filled.location, options, columns=None)
    filled.checkpoint()
    for days in (1, 2):
        collect(filled, days * 86_400)
    open_pinned.cache_clear()
    with pytest.raises(ConflictError):
        for partition in plan.partitions:
            list(read_partition(plan, partition))


def test_a_batch_and_a_merge_by_executors(spark: Any, table: memwal.Table) -> None:
    given = [(n % 7, f"row {n % 7}") for n in range(60)]
    memwal.spark.register(spark)
    for _ in range(2):
        frame = spark.createDataFrame(given, COLUMNS).write.format("memwal").mode("append")
        frame.options(source="query", version=1).save(table.uri)
    expected = Counter(n for n, _ in given)
    assert shown(table.scan().to_table()) == expected
    result = table.merge(max_tasks=2, divide_bytes=0, run=spark_runner(spark))
    assert (result.metrics["rows_upserted"], result.commits) == (60, 1)
    assert shown(table.at(table.version).scan().to_table()) == expected
    assert table.verify(run=spark_runner(spark)).findings == ()
