"""A process of its own that does one job on a table of very many regions.

Usage: ``python -m children.region_jobs '{"do": "status", "uri": ..., "storage_options": ...}'``. It
writes a line when it is ready, waits for one, does it, and tells time and peak memory as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import memwal
from children.peak import memory, reset_peak
from memwal.jobs.backlog import read_status
from memwal.jobs.gc import collect_garbage
from memwal.jobs.options import GcOptions
from memwal.jobs.table.snapshot import build_snapshot
from memwal.storage.location import TableLocation

# What was made just now must look as old as garbage has to be.
_LATER = timedelta(seconds=2 * (GcOptions().retention_seconds + GcOptions().grace_seconds))


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    location = memwal.open(task["uri"], storage_options=task["storage_options"]).location
    job = _job(location, task["do"])
    print(flush=True)
    sys.stdin.readline()
    reset_peak()
    baseline = memory("VmRSS")
    started = time.perf_counter()
    kept = job()
    elapsed = time.perf_counter() - started
    print(json.dumps({"seconds": elapsed, "baseline": baseline, "peak": memory("VmHWM")}))
    del kept


def _job(location: TableLocation, name: str) -> Callable[[], object]:
    if name == "status-again":
        read_status(location)
    jobs: dict[str, Callable[[], object]] = {
        "status": partial(read_status, location),
        "status-again": partial(read_status, location),
        "snapshot": partial(build_snapshot, location),
        "gc-dry": partial(_collect, location, later=_LATER, dry_run=True),
        "gc-drop": partial(_collect, location, later=_LATER),
        "gc-delete": partial(_collect, location, later=2 * _LATER),
    }
    return jobs[name]


def _collect(location: TableLocation, *, later: timedelta, dry_run: bool = False) -> object:
    now = time.time() + later.total_seconds()
    return collect_garbage(location, GcOptions(dry_run=dry_run), clock=lambda: now)


if __name__ == "__main__":
    main()
