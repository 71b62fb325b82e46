"""Collection of regions: tasks of many regions, and the collectors of one region in order.

Each decision is carried out at once. A region that cannot be read is skipped, and the others go on.
Before every few regions a task checks whether tags or branches have changed, and reads the pins
again if so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from memwal.base_table.required_regions import region_error
from memwal.errors import LinkRefusedError, MemWalError
from memwal.format.paths import manifest_dir, region_dir
from memwal.jobs.gc.collector import Collector, GcContext, RegionState
from memwal.jobs.gc.decision import CollectionTally, Decision, GarbageKind, Reason
from memwal.jobs.gc.generations import (
    DroppedFolderCollector,
    GenerationCollector,
    OrphanCollector,
)
from memwal.jobs.gc.history import read_history
from memwal.jobs.gc.pins import read_pins, read_refs
from memwal.jobs.gc.wal import LogCollector, ManifestCollector
from memwal.jobs.job import Guard
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.util.concurrency import map_parallel

# Reads wait for the store, not for the processor.
# Before each group of so many regions, tags and branches are checked for changes.
_REGIONS_PER_CHECK = 64


def region_collectors(region: RegionState) -> list[Collector]:
    """Return the collectors of a region, in the order in which they run.

    All of them decide from one read of the manifests, and generations are dropped last: what a run
    drops, it cannot delete, whatever the clocks say.
    """
    return [
        DroppedFolderCollector(region),
        OrphanCollector(region),
        LogCollector(region),
        ManifestCollector(region),
        GenerationCollector(region),
    ]


def collect_region(
    store: ObjectStore, manifests: RegionManifestStore, context: GcContext
) -> Iterator[Decision]:
    """Collect one region, and yield each decision after it was carried out.

    Raises LinkRefusedError if a symbolic link leads to its manifests: nothing is deleted then.
    If something cannot be read or deleted, the rest of the region stays as it is.
    """
    region_id = manifests.region_id
    # Behind a link, the manifests could be those of a region of another table, whose generations
    # must not be dropped for the progress of this one.
    store.check_no_link(manifest_dir(region_id))
    # Folders before the manifests: a folder that the latest manifest does not name was not named
    # when it was listed.
    folders = tuple(store.list_folders(region_dir(region_id)))
    history = read_history(manifests, expired=context.expired)
    # The manifest is read after the base table, and what is merged was flushed before. If it is
    # not so, one of the two was replaced or damaged, and what is not merged could be deleted.
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
    region = RegionState(store=store, manifests=manifests, history=history, folders=folders)
    for collector in region_collectors(region):
        yield from collector.collect(context)


@dataclass(frozen=True, slots=True)
class GcTask:
    """Regions that one worker collects."""

    location: TableLocation
    regions: tuple[UUID, ...]
    context: GcContext  # with the pins of these regions when the job was planned


def run_gc_task(task: GcTask, *, guard: Guard | None = None) -> CollectionTally:
    """Collect the task's regions in parallel. One that cannot be read is reported and skipped.

    ``guard`` is called before each group of regions. Raises MemWalError if tags or branches changed
    and the pins cannot be read again.
    """
    tally = CollectionTally(explain=task.context.options.explain)
    context = task.context
    for start in range(0, len(task.regions), _REGIONS_PER_CHECK):
        if guard is not None:
            guard()
        context = _with_current_pins(task, context)
        group = task.regions[start : start + _REGIONS_PER_CHECK]
        for outcome in map_parallel(partial(_collect_region, task.location, context), group):
            tally.merge(outcome)
    return tally


def _with_current_pins(task: GcTask, context: GcContext) -> GcContext:
    """Read the pins again if a tag or a branch came or went since they were read."""
    if read_refs(task.location) == context.pins.refs:
        return context
    pins = read_pins(task.location, context.options, now=context.now)
    if not context.options.dry_run:
        task.location.store.barrier()
    return replace(context, pins=pins.of_regions(task.regions))


def _collect_region(
    location: TableLocation, context: GcContext, region_id: UUID
) -> CollectionTally:
    """Collect a region, and report a failure instead of raising it."""
    store = location.store
    tally = CollectionTally(explain=context.options.explain)
    try:
        for decision in collect_region(store, RegionManifestStore(store, region_id), context):
            tally.add(decision)
    except LinkRefusedError as error:
        tally.add(_skipped(region_id, Reason.LINK, str(error)))
    except MemWalError as error:
        tally.warnings.append(f"region {region_id}: not collected: {error}")
        message = f"what is in use cannot be read, so nothing more is deleted: {error}"
        tally.add(_skipped(region_id, Reason.UNREADABLE, message))
    return tally


def _skipped(region_id: UUID, reason: Reason, message: str) -> Decision:
    return Decision(
        kind=GarbageKind.REGION,
        what=str(region_id),
        region_id=str(region_id),
        reason=reason,
        message=message,
    )
