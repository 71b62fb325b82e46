"""The maintenance jobs, small enough that each step of them can be tried."""

from pathlib import Path

from support.faults.fault_schedule import Job

from memwal.base_table.snapshot import open_base
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
from memwal.lsm.indexes.catchup import maintained_index_names
from memwal.storage.location import TableLocation


def rebuild(location: TableLocation) -> object:
    """Build an index again whose files lost their last bytes before."""
    base = open_base(location)
    maintained = maintained_index_names(base)
    (index, *_) = (it for it in base.dataset.describe_indices() if it.name in maintained)
    for segment in index.segments:
        for path in Path(location.uri, "_indices", segment.uuid).iterdir():
            # The file itself may be that of other copies of the table as well.
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content[: len(content) // 2])
    return build_indexes(location)


JOBS: dict[str, Job] = {
    "merge": merge,
    "merge by generation": lambda location: merge(
        location, MergeOptions(commit_bytes=1, max_tasks=2)
    ),
    "merge in parts": lambda location: merge(
        location, MergeOptions(divide_bytes=0, commit_bytes=1_000, max_tasks=2)
    ),
    "index build": build_indexes,
    "snapshot build": build_snapshot,
    "snapshot build in a file": lambda location: build_snapshot(
        location, SnapshotOptions(inline_regions=1)
    ),
    "compaction": lambda location: compact(location, CompactOptions(min_fragments=2)),
    # A recovery has steps once the logs are old enough: on a slow machine, between two trials.
    "checkpoint": lambda location: checkpoint(
        location, CheckpointOptions(commit_bytes=1, skip_recovery=True)
    ),
    # What existed when it begins is old enough, and what comes later is not.
    "collection": lambda location: collect_garbage(
        location, GcOptions(dry_run=False, grace_seconds=0, retention_seconds=0)
    ),
}
