"""The maintenance jobs, small enough that each step of them can be tried."""

from __future__ import annotations

from support.faults.fault_schedule import Job

from memwal.jobs.gc import collect_garbage
from memwal.jobs.index.job import build_indexes
from memwal.jobs.merge.job import merge
from memwal.jobs.options import (
    CheckpointOptions,
    CompactOptions,
    GcOptions,
    MergeOptions,
    SnapshotOptions,
)
from memwal.jobs.table.checkpoint import checkpoint
from memwal.jobs.table.compact import compact
from memwal.jobs.table.snapshot import build_snapshot

JOBS: dict[str, Job] = {
    "merge": merge,
    "merge by generation": lambda location: merge(
        location, MergeOptions(commit_bytes=1, max_tasks=2)
    ),
    "index build": build_indexes,
    "snapshot build": build_snapshot,
    "snapshot build in a file": lambda location: build_snapshot(
        location, SnapshotOptions(inline_regions=1)
    ),
    "compaction": lambda location: compact(location, CompactOptions(min_fragments=2)),
    "checkpoint": lambda location: checkpoint(location, CheckpointOptions(commit_bytes=1)),
    # What existed when it begins is old enough, and what comes later is not.
    "collection": lambda location: collect_garbage(
        location, GcOptions(dry_run=False, grace_seconds=0, retention_seconds=0)
    ),
}
