"""A process of its own that merges, and tells its time and peak memory as JSON.

Usage: ``python -m children.merging '{"do": "ours", "union" or "each", "uri": ..., ...}'``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from multiprocessing.pool import Pool
from queue import Queue
from typing import Any

import lance

import memwal
from children.peak import memory, reset_peak
from memwal.jobs.merge.job import merge
from memwal.jobs.options import MergeOptions
from memwal.quality.rules import QualityRules


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    table = memwal.open(task["uri"])
    table.base()
    gate = task.get("quality")
    rules = QualityRules.from_dict(gate) if gate else None
    import_module("memwal.base_table.namespaces")
    if task.get("appends"):
        # Lance imports it once a process, when a commit is refused.
        import_module("lance_namespace")
    limits = {
        name: task[name] for name in ("commit_bytes", "divide_bytes", "max_tasks") if name in task
    }
    timed = TimedRun(task.get("workers"))
    metrics: Mapping[str, int] = {}
    with _appender(task["uri"]) if task.get("appends") else nullcontext():
        os.sync()
        reset_peak()
        baseline = memory("VmRSS")
        started, worked = time.perf_counter(), time.process_time()
        if task["do"] == "ours":
            options = MergeOptions(**limits, quality=rules, run=timed)
            result = merge(table.location, options)
            metrics = {**result.metrics, "commits": result.commits}
        else:
            for source in task["sources"]:
                _native(task["uri"], lance.dataset(source), use_index=task["use_index"])
        elapsed, processor = time.perf_counter() - started, time.process_time() - worked
    os.sync()
    synced = time.perf_counter() - started
    print(
        json.dumps(
            {
                "seconds": elapsed,
                "processor": processor,
                "synced": synced,
                "baseline": baseline,
                "peak": memory("VmHWM"),
                "tasks": len(timed.seconds),
                "all_tasks": sum(timed.seconds),
                "stages": timed.stages,
                "critical_path": elapsed - sum(timed.seconds) + timed.longest,
                **metrics,
            }
        )
    )


@contextmanager
def _appender(uri: str) -> Iterator[None]:
    """Let another process append a row ten times a second meanwhile."""
    command = [sys.executable, "-m", "children.appending", uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.terminate()


class TimedRun:
    """Runs tasks here, or on workers that have a core each, and takes their time."""

    def __init__(self, workers: int | None) -> None:
        self.seconds: list[float] = []
        self.stages: list[float] = []  # of each batch of tasks, together
        self.longest = 0.0  # of each batch of tasks the longest, together
        self._workers = workers
        self._free: Queue[Pool] = Queue()
        cores = sorted(os.sched_getaffinity(0))
        for number in range(workers or 0):
            # A process starts with the cores of its parent, and Lance as many threads.
            os.sched_setaffinity(0, {cores[number % len(cores)]})
            pool = multiprocessing.get_context("spawn").Pool(1)
            pool.apply(_warm_up)
            self._free.put(pool)
        os.sched_setaffinity(0, cores)

    def __call__(self, tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        call = partial(_timed, function)
        if self._workers is None:
            done = list(map(call, tasks))
        else:
            with ThreadPoolExecutor(self._workers) as threads:
                done = list(threads.map(partial(self._on_worker, call), tasks))
        taken = [seconds for seconds, _ in done]
        self.seconds += taken
        self.stages.append(sum(taken))
        self.longest += max(taken, default=0.0)
        return [result for _, result in done]

    def _on_worker(self, call: Callable[[Any], Any], task: Any) -> Any:
        worker = self._free.get()
        try:
            return worker.apply(call, (task,))
        finally:
            self._free.put(worker)


def _timed(function: Callable[[Any], Any], task: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = function(task)
    return time.perf_counter() - started, result


def _warm_up() -> None:
    for module in ("merge.divided", "table.compact", "index.job"):
        import_module(f"memwal.jobs.{module}")


def _native(uri: str, source: lance.LanceDataset, *, use_index: bool) -> Any:
    return (
        lance.dataset(uri)
        .merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .use_index(use_index)
        .execute(source.to_table())
    )


if __name__ == "__main__":
    main()
