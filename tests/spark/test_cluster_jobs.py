"""The jobs where driver and executors are processes of their own, on one machine."""

import json
from pathlib import Path

import pytest
from support.processes import run_python

PROGRAM = """
import os, shutil, sys
from datetime import timedelta
from pathlib import Path

import memwal
from memwal.jobs.index.job import build_indexes
from memwal.spark.runner import spark_runner
from memwal.spark.session import spark_session
from support.data.indexed import answers, indexed_table, merge_rows, recall, rows

session = spark_session(
    "cluster", master="local-cluster[2,1,1024]", conf={"spark.executor.memory": "1024m"}
)
spark = spark_runner(session)
ids = set(session.sparkContext.parallelize(range(8), 8).map(lambda _: os.getpid()).collect())
assert os.getpid() not in ids
print("workers", len(ids))

for kind in ("BTREE", "IVF_PQ", "INVERTED"):
    folder = Path(sys.argv[1]) / kind
    table = indexed_table(folder, kind)
    merge_rows(table, *(rows(600 + 200 * n, 200) for n in range(3)))
    with table.writer() as writer:
        writer.upsert(rows(550, 100, seed=1))
        writer.delete(rows(0, 10).select(["id"]))
    shutil.copytree(table.uri, folder / "copy")
    other = memwal.open(str(folder / "copy"))

    merged = table.merge(run=spark)
    built = table.build_indexes(max_tasks=2, part_rows=1, run=spark)
    shown = table.build_snapshot(run=spark)
    collected = table.collect_garbage(
        dry_run=False, grace_seconds=0, retention_seconds=0, run=spark
    )
    other.merge()
    other.build_indexes()

    assert merged.warnings == built.warnings == shown.warnings == collected.warnings == ()
    found, expected = (t.scan().to_table().sort_by("id") for t in (table, other))
    assert found == expected and found.num_rows == 1190
    assert [index.generations for index in table.status().indexes] == [0]
    ours, theirs = answers(table, kind), answers(other, kind)
    if kind == "IVF_PQ":
        assert recall(table, ours) >= recall(other, theirs) - 0.005
    else:
        assert ours == theirs
    print(kind, built.metrics)
session.stop()
"""

WIDTH_PROGRAM = """
import json, sys, time
from pathlib import Path

from memwal.spark.parallelism import await_executors
from memwal.spark.runner import spark_runner
from memwal.spark.session import spark_session

def meet(folder):
    # Returns when three tasks run at once.
    import os, time
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < 3:
        time.sleep(0.05)

conf = {"spark.executor.memory": "1024m"} | json.loads(sys.argv[2])
session = spark_session("width", master="local-cluster[3,1,1024]", conf=conf)
await_executors(session)
run = spark_runner(session)
while run.parallelism() < 3:
    time.sleep(0.1)
run([sys.argv[1]] * run.parallelism(), meet)
print("met", run.parallelism())
session.stop()
"""

DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.executor.cores": "1",
}


@pytest.mark.slow
def test_all_jobs(tmp_path: Path) -> None:
    output = run_python(PROGRAM, tmp_path).stdout
    assert "workers 2" in output
    assert output.count("'parts': 2") == 3


@pytest.mark.slow
@pytest.mark.parametrize("conf", [{}, DYNAMIC], ids=["executors register", "executors on demand"])
def test_tasks_are_as_many_as_the_cluster_has_cores_for(
    tmp_path: Path, conf: dict[str, str]
) -> None:
    assert "met 3" in run_python(WIDTH_PROGRAM, tmp_path, json.dumps(conf)).stdout
