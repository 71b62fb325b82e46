"""Merge flushed generations into the base table: candidates, tasks, and order of commits.

:mod:`memwal.jobs.merge.picker` selects the generations. A large selection is divided into tasks
(:mod:`memwal.jobs.merge.divided`). A small one is merged by one worker, with a single commit for
``commit_bytes``: :mod:`memwal.jobs.merge.commit`. Lance refuses this commit when rows were appended
to the table meanwhile, since the appended rows may have the same keys. If that happens again and
again, a divided merge takes over: after a conflict, it compares only the rows that were appended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from memwal.base_table.blobs import blob_names
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
from memwal.jobs.merge.commit import (
    METRICS,
    MergeContentionError,
    MergeOutcome,
    merge_commit,
    progress_of,
)
from memwal.jobs.merge.divided import merge_divided
from memwal.jobs.merge.picker import (
    MergeMethod,
    MergePicker,
    MergePlan,
    RegionSelection,
    pending_candidates,
    split_commit,
)
from memwal.jobs.options import MergeOptions
from memwal.jobs.progress import NO_METER, Meter, Unit, reporting
from memwal.jobs.shared_keys import held_regions
from memwal.quality.report import combine_reports
from memwal.quality.rules import QualityRules
from memwal.storage.location import TableLocation

# Attempts of a commit before a divided merge takes over, and where none can.
_ATTEMPTS_BEFORE_DIVIDING = 4
_MAX_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Regions that one worker merges, in commits of up to ``commit_bytes``.

    If a commit meets other commits again and again, a task that a divided merge ``can_divide``
    leaves the rest to it; any other tries longer.
    """

    location: TableLocation
    regions: tuple[RegionSelection, ...]
    commit_bytes: int
    quality: QualityRules | None = None
    can_divide: bool = True


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
    plan = plan_merge(location, options)
    total = sum(selection.bytes for selection in plan.selections)
    with reporting(options.progress) as report:
        meter = Meter(report, job="merge", step="merging", unit=Unit.BYTES, total=total)
        outcomes = _run(location, plan, options, meter)
        meter.finish()
    merged = sum(outcomes, MergeOutcome(skipped=plan.held))
    skipped, quality = merged.skipped, combine_reports(merged.quality)
    return JobResult(
        job="merge",
        table=location.uri,
        version=open_base(location).version,
        tasks=len(plan.parts),
        commits=merged.commits,
        seconds=time.monotonic() - started,
        metrics={name: merged.metrics[name] for name in METRICS},
        warnings=(*map(str, skipped), *(quality.warnings() if quality is not None else ())),
        skipped_regions=skipped,
        quality=None if quality is None else quality.to_dict(),
    )


def explain_merge(location: TableLocation, options: MergeOptions = MergeOptions()) -> MergePlan:
    """Plan a merge without running it, and explain the decision about every pending generation.

    Costs one request more for each pending generation than the plan of :func:`merge`, for its age,
    and reads regions that are left out as well. With ``run_bytes``, each plan draws another order
    of the regions, as each merge does. Runner and guard of the options are not used.
    """
    now = time.time()
    found = read_regions(location)

    candidates = read_candidates(
        found.base,
        found.manifests.values(),
        age=lambda region_id, flushed: generation_age(location, region_id, flushed.path, now),
    )
    held = held_regions(found.base, found.manifests, options)
    picker = MergePicker(options, held, _only_method(found.base))
    return picker.pick(candidates, seed=random.random())  # noqa: S311


