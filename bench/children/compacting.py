"""A process of its own that cleans a table up, and tells processor time and peak memory as JSON.

Usage: ``python -m children.compacting '{"do": "compact", "ours" or "optimize", "uri": ...}'``:
``ours`` compacts, builds the indexes and collects garbage, with ``workers`` by so many processes
that have a core each; ``optimize`` is LanceDB's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import lancedb

import memwal
from children.merging import TimedRun
from children.peak import memory, reset_peak
from memwal.jobs.index.job import build_indexes
from memwal.jobs.options import CompactOptions, IndexOptions
from memwal.jobs.table.compact import compact

_MODULES = ("jobs.gc.job", "base_table.namespaces")


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    run = _run(task["do"], Path(task["uri"]), task.get("workers"))
    for module in _MODULES:
        import_module(f"memwal.{module}")
    reset_peak()
    baseline = memory("VmRSS")
    started, worked = time.perf_counter(), time.process_time()
    metrics = run()
    taken = {
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - worked,
        "baseline": baseline,
        "peak": memory("VmHWM"),
    }
    print(json.dumps({**taken, **metrics}))


def _run(do: str, path: Path, workers: int | None) -> Callable[[], dict[str, Any]]:
    if do == "optimize":
        native = lancedb.connect(path.parent).open_table(path.stem)
        return lambda: dict(native.optimize() or {})
    table = memwal.open(str(path))
    table.status()

    several = {} if workers is None else {"run": TimedRun(workers)}

    def ours() -> dict[str, Any]:
        metrics = compact(table.location, CompactOptions(**several)).metrics
        if do == "ours":
            build_indexes(table.location, IndexOptions(**several))
            table.collect_garbage(dry_run=False)
        return dict(metrics)

    return ours


if __name__ == "__main__":
    main()
