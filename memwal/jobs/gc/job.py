"""Garbage collection job: read the pins, collect regions in tasks, then the table's files.

Within a region, each decision is carried out at once. A region that cannot be read is skipped, and
the others go on. Before every few regions a task checks whether tags or branches have changed, and
reads the pins again if so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final
from uuid import UUID

from memwal.base_table.refs import delete_torn_tags
from memwal.base_table.region_marks import check_progress, lost_progress, read_marks
from memwal.base_table.required_regions import check_no_regions, check_regions, region_error
from memwal.base_table.snapshot import open_base
from memwal.errors import LinkRefusedError, MemWalError
from memwal.format.paths import manifest_dir, region_dir
from memwal.jobs.gc.base_table import (
    collect_base_versions,
    collect_index_files,
    collect_read_tags,
    collect_staged_files,
)
from memwal.jobs.gc.collector import Extent, GcContext, RegionState, decide
from memwal.jobs.gc.consumers import collect_consumers
from memwal.jobs.gc.decision import (
    CollectionResult,
    CollectionTally,
    Decision,
    DecisionReason,
    GarbageKind,
    Reason,
)
from memwal.jobs.gc.generations import (
    collect_dropped_folders,
    collect_generations,
    collect_orphans,
)
from memwal.jobs.gc.history import read_history
from memwal.jobs.gc.pins import read_pins, read_refs
from memwal.jobs.gc.wal import collect_log, collect_manifests
from memwal.jobs.job import Guard, guarded, run_in_process, shares, task_limit
from memwal.jobs.options import GcOptions
from memwal.jobs.progress import Unit, run_tasks
from memwal.region.manifest_store import RegionManifestStore, discover_regions, read_each
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import span

# Regions of a group; before each group, tags and branches are checked for changes.
_REGIONS_PER_CHECK = 64

REGION_COLLECTORS: Final[dict[GarbageKind, Callable[[RegionState], Iterator[Decision]]]] = {
    GarbageKind.FOLDER: collect_dropped_folders,
    GarbageKind.ORPHAN: collect_orphans,
    GarbageKind.LOG: collect_log,
    GarbageKind.MANIFESTS: collect_manifests,
    GarbageKind.GENERATION: collect_generations,
}
"""Collectors of a region, in the order in which they run.

