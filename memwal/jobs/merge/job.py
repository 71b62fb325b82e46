"""Merge flushed generations into the base table: selection, tasks, and order of commits.

A single commit is made by :mod:`memwal.jobs.merge.commit`. Lance refuses it when rows were appended
to the table meanwhile, since the appended rows may have the same keys. Next to a writer that
appends faster than a large commit takes, commits shrink until they get through.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from memwal.base_table.snapshot import BaseTable, open_base
from memwal.format.paths import generation_dir
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.jobs.job import Guard, JobResult, guarded
from memwal.jobs.merge.commit import Contended, MergeOutcome, merge_commit
from memwal.jobs.merge.read import Generation, RegionBatch
from memwal.jobs.options import MergeOptions
from memwal.quality.report import combine
from memwal.quality.rules import QualityRules
from memwal.region.manifest_store import read_manifests
from memwal.storage.location import TableLocation

# A commit of many generations is tried so often before it shrinks, one that cannot so often.
_TRIES = 4
_ATTEMPTS = 50
_SHRINK = 4
_GROW = 2


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Regions that one worker merges, in commits of up to ``commit_bytes``.

    A region stands in one task only, so that tasks do not get in each other's way; that two runs
    may overlap is what the commits themselves are safe against.
    """

    location: TableLocation
    regions: tuple[RegionBatch, ...]
    commit_bytes: int
    quality: QualityRules | None = None


def merge(location: TableLocation, options: MergeOptions = MergeOptions()) -> JobResult:
    """Merge every flushed generation that the base table does not have.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    options : MergeOptions, optional

    Returns
    -------
    JobResult
        Figures ``generations``, ``rows_upserted``, ``rows_deleted``, and the ``bytes`` in memory
        of these generations; one problem for each region that had to be left out; what the rules of
        quality found.
    """
    started = time.monotonic()
    tasks = plan_merge(location, options)
    outcomes: list[MergeOutcome] = (
        options.run(tasks, guarded(run_merge_task, options.guard)) if tasks else []
    )
    held = tuple(region for outcome in outcomes for region in outcome.held)
    found = combine(report for outcome in outcomes for report in outcome.quality)
    return JobResult(
        job="merge",
        table=location.uri,
        version=open_base(location).version,
        tasks=len(tasks),
        commits=sum(outcome.commits for outcome in outcomes),
        seconds=time.monotonic() - started,
        figures={
            "generations": sum(outcome.generations for outcome in outcomes),
            "rows_upserted": sum(outcome.rows_upserted for outcome in outcomes),
            "rows_deleted": sum(outcome.rows_deleted for outcome in outcomes),
            "bytes": sum(outcome.bytes for outcome in outcomes),
        },
        problems=(*map(str, held), *(found.problems() if found is not None else ())),
        held=held,
        quality=None if found is None else found.to_dict(),
    )


