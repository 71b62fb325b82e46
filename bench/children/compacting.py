"""A process of its own that cleans a table up, and tells processor time and peak memory as JSON.

Usage: ``python -m children.compacting '{"do": "compact", "ours" or "optimize", "uri": ...}'``:
``ours`` compacts, builds the indexes and collects garbage; ``optimize`` is LanceDB's.
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
from children.peak import memory, reset_peak

_MODULES = ("jobs.table.compact", "jobs.index.job", "jobs.gc.job", "base_table.namespaces")


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    run = _run(task["do"], Path(task["uri"]))
    for module in _MODULES:
        import_module(f"memwal.{module}")
    reset_peak()
    baseline = memory("VmRSS")
    worked = time.process_time()
    metrics = run()
    processor = time.process_time() - worked
    peak = memory("VmHWM")
    print(json.dumps({"processor": processor, "baseline": baseline, "peak": peak, **metrics}))


def _run(do: str, path: Path) -> Callable[[], dict[str, Any]]:
    if do == "optimize":
        native = lancedb.connect(path.parent).open_table(path.stem)
        return lambda: dict(native.optimize() or {})
    table = memwal.open(str(path))
    table.status()

    def ours() -> dict[str, Any]:
        metrics = table.compact().metrics
        if do == "ours":
            table.build_indexes()
            table.collect_garbage(dry_run=False)
        return dict(metrics)

    return ours


if __name__ == "__main__":
    main()
