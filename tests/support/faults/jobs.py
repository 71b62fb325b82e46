"""The maintenance jobs, small enough that each step of them can be tried."""

from __future__ import annotations

from datetime import timedelta

from support.faults.fault_schedule import Job

from memwal.jobs.gc import collect_garbage
from memwal.jobs.index.job import build_indexes
from memwal.jobs.merge.job import merge
from memwal.jobs.table.checkpoint import checkpoint
from memwal.jobs.table.compact import compact
from memwal.jobs.table.snapshot import build_snapshot

JOBS: dict[str, Job] = {
    "merge": merge,
    "merge by generation": lambda location: merge(location, commit_bytes=1, max_tasks=2),
    "index build": build_indexes,
    "snapshot build": build_snapshot,
    "snapshot build in a file": lambda location: build_snapshot(location, inline_regions=1),
    "compaction": lambda location: compact(location, min_fragments=2),
    "checkpoint": lambda location: checkpoint(location, commit_bytes=1),
    # What existed when it begins is old enough, and what comes later is not.
    "collection": lambda location: collect_garbage(
        location, dry_run=False, grace=timedelta(0), retention=timedelta(0)
    ),
}
