"""A process of its own that merges, and tells its time and peak memory as JSON.

Usage: ``python -m children.merging '{"do": "ours", "union" or "each", "uri": ..., ...}'``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
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
    os.sync()
    reset_peak()
    baseline = memory("VmRSS")
    started = time.perf_counter()
    if task["do"] == "ours":
        merge(table.location, MergeOptions(commit_bytes=task["commit_bytes"], quality=rules))
    else:
        for source in task["sources"]:
            _native(task["uri"], lance.dataset(source), use_index=task["use_index"])
    elapsed = time.perf_counter() - started
    os.sync()
    synced = time.perf_counter() - started
    print(
        json.dumps(
            {"seconds": elapsed, "synced": synced, "baseline": baseline, "peak": memory("VmHWM")}
        )
    )


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