def plan_merge(
    location: TableLocation, options: MergeOptions = MergeOptions()
) -> tuple[MergeTask, ...]:
    """Divide the backlog into tasks of about the same size; see :func:`merge`."""
    commit_bytes, quality = options.commit_bytes, options.quality
    if quality is not None and not quality.gates:
        quality = None
    skip_regions = set(options.skip_regions)
    manifests = read_manifests(location.store, options.regions)
    base = open_base(location)
    base.require_mem_wal()
    batches = [
        RegionBatch(region_id, pending)
        for region_id, manifest in manifests.items()
        if region_id not in skip_regions
        and (pending := pending_generations(location, base, manifest))
    ]
    if options.run_bytes is not None:
        batches = _oldest(batches, options.run_bytes)
    whole_commits = -(-sum(batch.bytes for batch in batches) // max(commit_bytes, 1))
    # No task for an empty backlog, and one where the sizes are unknown.
    count = min(options.max_tasks or 1, len(batches), max(whole_commits, 1))
    shares: list[list[RegionBatch]] = [[] for _ in range(count)]
    for batch in sorted(batches, key=lambda batch: batch.bytes, reverse=True):
        min(shares, key=lambda share: sum(b.bytes for b in share)).append(batch)
    return tuple(MergeTask(location, tuple(share), commit_bytes, quality) for share in shares)


def _oldest(batches: Sequence[RegionBatch], budget: int) -> list[RegionBatch]:
    """What fits the budget, level by level: the oldest generation of each region, then the next.

    No region waits for another one to be merged whole. Within a level any may come first: were it
    always the same ones, and the budget too small for a level, others would wait for ever.
    """
    order = random.sample(range(len(batches)), len(batches))
    levels = sorted(
        (level, turn, number)
        for turn, number in enumerate(order)
        for level in range(len(batches[number].generations))
    )
    taken = [0] * len(batches)
    size = 0
    for level, _, number in levels:
        size += batches[number].generations[level].bytes
        if size > budget and any(taken):
            break
        taken[number] = level + 1
    return [
        replace(batch, generations=batch.generations[:count])
        for batch, count in zip(batches, taken, strict=True)
        if count
    ]


def pending_generations(
    location: TableLocation, base: BaseTable, manifest: RegionManifest
) -> tuple[Generation, ...]:
    """Generations of a region that are flushed and not merged, oldest first."""
    merged = base.details.merged.get(manifest.region_id, 0)
    return tuple(
        Generation(flushed.generation, flushed.path, _size(location, manifest.region_id, flushed))
        for flushed in sorted(manifest.flushed, key=lambda flushed: flushed.generation)
        if flushed.generation > merged
    )


def run_merge_task(task: MergeTask, *, guard: Guard | None = None) -> MergeOutcome:
    """Merge a task's generations, one commit after another, oldest first within each region.

    A region whose generations cannot be read stops at that point and is reported; the others go
    on. Safe to run any number of times, also at the same time as any other merger.
    """
    outcome = MergeOutcome()
    left = list(task.regions)
    budget = task.commit_bytes
    while left:
        now, later = _next_commit(left, budget)
        size = sum(batch.bytes for batch in now)
        single = sum(len(batch.generations) for batch in now) == 1
        try:
            attempts = _ATTEMPTS if single else _TRIES
            done = merge_commit(
                task.location, now, attempts=attempts, look=guard or _go_on, rules=task.quality
            )
        except Contended:
            if single:
                raise
            # A smaller commit takes less time, in which less can get in between.
            budget = max(size // _SHRINK, 1)
            continue
        left = later
        budget = min(budget * _GROW, task.commit_bytes)
        outcome = replace(
            outcome,
            version=max(outcome.version, done.version),
            commits=outcome.commits + done.commits,
            generations=outcome.generations + done.generations,
            rows_upserted=outcome.rows_upserted + done.rows_upserted,
            rows_deleted=outcome.rows_deleted + done.rows_deleted,
            bytes=outcome.bytes + done.bytes,
            held=(*outcome.held, *done.held),
            quality=(*outcome.quality, *done.quality),
        )
        stopped = {held.region_id for held in done.held}
        left = [batch for batch in left if str(batch.region_id) not in stopped]
    return outcome


def _next_commit(
    batches: Sequence[RegionBatch], budget: int
) -> tuple[list[RegionBatch], list[RegionBatch]]:
    """Split off what fits one commit; at least one generation, and never a later one first."""
    now: list[RegionBatch] = []
    later: list[RegionBatch] = []
    size = 0
    for batch in batches:
        taken = 0
        for generation in batch.generations:
            if size and size + generation.bytes > budget:
                break
            size += generation.bytes
            taken += 1
        if taken:
            now.append(replace(batch, generations=batch.generations[:taken]))
        if taken < len(batch.generations):
            later.append(replace(batch, generations=batch.generations[taken:]))
    return now, later


def _go_on() -> None:
    """Stands for the guard of a job that has none."""


def _size(location: TableLocation, region_id: UUID, flushed: FlushedGeneration) -> int:
    if flushed.memory_bytes is not None:
        return flushed.memory_bytes
    folder = generation_dir(region_id, flushed.path)
    return sum(info.size for info in location.store.list(f"{folder}/data"))
