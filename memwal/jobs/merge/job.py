"""Merge flushed generations into the base table: candidates, tasks, and order of commits.

:mod:`memwal.jobs.merge.picker` selects the generations. A large selection is divided into tasks
(:mod:`memwal.jobs.merge.divided`). A small one is merged by one worker:
:mod:`memwal.jobs.merge.commit` makes a single commit. Lance refuses it when rows were appended to
the table meanwhile, since the appended rows may have the same keys. Next to a writer that appends
faster than a large commit takes, commits shrink until they succeed.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from memwal.base_table.commit_records import was_taken_away
from memwal.base_table.region_marks import (
    UNMARKED,
    RegionMark,
    check_progress,
    lost_progress,
    raise_marks,
)
from memwal.base_table.required_regions import read_regions
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ProgressLostError
from memwal.format.paths import generation_dir
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.jobs.backlog import generation_age
from memwal.jobs.job import Guard, JobResult, guarded
from memwal.jobs.merge.commit import MergeContentionError, MergeOutcome, merge_commit
from memwal.jobs.merge.divided import merge_divided
from memwal.jobs.merge.picker import (
    MergePicker,
    MergePlan,
    RegionCandidates,
    RegionSelection,
    pending_candidates,
    split_commit,
)
from memwal.jobs.merge.progress import finish_runs
from memwal.jobs.options import MergeOptions
from memwal.jobs.progress import NO_METER, Meter, NoMeter, Unit, reporting
from memwal.jobs.shared_keys import held_regions
from memwal.quality.report import combine_reports
from memwal.quality.rules import QualityRules
from memwal.storage.location import TableLocation

# Attempts of a commit of several generations before it shrinks, and of one generation alone.
_ATTEMPTS_BEFORE_SHRINKING = 4
_MAX_ATTEMPTS = 50
_SHRINK = 4
_GROW = 2


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Regions that one worker merges, in commits of up to ``commit_bytes``.

    A region is in one task only, so that the tasks do not conflict. That two runs may overlap is
    what the commits themselves are safe against.
    """

    location: TableLocation
    regions: tuple[RegionSelection, ...]
    commit_bytes: int
    quality: QualityRules | None = None


def merge(location: TableLocation, options: MergeOptions = MergeOptions()) -> JobResult:
    """Merge every flushed generation that the base table does not have.

    Returns
    -------
    JobResult
        Metrics ``generations``, ``rows_upserted``, ``rows_deleted``, the ``bytes`` in memory of
        these generations, and what was read of the base table and its indexes (``bytes_read``)
        and written to it (``bytes_written``); one warning for each region that was not merged to
        the end; what the quality rules found.
    """
    started = time.monotonic()
    finish_runs(location)
    plan = plan_merge(location, options)
    total = sum(selection.bytes for selection in plan.selections)
    with reporting(options.progress) as report:
        meter = Meter(report, job="merge", step="merging", unit=Unit.BYTES, total=total)
        outcomes = _run(location, plan, options, meter)
        meter.finish()
    merged = functools.reduce(_add, outcomes, MergeOutcome(skipped=plan.held))
    skipped, quality = merged.skipped, combine_reports(merged.quality)
    return JobResult(
        job="merge",
        table=location.uri,
        version=open_base(location).version,
        tasks=len(plan.parts or plan.tasks),
        commits=merged.commits,
        seconds=time.monotonic() - started,
        metrics={
            "generations": merged.generations,
            "rows_upserted": merged.rows_upserted,
            "rows_deleted": merged.rows_deleted,
            "bytes": merged.bytes,
            "bytes_read": merged.bytes_read,
            "bytes_written": merged.bytes_written,
        },
        warnings=(*map(str, skipped), *(quality.warnings() if quality is not None else ())),
        skipped_regions=skipped,
        quality=None if quality is None else quality.to_dict(),
    )


def explain_merge(
    location: TableLocation,
    options: MergeOptions = MergeOptions(),
    *,
    clock: Callable[[], float] = time.time,
) -> MergePlan:
    """Plan a merge without running it, and explain the decision about every pending generation.

    Costs one request more for each pending generation than the plan of :func:`merge`, for its age,
    and reads regions that are left out as well. With ``run_bytes``, each plan draws another order
    of the regions, as each merge does. Runner and guard of the options are not used; ``clock``
    returns seconds since the epoch.
    """
    now = clock()
    found = read_regions(location)

    def age(region_id: UUID, flushed: FlushedGeneration) -> float | None:
        return generation_age(location, region_id, flushed.path, now)

    candidates = read_candidates(found.base, found.manifests.values(), age=age)
    held = held_regions(found.base, found.manifests, options)
    picker = MergePicker(
        _fitting(options, found.base), held, divides=found.base.has_narrow_dictionaries
    )
    return picker.pick(candidates, seed=random.random())  # noqa: S311


