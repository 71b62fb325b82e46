"""Checkpoint: merge and index until everything flushed at its start is in the base table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from memwal.base_table.snapshot import open_base
from memwal.errors import ConflictError
from memwal.jobs.index.job import build_indexes
from memwal.jobs.job import CheckpointProgress, HeldRegion, JobResult
from memwal.jobs.merge.job import merge
from memwal.jobs.options import CheckpointOptions, IndexOptions, MergeOptions
from memwal.quality.report import together
from memwal.region.manifest_store import read_manifests
from memwal.storage.location import TableLocation

# So often nothing may be merged, since others were faster, before it is told.
_ROUNDS = 10


def checkpoint(
    location: TableLocation, options: CheckpointOptions = CheckpointOptions()
) -> JobResult:
    """Bring every generation that is flushed now into the base table and its maintained indexes.

    Rows that writers have not flushed are not touched: flush the writer first for those.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    options : CheckpointOptions, optional

    Returns
    -------
    JobResult
        The figures of the merges and of the index build together.

    Raises
    ------
    ConflictError
        Some generation could not be merged, or it is not done in time; the message tells which,
        and why. What was merged stays merged, and another call goes on from there.
    """
    started = time.monotonic()
    timeout, progress = options.timeout_seconds, options.progress
    deadline = None if timeout is None else started + timeout
    # One commit of each task at a time, to look at the clock in between.
    merge_options = MergeOptions(
        commit_bytes=options.commit_bytes,
        run_bytes=options.commit_bytes * (options.max_tasks or 1),
        max_tasks=options.max_tasks,
        quality=options.quality,
        run=options.run,
        guard=options.guard,
    )
    target = {
        region_id: max(flushed.generation for flushed in manifest.flushed)
        for region_id, manifest in read_manifests(location.store).items()
        if manifest.flushed
    }
    before = open_base(location).details.merged
    whole = _missing(before, target)
    results: list[JobResult] = []
    held: dict[UUID, HeldRegion] = {}
    idle = 0
    left = whole
    while left:
        _tell(progress, whole - left, whole, indexing=False)
        _check_time(location, deadline, f"{left} of {whole} generations are not merged")
        # One that cannot be read is tried once, and takes no part of the budget of the others.
        behind = [region for region in _behind(location, target) if region not in held]
        results.append(merge(location, replace(merge_options, regions=behind)))
        now = _missing(open_base(location).details.merged, target)
        idle = idle + 1 if now == left and not results[-1].held else 0
        left = now
        held |= {UUID(region.region_id): region for region in results[-1].held}
        if left and (idle == _ROUNDS or (held and held.keys() >= set(behind))):
            problems = "; ".join(map(str, held.values())) or "other mergers kept getting in between"
            raise ConflictError(f"checkpoint of {location} is not complete: {problems}")
    _tell(progress, whole, whole, indexing=True)
    _check_time(location, deadline, "the maintained indexes have not caught up")
    results.append(build_indexes(location, IndexOptions(run=options.run, guard=options.guard)))
    figures: dict[str, int] = {}
    for result in results:
        for name, value in result.figures.items():
            figures[name] = figures.get(name, 0) + value
    return JobResult(
        job="checkpoint",
        table=location.uri,
        version=results[-1].version,
        tasks=sum(result.tasks for result in results),
        commits=sum(result.commits for result in results),
        seconds=time.monotonic() - started,
        figures=figures,
        problems=tuple(problem for result in results for problem in result.problems),
        quality=together(result.quality for result in results),
    )


def _tell(
    progress: Callable[[CheckpointProgress], None] | None,
    merged: int,
    generations: int,
    *,
    indexing: bool,
) -> None:
    if progress is not None:
        progress(CheckpointProgress(merged, generations, indexing))


def _check_time(location: TableLocation, deadline: float | None, left: str) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise ConflictError(
            f"checkpoint of {location} is not complete in time: {left}; call it again to go on"
        )


def _missing(merged: Mapping[UUID, int], target: Mapping[UUID, int]) -> int:
    """How many generations the base table does not have, counting numbers without a gap."""
    return sum(max(number - merged.get(region, 0), 0) for region, number in target.items())


def _behind(location: TableLocation, target: Mapping[UUID, int]) -> list[UUID]:
    """Regions that are not merged up to their target."""
    merged = open_base(location).details.merged
    return [region for region, generation in target.items() if merged.get(region, 0) < generation]
