"""Stream changes from JSON files in a folder into a table, with Spark.

    python orders_stream.py --changes changes --table orders.lance --checkpoint checkpoint

Put files into the folder (by renaming them into it), one change a line:

    {"id": 1, "op": "u", "at": 17, "customer": "ada", "total": 9.5}
    {"id": 2, "op": "d", "at": 18}

If it is killed, it resumes where it stopped; each batch is applied once.
"""

from __future__ import annotations

import argparse

import pyarrow as pa

import memwal
import memwal.spark
from memwal.errors import TableSetupError
from memwal.spark.session import spark_session

CHANGES = "id bigint, op string, at bigint, customer string, total double"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("total", pa.float64()),
    ]
)


def open_or_create(uri: str) -> memwal.Table:
    """Open the table, or create it."""
    try:
        return memwal.open(uri)
    except TableSetupError:
        spec = memwal.RegionSpec.bucket("id", 4)
        return memwal.create(uri, SCHEMA, primary_key=["id"], region_spec=spec)


def main() -> None:
    """Stream until SIGTERM, or with ``--once`` until all files are written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("changes", "table", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--files", type=int, default=10, help="in a batch at most")
    parser.add_argument("--once", action="store_true", help="end when all files are written")
    given = parser.parse_args()
    table = open_or_create(given.table)
    spark = spark_session("orders")
    memwal.spark.register(spark)
    changes = (
        spark.readStream.schema(CHANGES)
        .option("maxFilesPerTrigger", given.files)
        .json(given.changes)
    )
    query = (
        changes.writeStream.format("memwal")
        .option("op_column", "op")
        .option("sequence_by", "at")
        .option("checkpointLocation", given.checkpoint)
        .trigger(**({"availableNow": True} if given.once else {"processingTime": "1 second"}))
        .start(table.uri)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
