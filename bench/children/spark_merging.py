"""A process of its own that merges with and without Spark, and tells the times as JSON.

Usage: ``python -m children.spark_merging '{"uri": ..., "scratch": ..., "divided": false,
"rounds": 5}'``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import memwal
from memwal.jobs.job import JobResult, TaskRunner, run_in_process
from memwal.jobs.merge.job import merge
from memwal.jobs.options import MergeOptions
from memwal.spark.runner import spark_runner
from memwal.spark.session import spark_session

_WORKERS = 2
# Of a divided merge.
_PARTS = 4


def main() -> None:
    """Merge copies of a table in each way, turn by turn, after a round that warms up."""
    task = json.loads(sys.argv[1])
    spark = spark_session("memwal benchmark", master=f"local[{_WORKERS}]")
    try:
        run = spark_runner(spark)
        backlog = memwal.open(task["uri"]).status().backlog_bytes
        if task["divided"]:
            run(range(_WORKERS), _wake_on_a_core)
            parts = MergeOptions(divide_bytes=0, commit_bytes=backlog // _PARTS, max_tasks=_PARTS)
            ways = {
                "one": replace(parts, run=partial(_by_one_worker, run)),
                "two": replace(parts, run=run),
            }
        else:
            run(range(_WORKERS), _wake)
            half = backlog // _WORKERS + 1
            ways = {
                "here": MergeOptions(run=run_in_process, max_tasks=1),
                "one": MergeOptions(run=run, max_tasks=1),
                "two": MergeOptions(run=run, max_tasks=_WORKERS),
                "halves": MergeOptions(run=run, max_tasks=1, commit_bytes=half),
                "at once": MergeOptions(run=run, max_tasks=_WORKERS, commit_bytes=half),
            }
        found: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in ways}
        for round_ in range(task["rounds"] + 1):
            for name in ways if round_ % 2 else reversed(ways):
                elapsed, result = _merged(task["uri"], Path(task["scratch"]), ways[name])
                found[name]["what"] = f"{result.tasks} tasks, {result.commits} commits"
                if round_:
                    found[name]["seconds"].append(elapsed)
    finally:
        spark.stop()
    print(json.dumps(found))


def _merged(uri: str, scratch: Path, options: MergeOptions) -> tuple[float, JobResult]:
    copy = scratch / "copy"
    shutil.copytree(uri, copy)
    try:
        location = memwal.open(str(copy)).location
        os.sync()
        started = time.perf_counter()
        result = merge(location, options)
        elapsed = time.perf_counter() - started
        if result.warnings:
            raise SystemExit(f"the merge did not do all: {result}")
        return elapsed, result
    finally:
        shutil.rmtree(copy)


def _by_one_worker(
    run: TaskRunner, tasks: Sequence[Any], function: Callable[[Any], Any]
) -> list[Any]:
    """Run tasks as a single one of Spark."""
    return run([tasks], partial(_each, function))[0] if tasks else []


def _each(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [function(task) for task in tasks]


def _wake_on_a_core(number: int) -> int:
    """Give a worker a core of its own, before Lance starts as many threads as it has cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    time.sleep(1)
    import_module("memwal.jobs.merge.divided")
    return number


def _wake(number: int) -> Sequence[int]:
    """Keep a worker busy, so that the next one is started too."""
    time.sleep(1)
    return [number]


if __name__ == "__main__":
    main()
