"""Tables as data frames where driver and executors are processes of their own."""

from pathlib import Path

import pytest
from support.processes import run_python

PRELUDE = """
import os, sys
import memwal, memwal.spark
from memwal.spark.session import ensure_java
from memwal.spark.session import spark_session
from support.data.tables import SCHEMA, keys, rows, state

table = memwal.create(
    sys.argv[1], SCHEMA, primary_key=["id"], region_spec="bucket:id:4"
)
with table.writer() as writer:
    writer.upsert(rows(dict.fromkeys(range(1000), 1)))
    writer.flush()
    table.merge()
    writer.upsert(rows(dict.fromkeys(range(0, 1000, 2), 2)))
    writer.delete(keys(1, 3))
"""

CLUSTER = """
spark = spark_session(
    "cluster", master="local-cluster[2,1,512]", conf={"spark.executor.memory": "512m"}
)
memwal.spark.register(spark)
frame = spark.read.format("memwal").option("partitions", 5).load(table.uri)
assert state(frame.toArrow()) == state(table)
changed = spark.range(5, 15, numPartitions=3).selectExpr("id", "3L n", "concat(id, '=3') text")
changed.write.format("memwal").mode("append").save(table.uri)
print("changed", sum(n == 3 for n in state(table).values()))
print("partitions", frame.rdd.getNumPartitions())
spark.stop()
"""

CONNECT = """
from pyspark.sql import SparkSession

ensure_java()
os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
memwal.spark.register(spark, storage_options={"aws_region": "eu-central-1"})
frame = spark.read.format("memwal").option("partitions", 5).load(table.uri)
assert state(frame.toArrow()) == state(table)
print("changed", frame.filter("n = 2").count())
frame.limit(1).selectExpr("2000L id", "5L n", "'2000=5' text").write.format("memwal").mode(
    "append"
).save(table.uri)
assert state(table)[2000] == 5
(status,) = spark.sql(f"SELECT * FROM memwal_status('{table.uri}')").collect()
assert status.version == table.version
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (CLUSTER, "changed 10\npartitions 5"),
        (CONNECT, "changed 500"),
    ],
)
def test_the_whole_table(tmp_path: Path, program: str, printed: str) -> None:
    assert printed in run_python(PRELUDE + program, tmp_path / "table").stdout
