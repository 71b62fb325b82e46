"""Checkpoint: merge and index until everything flushed at its start is in the base table.

The index build covers all rows of the base table, also rows that were appended to it directly.

Rows that dead writers left in the log are flushed before that. Rows of writers that may be alive
are not, and the result tells how many regions have such rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from memwal.base_table.region_marks import raise_marks, read_marks
from memwal.base_table.required_regions import read_regions
from memwal.base_table.snapshot import open_base
from memwal.errors import ConflictError
from memwal.jobs.index.job import build_indexes
from memwal.jobs.job import JobResult, SkippedRegion, task_limit
from memwal.jobs.merge.job import merge
from memwal.jobs.options import (
    CheckpointOptions,
    IndexOptions,
    MergeOptions,
    RecoverOptions,
)
from memwal.jobs.progress import Meter, Report, Unit, reporting
from memwal.jobs.table.recover import recover
from memwal.quality.report import merge_report_dicts
from memwal.storage.location import TableLocation
from memwal.util.clock import in_seconds

# Merges in a row that merged nothing, because other mergers were faster, before it fails.
_MAX_IDLE_MERGES = 10


def checkpoint(
    location: TableLocation, options: CheckpointOptions = CheckpointOptions()
) -> JobResult:
    """Merge every generation that is flushed now, and extend the indexes over the base table.

    Regions without a living writer are recovered first. Rows that other writers have not flushed
    are not merged: flush these writers first. A warning tells how many regions have such rows.

    Returns
    -------
    JobResult
        The metrics of the merges and of the index build together.

    Raises
    ------
    ConflictError
        A generation could not be merged, or the timeout passed; the message names it, and the
        reason. Merged generations stay merged, and another call continues from there.
    """
    with reporting(options.progress) as report:
        return _checkpoint(location, options, report)


def _checkpoint(location: TableLocation, options: CheckpointOptions, report: Report) -> JobResult:
    started = time.monotonic()
    timeout = options.timeout_seconds
    deadline = None if timeout is None else started + in_seconds(timeout)
    # One commit of each task at a time, to look at the clock in between.
    merge_options = MergeOptions(
        commit_bytes=options.commit_bytes,
        max_tasks=options.max_tasks,
        quality=options.quality,
        run=options.run,
        guard=options.guard,
    )
    results: list[JobResult] = []
    if not options.skip_recovery:
        results.append(_recover(location, options, report))
    found = read_regions(location)
    target = {
        region_id: max(flushed.generation for flushed in manifest.flushed)
        for region_id, manifest in found.manifests.items()
        if manifest.flushed
    }
    total = _count_unmerged(found.base.details.merged, target)
    skipped: dict[UUID, SkippedRegion] = {}
    idle = 0
    meter = Meter(report, job="merge", step="merging", unit=Unit.GENERATIONS, total=total)
    remaining = total
    while remaining:
        _check_time(location, deadline, f"{remaining} of {total} generations are not merged")
        # A region that cannot be read is tried once, and uses no budget of the others after that.
        merged = open_base(location).details.merged
        behind = [
            region
            for region, generation in target.items()
            if merged.get(region, 0) < generation and region not in skipped
        ]
        run_bytes = options.commit_bytes * task_limit(options)
        round_options = replace(merge_options, regions=behind, run_bytes=run_bytes)
        results.append(merge(location, round_options))
        unmerged = _count_unmerged(open_base(location).details.merged, target)
        meter.advance(remaining - unmerged)
        idle = idle + 1 if unmerged == remaining and not results[-1].skipped_regions else 0
        remaining = unmerged
        skipped |= {UUID(region.region_id): region for region in results[-1].skipped_regions}
        if remaining and (idle == _MAX_IDLE_MERGES or (skipped and skipped.keys() >= set(behind))):
            reasons = "; ".join(map(str, skipped.values())) or "other mergers were always faster"
            raise ConflictError(f"checkpoint of {location} is not complete: {reasons}")
    # Another merger may not have written these marks yet, or died before. Without them, generations
    # that this checkpoint reports as merged would be pending again if the base table lost its
    # progress.
    marks = read_marks(location.store)
    merged = open_base(location).details.merged
    raise_marks(location.store, marks, {region: merged.get(region, 0) for region in target})
    meter.finish()
    _check_time(location, deadline, "the maintained indexes have not caught up")
    index_options = IndexOptions(run=options.run, guard=options.guard, progress=report)
    results.append(build_indexes(location, index_options))
    metrics = Counter[str]()
    for result in results:
        metrics.update(result.metrics)
    return JobResult(
        job="checkpoint",
        table=location.uri,
        version=results[-1].version,
        tasks=sum(result.tasks for result in results),
        commits=sum(result.commits for result in results),
        seconds=time.monotonic() - started,
        metrics=dict(metrics),
        warnings=tuple(warning for result in results for warning in result.warnings),
        quality=merge_report_dicts(result.quality for result in results),
    )


def _recover(location: TableLocation, options: CheckpointOptions, report: Report) -> JobResult:
    """Recover the regions that need it, and warn of regions that may have a living writer."""
    result = recover(
        location,
        RecoverOptions(
            max_tasks=options.max_tasks, run=options.run, guard=options.guard, progress=report
        ),
    )
    left = result.metrics["unflushed_regions"]
    result = replace(result, metrics={name: n for name, n in result.metrics.items() if n})
    if not left:
        return result
    warning = (
        f"rows that their writers have not flushed are not merged (regions: {left}); flush these "
        "writers, or recover the regions when they are gone"
    )
    return replace(result, warnings=(*result.warnings, warning))


def _check_time(location: TableLocation, deadline: float | None, unfinished: str) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise ConflictError(
            f"checkpoint of {location} is not complete in time: {unfinished}; call it "
            "again to continue"
        )


def _count_unmerged(merged: Mapping[UUID, int], target: Mapping[UUID, int]) -> int:
    """Count the generations that the base table does not have, by their numbers."""
    return sum(max(number - merged.get(region, 0), 0) for region, number in target.items())
