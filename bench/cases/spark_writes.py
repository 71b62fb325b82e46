"""Writes of Spark beside those of the embedded writer in one process.

Both sides write the same rows into eight regions of a new table, and flush them. The data frame is
in Spark's memory before; the start of the session and of its Python is not counted. A batch of a
stream has 1,000 rows, and is counted as Spark tells it: tasks and commit, without the checkpoint.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from common.measure import Figure, Line, Rival, Target, rounds_of

import memwal
import memwal.spark
from memwal.spark.session import spark_session

REGIONS = 8
BATCH_ROWS = 1_000
BATCHES = 20
WARM_BATCHES = 5
ROUNDS = 5
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int64()),
        ("text", pa.string()),
        ("x", pa.float64()),
    ]
)
COLUMNS = ("id", "id % 1000 n", "concat('text of row ', id) text", "cast(id as double) / 2 x")


@contextmanager
def running(master: str) -> Iterator[Any]:
    """A session with the format, while the block runs."""
    spark = spark_session("bench", master=master, conf={"spark.sql.shuffle.partitions": "4"})
    memwal.spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def frame_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Write a data frame by the driver's own process."""
    yield from written(folder, 2 * rows, "local[2]", "data frame", Target(0.8, at_least=True))


def executor_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Write a data frame by two executors that are processes of their own."""
    what = "data frame of two executors"
    yield from written(
        folder, 2 * rows, "local-cluster[2,1,2048]", what, Target(1.3, at_least=True)
    )


def written(folder: Path, rows: int, master: str, what: str, target: Target) -> Iterator[Line]:
    """Rows per second of Spark and of the embedded writer, turn by turn, after a warm round."""
    ours, other = [], []
    with running(master) as spark:
        frame = spark.range(rows, numPartitions=2).selectExpr(*COLUMNS).persist()
        data = frame.toArrow().cast(SCHEMA)
        for round_ in range(rounds_of(ROUNDS) + 1):
            for samples, write in ((ours, by_spark(frame)), (other, embedded(data))):
                table = new_table(folder / "table")
                started = time.perf_counter()
                write(table)
                seconds = time.perf_counter() - started
                if table.count_rows() != rows:
                    raise SystemExit("rows are missing")
                if round_:
                    samples.append(rows / seconds)
    yield Line(
        name="write",
        what=f"{what} of {rows:,} rows into {REGIONS} regions",
        ours=Figure.of(ours),
        other=Figure.of(other),
        unit="rows/s",
        against="the embedded writer",
        rival=Rival.OURS,
        target=target,
    )


def batch_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Commit batches of a stream, and steps of the embedded writer that are flushed."""
    table = new_table(folder / "steps", stream=True)
    other = []
    for number in range(BATCHES + WARM_BATCHES):
        started = time.perf_counter()
        with table.writer() as writer:
            ids = range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
            step = pa.table({"value": ids, "timestamp": [0] * len(ids)}).cast(table.schema)
            writer.apply(upserts=step, source="bench", version=number)
        other.append((time.perf_counter() - started) * 1_000)
    table = new_table(folder / "stream", stream=True)
    with running("local[2]") as spark:
        stream = spark.readStream.format("rate-micro-batch")
        stream = stream.options(rowsPerBatch=BATCH_ROWS, numPartitions=2).load()
        query = stream.writeStream.format("memwal")
        query = query.option("checkpointLocation", str(folder / "checkpoint")).start(table.uri)
        while query.lastProgress is None or query.lastProgress.batchId < BATCHES + WARM_BATCHES:
            if query.exception() is not None:
                raise query.exception()
            time.sleep(0.1)
        query.stop()
        ours = [progress.durationMs["addBatch"] for progress in query.recentProgress]
    yield Line(
        name="batch",
        what=f"a batch of a stream, {BATCH_ROWS:,} rows into {REGIONS} regions",
        ours=Figure.of(ours[WARM_BATCHES:]),
        other=Figure.of(other[WARM_BATCHES:]),
        unit="ms",
        against="a step of a new embedded writer",
        rival=Rival.OURS,
    )


def new_table(path: Path, *, stream: bool = False) -> memwal.Table:
    """An empty table in eight regions."""
    shutil.rmtree(path, ignore_errors=True)
    schema, key = SCHEMA, "id"
    if stream:
        key = "value"
        schema = pa.schema(
            [
                pa.field(key, pa.int64(), nullable=False),
                ("timestamp", pa.timestamp("us", "UTC")),
            ]
        )
    spec = memwal.RegionSpec.bucket(key, REGIONS)
    return memwal.create(path, schema, primary_key=[key], region_spec=spec)


def by_spark(frame: Any) -> Callable[[memwal.Table], None]:
    """Return the way of Spark."""
    return lambda table: frame.write.format("memwal").mode("append").save(table.uri)


def embedded(data: pa.Table) -> Callable[[memwal.Table], None]:
    """Return the way without Spark."""

    def write(table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(data)

    return write
