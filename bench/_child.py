"""A process of its own that writes or replays, and tells its time and peak memory as JSON.

Usage: ``python bench/_child.py '{"do": "write" or "replay", "uri": ..., ...}'``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import _tables as tables

import memwal


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
            writer.upsert(tables.wide_rows(task["batch"], start))


def _replay(table: memwal.Table, task: dict[str, Any]) -> None:
    # Left without a flush: the next replay would have less to do.
    tables.open_ours(table, memwal.WriterOptions(**task["options"])).abort()


def memory(key: str) -> int:
    """Bytes in a line of ``/proc/self/status``: now in ``VmRSS``, at most in ``VmHWM``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {key}")


def reset_peak() -> None:
    """Forget the peak memory of this process so far."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
