"""A process of its own that merges with and without Spark, and tells the times as JSON.

Usage: ``python -m children.spark_merging '{"uri": ..., "scratch": ...}'``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import memwal
from memwal.jobs.job import JobResult, TaskRunner, run_in_process
from memwal.jobs.merge.job import merge
from memwal.jobs.options import MergeOptions
from memwal.spark.runner import spark_runner
from memwal.spark.session import spark_session

_WORKERS = 2
_ROUNDS = 5


def main() -> None:
    """Merge copies of a table in each way, turn by turn, after a round that warms up."""
    task = json.loads(sys.argv[1])
    spark = spark_session("memwal benchmark", master=f"local[{_WORKERS}]")
    try:
        run = spark_runner(spark)
        run(range(_WORKERS), _wake)
        half = memwal.open(task["uri"]).status().backlog_bytes // _WORKERS + 1
        ways: dict[str, tuple[TaskRunner, int, int]] = {
            "here": (run_in_process, 1, MergeOptions().commit_bytes),
            "one": (run, 1, MergeOptions().commit_bytes),
            "two": (run, _WORKERS, MergeOptions().commit_bytes),
            "halves": (run, 1, half),
            "at once": (run, _WORKERS, half),
        }
        found: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in ways}
        for round_ in range(_ROUNDS + 1):
            for name in ways if round_ % 2 else reversed(ways):
                elapsed, result = _merged(task["uri"], Path(task["scratch"]), *ways[name])
                found[name]["what"] = f"{result.tasks} tasks, {result.commits} commits"
                if round_:
                    found[name]["seconds"].append(elapsed)
    finally:
        spark.stop()
    print(json.dumps(found))


def _merged(
    uri: str, scratch: Path, run: TaskRunner, tasks: int, commit_bytes: int
) -> tuple[float, JobResult]:
    copy = scratch / "copy"
    shutil.copytree(uri, copy)
    try:
        location = memwal.open(str(copy)).location
        os.sync()
        started = time.perf_counter()
        result = merge(location, MergeOptions(max_tasks=tasks, commit_bytes=commit_bytes, run=run))
        elapsed = time.perf_counter() - started
        if result.warnings:
            raise SystemExit(f"the merge did not do all: {result}")
        return elapsed, result
    finally:
        shutil.rmtree(copy)


def _wake(number: int) -> Sequence[int]:
    """Keep a worker busy, so that the next one is started too."""
    time.sleep(1)
    return [number]


if __name__ == "__main__":
    main()