All of them decide from one read of the manifests, and generations are dropped last: a run cannot
delete the generations that it drops, even if clocks differ.
"""

TABLE_COLLECTORS: Final[dict[GarbageKind, Callable[[GcContext], Iterator[Decision]]]] = {
    GarbageKind.READ: collect_read_tags,
    GarbageKind.CONSUMER: collect_consumers,
    GarbageKind.INDEX: collect_index_files,
    GarbageKind.STAGING: collect_staged_files,
    GarbageKind.BASE_VERSIONS: collect_base_versions,
}
"""Collectors of objects of no region, in the order in which they run."""


def collect_garbage(
    location: TableLocation,
    options: GcOptions = GcOptions(),
    *,
    clock: Callable[[], float] = time.time,
) -> CollectionResult:
    """Collect merged generations, their log entries, old manifests, and leftovers of crashes.

    By default a dry run. The guard is called before each part of the regions, and before the
    table's own files are deleted. ``clock`` returns seconds since the epoch, and must agree with
    the store's clock to well within the grace period.

    Returns
    -------
    CollectionResult
        Metrics ``generations_dropped``, ``folders`` (of which ``orphaned_folders`` were never
        named), ``log_entries``, ``manifests``, ``index_files``, ``staging_files``,
        ``base_versions``, ``read_protections``, ``consumer_tags``; ``bytes``, and the same by kind
        as ``bytes_...``.

    Raises
    ------
    MemWalError
        The state that shows which objects are in use cannot be read, or (NewerFormatError) has
        fields that this release does not know. Nothing was deleted then.
    """
    now = datetime.fromtimestamp(clock(), UTC)
    started = time.monotonic()
    marks = read_marks(location.store)
    base = open_base(location)
    base.check_supported()
    if base.index is None:
        check_no_regions(base, marks)
    check_progress(lost_progress(marks, base.details.merged))
    with span("memwal.collect.needs", location):
        if not options.dry_run:
            # Lance cannot list tags, or clean up, while one of them cannot be read.
            delete_torn_tags(location)
        pins = read_pins(location, options, now=now, base=base)
        regions = discover_regions(location.store)
        # Folders are enough here: a region without a manifest is an error of its own collection.
        check_regions(base, marks, {}, left_out=frozenset(regions))
    if not options.dry_run:
        # A commit of Lance is not synced to disk; the one that replaced the garbage must be, first.
        location.store.barrier()
    sent = replace(options, run=run_in_process, guard=None, progress=None)
    context = GcContext(location=location, options=sent, now=now, pins=pins, marks=marks)
    parts = shares(regions, task_limit(options))
    tasks = [GcTask(share, context.of_regions(share)) for share in parts]
    tally = CollectionTally(explain=options.explain)
    tally.warnings += pins.problems
    tally.warnings += [pin.message for pin in pins.pins if pin.reason is Reason.UNREADABLE]
    with span("memwal.collect.regions", location):
        outcomes: list[CollectionTally] = run_tasks(
            options,
            tasks,
            guarded(run_gc_task, options.guard),
            job="gc",
            step="collecting",
            unit=Unit.REGIONS,
        )
    for outcome in outcomes:
        tally.merge(outcome)
    if options.guard is not None:
        options.guard()
    try:
        with span("memwal.collect.table", location):
            for collect in TABLE_COLLECTORS.values():
                for decision in collect(context):
                    tally.add(decision)
    except MemWalError as error:
        tally.warnings.append(f"files of the table itself: not collected: {error}")
    return CollectionResult(
        job="gc",
        table=location.uri,
        version=base.version,
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        metrics=tally.metrics,
        warnings=tuple(tally.warnings),
        decisions=tuple(tally.decisions),
    )


@dataclass(frozen=True, slots=True)
class GcTask:
    """Regions that one worker collects."""

    regions: tuple[UUID, ...]
    context: GcContext  # with the pins of these regions when the job was planned


def run_gc_task(task: GcTask, *, guard: Guard | None = None) -> CollectionTally:
    """Collect the task's regions in parallel. An unreadable region is reported and skipped.

    ``guard`` is called before each group of regions. Raises MemWalError if tags or branches changed
    and the pins cannot be read again.
    """
    context, location = task.context, task.context.location
    tally = CollectionTally(explain=context.options.explain)
    for start in range(0, len(task.regions), _REGIONS_PER_CHECK):
        if guard is not None:
            guard()
        if read_refs(location) != context.pins.refs:
            pins = read_pins(location, context.options, now=context.now)
            if not context.options.dry_run:
                location.store.barrier()
            context = replace(context, pins=pins.of_regions(task.regions))
        group = task.regions[start : start + _REGIONS_PER_CHECK]
        for outcome in read_each(location.store, partial(_collect_region, context), group):
            tally.merge(outcome)
    return tally


def _collect_region(context: GcContext, region_id: UUID) -> CollectionTally:
    """Collect a region, and report a failure instead of raising it."""
    tally = CollectionTally(explain=context.options.explain)
    try:
        for decision in collect_region(context, region_id):
            tally.add(decision)
        return tally
    except LinkRefusedError as error:
        why: DecisionReason = Reason.LINK, str(error), None
    except MemWalError as error:
        tally.warnings.append(f"region {region_id}: not collected: {error}")
        message = f"what is in use cannot be read, so nothing more is deleted: {error}"
        why = Reason.UNREADABLE, message, None
    tally.add(decide(region_id, GarbageKind.REGION, str(region_id), Extent(), why))
    return tally


def collect_region(context: GcContext, region_id: UUID) -> Iterator[Decision]:
    """Collect one region, and yield each decision after it was carried out.

    Raises LinkRefusedError if a symbolic link leads to its manifests: nothing is deleted then.
    If something cannot be read or deleted, the rest of the region stays as it is.
    """
    store = context.location.store
    manifests = RegionManifestStore(store, region_id)
    # Behind a link, the manifests could be those of a region of another table, whose generations
    # must not be dropped for the progress of this one.
    store.check_no_link(manifest_dir(region_id))
    # Folders before the manifests: a folder that the latest manifest does not name was not named
    # when it was listed.
    folders = tuple(store.list_folders(region_dir(region_id)))
    history = read_history(manifests, expired=context.expired)
    # The manifest is read after the base table, and merged generations were flushed before. If it
    # is not so, one of the two was replaced or damaged, and unmerged generations could be deleted.
    error = region_error(
        store,
        region_id,
        None if history is None else history.latest,
        context.marks.get(region_id),
        context.pins.removable(region_id),
    )
    if error is not None:
        raise error
    if history is None:
        # A claim that died before its first manifest.
        return
    region = RegionState(context=context, manifests=manifests, history=history, folders=folders)
    for collect in REGION_COLLECTORS.values():
        yield from collect(region)