def plan_merge(location: TableLocation, options: MergeOptions = MergeOptions()) -> MergePlan:
    """Select what a merge takes, divided into tasks; see :func:`merge`.

    Writes the marks of regions that have none, and those that are behind the merge progress. Raises
    ProgressLostError if the base table is behind the marks, or MemWAL was enabled anew.

    Regions with rows of the same key are held: see :func:`memwal.jobs.shared_keys.held_regions`.
    """
    found = read_regions(location, options.regions, delete_superseded_marks=True)
    base, manifests = found.base, found.manifests
    progress = {region_id: base.details.merged.get(region_id, 0) for region_id in manifests}
    check_progress(lost_progress(found.marks, base.details.merged))
    if any(manifest.flushed for manifest in manifests.values()) and was_taken_away(base):
        raise ProgressLostError.of({})
    marks = raise_marks(location.store, found.marks, progress)
    held = held_regions(base, manifests, options)
    picker = MergePicker(_fitting(options, base), held, divides=base.has_narrow_dictionaries)
    excluded = picker.excluded(manifests)
    included = [manifests[region_id] for region_id in manifests if region_id not in excluded]
    candidates = read_candidates(base, included, marks=marks)
    return picker.pick(candidates, seed=random.random())  # noqa: S311


def _fitting(options: MergeOptions, base: BaseTable) -> MergeOptions:
    """Return the options with which a table is merged.

    Values of unusable columns, which generations do not have, stay in a row that Lance's own merge
    updates. A divided merge would write the row without them. Raises TableSetupError if other
    columns need one.
    """
    if base.has_narrow_dictionaries:
        base.check_usable(base.unusable)
    return replace(options, divide_bytes=sys.maxsize) if base.unusable else options


def merge_tasks(
    location: TableLocation, plan: MergePlan, options: MergeOptions = MergeOptions()
) -> tuple[MergeTask, ...]:
    """Return the tasks of a plan that is not divided."""
    return tuple(
        MergeTask(location, task, options.commit_bytes, _gate(options)) for task in plan.tasks
    )


def _gate(options: MergeOptions) -> QualityRules | None:
    return options.quality if options.quality is not None and options.quality.gates else None


def _run(
    location: TableLocation, plan: MergePlan, options: MergeOptions, meter: Meter
) -> list[MergeOutcome]:
    """Carry out a plan: return the outcome of each task, or of the divided merge."""
    if plan.parts:
        outcome = merge_divided(
            location,
            plan.selections,
            task_bytes=options.commit_bytes,
            max_tasks=options.max_tasks or 1,
            run=options.run,
            guard=options.guard,
            rules=_gate(options),
            meter=meter,
        )
        return [outcome]
    tasks = merge_tasks(location, plan, options)
    run_task = partial(guarded(run_merge_task, options.guard), meter=meter)
    return options.run(tasks, run_task) if tasks else []


def read_candidates(
    base: BaseTable,
    manifests: Iterable[RegionManifest],
    *,
    age: Callable[[UUID, FlushedGeneration], float | None] | None = None,
    marks: Mapping[UUID, RegionMark] | None = None,
) -> list[RegionCandidates]:
    """Return what may be merged of some regions. Lists folders whose size was not recorded."""
    return [
        pending_candidates(
            manifest,
            base.details.merged.get(manifest.region_id, 0),
            size=partial(_size, base.location, manifest.region_id),
            age=partial(age, manifest.region_id) if age is not None else None,
            mark=(marks or {}).get(manifest.region_id, UNMARKED),
        )
        for manifest in manifests
    ]


def run_merge_task(
    task: MergeTask, *, guard: Guard | None = None, meter: Meter | NoMeter = NO_METER
) -> MergeOutcome:
    """Merge a task's generations, one commit after another, oldest first within each region.

    A region whose generations cannot be read stops at that point and is reported; the others go
    on. Safe to run any number of times, also at the same time as any other merger.
    """
    total = MergeOutcome()
    remaining = list(task.regions)
    commit_bytes = task.commit_bytes
    while remaining:
        commit, later = split_commit(remaining, commit_bytes)
        single = sum(len(selection.generations) for selection in commit) == 1
        try:
            outcome = merge_commit(
                task.location,
                commit,
                attempts=_MAX_ATTEMPTS if single else _ATTEMPTS_BEFORE_SHRINKING,
                guard=guard,
                rules=task.quality,
            )
        except MergeContentionError:
            if single:
                raise
            # A smaller commit takes less time, in which fewer other commits come in between.
            commit_bytes = max(sum(selection.bytes for selection in commit) // _SHRINK, 1)
            continue
        commit_bytes = min(commit_bytes * _GROW, task.commit_bytes)
        total = _add(total, outcome)
        meter.advance(sum(selection.bytes for selection in commit))
        stopped = {region.region_id for region in outcome.skipped}
        remaining = [selection for selection in later if str(selection.region_id) not in stopped]
    return total


def _add(total: MergeOutcome, outcome: MergeOutcome) -> MergeOutcome:
    return replace(
        total,
        version=max(total.version, outcome.version),
        commits=total.commits + outcome.commits,
        generations=total.generations + outcome.generations,
        rows_upserted=total.rows_upserted + outcome.rows_upserted,
        rows_deleted=total.rows_deleted + outcome.rows_deleted,
        bytes=total.bytes + outcome.bytes,
        bytes_read=total.bytes_read + outcome.bytes_read,
        bytes_written=total.bytes_written + outcome.bytes_written,
        skipped=(*total.skipped, *outcome.skipped),
        quality=(*total.quality, *outcome.quality),
    )


def _size(location: TableLocation, region_id: UUID, flushed: FlushedGeneration) -> int:
    if flushed.memory_bytes is not None:
        return flushed.memory_bytes
    folder = generation_dir(region_id, flushed.path)
    return sum(info.size for info in location.store.list(f"{folder}/data"))
