"""A process of its own that writes or replays, and tells its time and peak memory as JSON.

Usage: ``python -m children.writing '{"do": "write" or "replay", "uri": ..., ...}'``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from common import tables

import memwal
from children.peak import memory, reset_peak


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    table = memwal.open(task["uri"])
    # What the first use of either side imports belongs to the baseline.
    table.base()
    reset_peak()
    baseline = memory("VmRSS")
    started = time.perf_counter()
    {"write": _write, "replay": _replay}[task["do"]](table, task)
    elapsed = time.perf_counter() - started
    result = {"seconds": elapsed, "baseline": baseline, "peak": memory("VmHWM")}
    print(json.dumps(result))


def _write(table: memwal.Table, task: dict[str, Any]) -> None:
    with tables.open_ours(table, memwal.WriterOptions(**task["options"])) as writer:
        for start in range(0, task["rows"], task["batch"]):
            if task.get("padding"):
                writer.upsert(tables.narrow_rows(task["batch"], start, padding=task["padding"]))
            else:
                writer.upsert(tables.wide_rows(task["batch"], start))


def _replay(table: memwal.Table, task: dict[str, Any]) -> None:
    # Left without a flush: the next replay would have less to do.
    tables.open_ours(table, memwal.WriterOptions(**task["options"])).abort()


if __name__ == "__main__":
    main()
