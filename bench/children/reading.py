"""A process of its own that reads, and tells its peak memory, time or requests as JSON.

Usage: ``python -m children.reading '{"do": "scan", "uri": ..., ...}'``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from common import tables
from common.s3 import gateway_before
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, LsmVectorSearchPlanner

import memwal
from children.peak import memory, reset_peak

_QUERIES = 3
_MANY = 1_000
_LOOKUP = "lookup of 1 key"
_LOOKUPS = f"lookup of {_MANY:,} keys"
_FOUND = 10


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    actions = {
        "scan": _scan,
        "feed": _feed,
        "first-scan": _first_scan,
        "filtered-counts": _filtered_counts,
        "narrow-scan": _narrow_scan,
        "load": _load,
        "requests": _requests,
    }
    print(json.dumps(actions[task["do"]](task)))


def _scan(task: dict[str, Any]) -> dict[str, int]:
    """Peak memory of a scan whose batches nobody keeps."""
    table = memwal.open(task["uri"])
    # What the first use of either side imports belongs to the baseline.
    table.base()
    read = (_native if task["side"] == "native" else _ours)(table)["scan"]
    reset_peak()
    baseline = memory("VmRSS")
    for _ in read(0):
        pass
    return {"baseline": baseline, "peak": memory("VmHWM")}


def _feed(task: dict[str, Any]) -> dict[str, float]:
    """Rows, processor time, bytes and peak memory of a feed's first read, or of Lance's scan.

    Nobody keeps the batches.
    """

    def ours(uri: str, token: str | None) -> int:
        return sum(batch.num_rows for batch in memwal.open(uri).changes(token).to_batches())

    def native(uri: str, _: str | None) -> int:
        return sum(batch.num_rows for batch in lance.dataset(uri).to_batches())

    read = native if task["side"] == "native" else ours
    # What the first use imports is not counted.
    read(task["warm"], None)
    reset_peak()
    baseline, before = memory("VmRSS"), _bytes_read()
    started = time.process_time()
    rows = read(task["uri"], task.get("token"))
    seconds = time.process_time() - started
    peak = memory("VmHWM") - baseline
    return {"rows": rows, "seconds": seconds, "bytes": _bytes_read() - before, "peak": peak}


def _first_scan(task: dict[str, Any]) -> dict[str, float]:
    """Processor time and rows of the first scan of a process."""
    table = memwal.open(task["uri"])
    table.base()
    started = time.process_time()
    rows = table.scan(filter=task.get("filter")).to_table().num_rows
    return {"seconds": time.process_time() - started, "rows": rows}


def _filtered_counts(task: dict[str, Any]) -> dict[str, list[int]]:
    """Bytes that some counts with a filter read, one after the other, beyond those without one."""
    table = memwal.open(task["uri"])
    table.scan().count_rows()
    plain, found = _bytes_read(), []
    table.scan().count_rows()
    plain = _bytes_read() - plain
    for _ in range(task["counts"]):
        before = _bytes_read()
        table.scan(filter=task["filter"]).count_rows()
        found.append(_bytes_read() - before - plain)
    return {"bytes": found}


def _narrow_scan(task: dict[str, Any]) -> dict[str, int]:
    """Bytes that a scan of some columns with a filter reads."""
    table = memwal.open(task["uri"])
    before = _bytes_read()
    table.scan(columns=task["columns"].split(","), filter=task["filter"]).to_table()
    return {"bytes": _bytes_read() - before}


def _load(task: dict[str, Any]) -> dict[str, int]:
    """Bytes that the driver and the tasks of a load of Spark read."""
    from memwal.spark.source.partition_reader import read_partition
    from memwal.spark.source.scan_plan import parse_options, plan_load

    location = memwal.open(task["uri"]).location
    before = _bytes_read()
    options = parse_options({"path": task["uri"], **task["options"]})
    plan = plan_load(location, options, columns=options.columns)
    for partition in plan.partitions:
        for _ in read_partition(plan, partition):
            pass
    return {"bytes": _bytes_read() - before}


def _bytes_read() -> int:
    """Bytes that this process has read, those that the system had in memory included."""
    fields = Path("/proc/self/io").read_text().split()
    return int(fields[fields.index("rchar:") + 1])


def _requests(task: dict[str, Any]) -> dict[str, list[int]]:
    """Requests of some queries of each kind, one after the other."""
    options = task["storage_options"]
    with gateway_before(options["aws_endpoint"]) as proxy:
        options["aws_endpoint"] = proxy.endpoint
        # Lance's lookups open generations without the options of the base table.
        os.environ.update({name.upper(): value for name, value in options.items()})
        os.environ["AWS_ALLOW_HTTP"] = "true"
        table = memwal.open(task["uri"], storage_options=options)
        kinds = _native(table) if task["side"] == "native" else _ours(table)
        counted: dict[str, list[int]] = {kind: [] for kind in kinds}
        for kind, query in kinds.items():
            for number in range(_QUERIES):
                proxy.taken()
                for _ in query(number):
                    pass
                counted[kind].append(len(proxy.taken()))
    if task["side"] == "native":
        # It has no way but one by one.
        counted[_LOOKUPS] = [count * _MANY for count in counted[_LOOKUP]]
    return counted


Queries = dict[str, Callable[[int], Any]]


def _ours(table: memwal.Table) -> Queries:
    """What each kind of query reads; the number makes another one of the kind."""
    vectors, texts, keys = _wanted()
    return {
        "count": lambda n: [table.scan().count_rows()],
        "scan": lambda n: table.scan().to_batches(),
        _LOOKUP: lambda n: [table.lookup(pa.array([n])).to_table()],
        _LOOKUPS: lambda n: [table.lookup(keys[n]).to_table()],
        "vector search": lambda n: [table.search(vectors[n], k=_FOUND).to_table()],
        "text search": lambda n: [table.search_text(texts[n], k=_FOUND).to_table()],
    }


def _native(table: memwal.Table) -> Queries:
    """The same by Lance's readers, which are told where the generations are."""
    vectors, _, _ = _wanted()
    base = lance.dataset(table.uri, storage_options=dict(table.location.storage_options))
    snapshots = tables.native_snapshots(table)
    lookup = LsmPointLookupPlanner(base, snapshots, pk_columns=["id"])
    search = LsmVectorSearchPlanner(base, snapshots, "vector", pk_columns=["id"])
    return {
        "count": lambda n: [LsmScanner.from_snapshots(base, snapshots).count_rows()],
        "scan": lambda n: (
            LsmScanner.from_snapshots(base, snapshots).project(table.schema.names).to_batches()
        ),
        _LOOKUP: lambda n: [lookup.plan_lookup(pa.array([n])).to_table()],
        "vector search": lambda n: [search.plan_search(vectors[n], k=_FOUND).to_table()],
    }


def _wanted() -> tuple[list[pa.Array], list[str], list[pa.Array]]:
    """A vector, a text and a thousand keys for each query."""
    rows = tables.wide_rows(_QUERIES, -_QUERIES)
    random = np.random.default_rng(0)
    vectors = [
        pa.array(random.random(tables.DIMENSIONS, dtype=np.float32)) for _ in range(_QUERIES)
    ]
    keys = [pa.array(random.choice(_MANY * 2, _MANY, replace=False)) for _ in range(_QUERIES)]
    return vectors, rows["text"].to_pylist(), keys


if __name__ == "__main__":
    main()