def plan_merge(location: TableLocation, options: MergeOptions = MergeOptions()) -> MergePlan:
    """Select the generations of a merge, divided into tasks; see :func:`merge`.

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
    picker = MergePicker(options, held, _only_method(base))
    excluded = picker.excluded_regions(manifests)
    included = [manifests[region_id] for region_id in manifests if region_id not in excluded]
    candidates = read_candidates(base, included, marks=marks)
    return picker.pick(candidates, seed=random.random())  # noqa: S311


def _only_method(base: BaseTable) -> MergeMethod | None:
    """Return the method with which a table has to be merged; None if any will do.

    Lance's own merge joins the dictionaries of all rows, and cannot write narrow ones. It takes no
    blobs at addresses of their own, and a small merge holds all rows in memory. Values of unusable
    columns, which generations do not have, stay in a row that it updates; a divided merge would
    write the row without them. Raises TableSetupError if a table needs both. Without a primary key
    every row is added, which only a divided merge does.
    """
    has_blobs = bool(blob_names(base.schema))
    if base.has_narrow_dictionaries or has_blobs:
        base.check_usable(base.unusable)
    if base.has_narrow_dictionaries or has_blobs or not base.primary_key:
        return MergeMethod.DIVIDED
    return MergeMethod.UNUSABLE_COLUMNS if base.unusable else None


def merge_tasks(
    location: TableLocation, plan: MergePlan, options: MergeOptions = MergeOptions()
) -> tuple[MergeTask, ...]:
    """Return the task of a plan that is not divided; none if nothing is selected."""
    can_divide = plan.method is not MergeMethod.UNUSABLE_COLUMNS
    return tuple(
        MergeTask(location, part.regions, options.commit_bytes, options.quality, can_divide)
        for part in plan.parts
    )


def _run(
    location: TableLocation, plan: MergePlan, options: MergeOptions, meter: Meter
) -> list[MergeOutcome]:
    """Carry out a plan: return the outcomes of the small merge and of the divided one."""
    if plan.method is MergeMethod.DIVIDED:
        outcomes, left = [], plan.selections
    else:
        run_task = partial(guarded(run_merge_task, options.guard), meter=meter)
        tasks = merge_tasks(location, plan, options)
        outcomes = options.run(tasks, run_task) if tasks else []
        left = tuple(region for outcome in outcomes for region in outcome.contended)
    if left:
        outcomes.append(merge_divided(location, left, options, meter))
    return outcomes


def read_candidates(
    base: BaseTable,
    manifests: Iterable[RegionManifest],
    *,
    age: Callable[[UUID, FlushedGeneration], float | None] | None = None,
    marks: Mapping[UUID, RegionMark] | None = None,
) -> list[RegionSelection]:
    """Return the merge candidates of some regions. Lists folders whose size was not recorded."""
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
    task: MergeTask, *, guard: Guard | None = None, meter: Meter = NO_METER
) -> MergeOutcome:
    """Merge a task's generations, one commit after another, oldest first within each region.

    A region whose generations cannot be read stops at that point and is reported; the others go
    on. Safe to run any number of times, also at the same time as any other merger.
    """
    total = MergeOutcome()
    remaining = list(task.regions)
    while remaining:
        commit, later = split_commit(remaining, task.commit_bytes)
        try:
            outcome = merge_commit(
                task.location,
                commit,
                attempts=_ATTEMPTS_BEFORE_DIVIDING if task.can_divide else _MAX_ATTEMPTS,
                guard=guard,
                rules=task.quality,
            )
        except MergeContentionError:
            if not task.can_divide:
                raise
            return replace(total, contended=tuple(remaining))
        total += outcome
        meter.advance(sum(selection.bytes for selection in commit))
        stopped = {region.region_id for region in outcome.skipped}
        merged = progress_of(commit)
        remaining = [
            _behind(region, merged) for region in later if str(region.region_id) not in stopped
        ]
    return total


def _behind(region: RegionSelection, merged: Mapping[UUID, int]) -> RegionSelection:
    """Return generations of a region behind those that were merged.

    If the table is restored before the next commit, they are refused: the progress of that commit
    would cover the earlier generations without their rows.
    """
    if region.region_id not in merged:
        return region
    return replace(region, mark=replace(region.mark, merged=merged[region.region_id]))


def _size(location: TableLocation, region_id: UUID, flushed: FlushedGeneration) -> int:
    if flushed.memory_bytes is not None:
        return flushed.memory_bytes
    folder = generation_dir(region_id, flushed.path)
    return sum(info.size for info in location.store.list(f"{folder}/data"))
