"""The jobs where driver and executors are processes of their own, on one machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

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


@pytest.mark.slow
def test_all_jobs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "workers 2" in done.stdout
    assert done.stdout.count("'parts': 2") == 3
