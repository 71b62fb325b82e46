"""A process of its own that calls everything once, and tells processor time and bytes read as JSON.

Usage: ``python -m children.growing '{"do": "read" or "write", "uri": ..., "warm": ..., ...}'``. It
first does the same with the small table ``warm``, so that what follows imports nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
from common import growing_tables

import memwal

Calls = Iterator[tuple[str, Callable[[], object]]]
"""Names and calls; what a generator does between two of them is not measured."""


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    calls = {"read": _reads, "write": _writes}[task["do"]]
    for _, call in calls(task["warm"], 1):
        call()
    found: dict[str, dict[str, float]] = {}
    for name, call in calls(task["uri"], task["regions"]):
        read, started = _bytes_read(), time.process_time()
        call()
        found[name] = {
            "ms": 1e3 * (time.process_time() - started),
            "bytes": _bytes_read() - read,
        }
    print(json.dumps(found))


def _reads(uri: str, regions: int) -> Calls:
    yield "open", lambda: memwal.open(uri).version
    table = memwal.open(uri)
    yield "first scan of one key", lambda: _scan(table, "id = 5")
    yield "second scan of one key", lambda: _scan(table, "id = 6")
    yield "filter on the key", lambda: _scan(table, "id >= 100 and id < 120")
    yield "lookup", lambda: table.lookup([7]).to_table()
    table.scan().count_rows()
    lance.dataset(uri).update_config({"bench": "a commit that changes no row"})
    yield "count after a foreign commit", lambda: table.scan().count_rows()
    vector = np.full(growing_tables.DIMENSIONS, 0.5, np.float32)
    yield "vector search", lambda: table.search(vector, columns=["id"]).to_table()
    yield "text search", lambda: table.search_text("word5", columns=["id"]).to_table()
    yield "status", table.status
    yield "plan of a merge", table.explain_merge
    yield "plan of a collection", table.collect_garbage
    yield "quick verify", lambda: table.verify(quick=True)


def _scan(table: memwal.Table, filter_: str) -> None:
    table.scan(columns=["id"], filter=filter_).to_table()


def _writes(uri: str, regions: int) -> Calls:
    table = memwal.open(uri)
    rows = growing_tables.changed_rows(table, regions, first=0)
    writer = table.writer()
    yield "first write", lambda: writer.upsert(rows)
    yield "flush", writer.flush
    writer.close()
    table = memwal.open(uri)
    yield "merge of one changed region", table.merge
    yield "index job", table.build_indexes


def _bytes_read() -> int:
    told: dict[str, Any] = dict(
        line.split(": ") for line in Path("/proc/self/io").read_text().splitlines()
    )
    return int(told["rchar"])


if __name__ == "__main__":
    main()
