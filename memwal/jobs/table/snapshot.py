"""Publish the state of all regions in the MemWAL index (spec: Region Snapshot Builder).

Readers that accept a moment's staleness then need no request per region. The snapshot replaces only
the snapshot fields of the details, by compare-and-swap on top of what is there.

A process that dies leaves, before the commit, at most a file that no version names, which the
collector deletes; after the commit, a whole snapshot. Repeating the job is harmless, and a slow run
never replaces a snapshot that was taken after its own.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from memwal.base_table.details import update_details
from memwal.base_table.region_snapshot import (
    encode_snapshot,
    pointer_to,
    snapshot_age,
    snapshot_key,
    snapshot_rows,
)
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import ConflictError, StoreError
from memwal.format.memwal_index import IndexDetails
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.job import Guard, JobResult, guarded
from memwal.jobs.options import SnapshotOptions
from memwal.lsm.wal.log import find_tip
from memwal.region.manifest_store import (
    RegionManifestStore,
    discover_regions,
    parallel_reads,
    read_manifests,
)
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)

# A task below this size costs more to start than to run.
_TASK_REGIONS = 250
# The hint of a manifest is moved when it is so many entries behind: a version of the manifest for
# every few entries would cost more than the looks that it saves.
_HINT_LAG = 64


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """Regions that one worker reads."""

    location: TableLocation
    regions: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class SnapshotOutcome:
    """What a task found.

    Attributes
    ----------
    manifests : tuple of RegionManifest
        The newest ones, with the tip of the log as it was found.
    hints : int
        How many manifests were told where the tip is.
    """

    manifests: tuple[RegionManifest, ...]
    hints: int


def build_snapshot(
    location: TableLocation,
    options: SnapshotOptions = SnapshotOptions(),
    *,
    clock: Callable[[], float] = time.time,
) -> JobResult:
    """Read every region's manifest and publish what they say.

    Regions that are claimed or flushed while the manifests are read may be in the snapshot or
    not: it is a hint for readers, never the truth. The tip of each log is looked up on the way, and
    a manifest whose hint is far behind is told where it is, so that the next claim finds it sooner.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    options : SnapshotOptions, optional
        Its guard is also called by each task of this process before it moves hints.
    clock : callable
        Seconds since the epoch. A snapshot that was taken later stays, unless it is from so far
        ahead that the clock must have been wrong.

    Returns
    -------
    JobResult
        Figures ``regions``, ``bytes`` of the snapshot, and ``hints`` that were moved.
    """
    started = time.monotonic()
    taken_at = int(clock() * 1000)
    regions = discover_regions(location.store)
    tasks = _divided(location, regions, options.max_tasks or 1)
    outcomes: list[SnapshotOutcome] = (
        options.run(tasks, guarded(run_snapshot_task, options.guard)) if tasks else []
    )
    manifests = [manifest for outcome in outcomes for manifest in outcome.manifests]
    rows = snapshot_rows(manifests, open_base(location).details.region_specs)
    data = inline = encode_snapshot(rows)
    index_id = uuid.uuid4()
    if len(manifests) > options.inline_regions:
        key = snapshot_key(index_id)
        # Nobody else has the name, which not every store could refuse to give twice.
        location.store.put(key, data)
        inline = pointer_to(key, rows.schema)

    def change(base: BaseTable) -> IndexDetails:
        known = base.details
        if known.snapshot_ts_millis > taken_at and snapshot_age(known, clock()) is not None:
            # A newer snapshot landed while this one was read.
            return known
        if options.guard is not None:
            options.guard()
        return replace(
            base.details,
            snapshot_ts_millis=taken_at,
            num_regions=len(manifests),
            inline_snapshots=inline,
        )

    base = update_details(location, change, index_id=index_id)
    return JobResult(
        job="snapshot",
        table=location.uri,
        version=base.version,
        tasks=len(tasks),
        commits=int(base.details.inline_snapshots == inline),
        seconds=time.monotonic() - started,
        figures={
            "regions": len(manifests),
            "bytes": len(data),
            "hints": sum(outcome.hints for outcome in outcomes),
        },
    )


def run_snapshot_task(task: SnapshotTask, *, guard: Guard | None = None) -> SnapshotOutcome:
    """Read the manifests of some regions, and find the tips of their logs."""
    manifests = read_manifests(task.location.store, task.regions)
    if guard is not None:
        guard()
    with ThreadPoolExecutor(parallel_reads(task.location.store)) as pool:
        found = list(pool.map(partial(_at_tip, task.location), manifests.values()))
    return SnapshotOutcome(tuple(manifest for manifest, _ in found), sum(told for _, told in found))


def _divided(
    location: TableLocation, regions: Sequence[UUID], max_tasks: int
) -> list[SnapshotTask]:
    count = min(max_tasks, -(-len(regions) // _TASK_REGIONS))
    return [SnapshotTask(location, tuple(regions[number::count])) for number in range(count)]


def _at_tip(location: TableLocation, manifest: RegionManifest) -> tuple[RegionManifest, bool]:
    """The manifest with the tip of the log in it, and whether its stored hint was moved."""
    start = max(manifest.replay_after, manifest.wal_last_seen) + 1
    # The newest entry may be torn, and a claim would put its own in that place.
    newest = find_tip(location.store, manifest.region_id, start=start) - 2
    behind = newest - manifest.wal_last_seen
    if behind < _HINT_LAG:
        return replace(manifest, wal_last_seen=max(newest, manifest.wal_last_seen)), False
    try:
        # Lance syncs no entry on a local disk. A claim refuses a log that is shorter than the hint,
        # so that the hint must not outlive them when the machine crashes.
        location.store.barrier()
        return _hinted(location, manifest.region_id, newest), True
    except (ConflictError, StoreError) as error:
        # It would only have saved the next claim some requests.
        logger.info("hint of region %s not moved: %s", manifest.region_id, error)
        return replace(manifest, wal_last_seen=newest), False


def _hinted(location: TableLocation, region_id: UUID, newest: int) -> RegionManifest:
    def change(latest: RegionManifest) -> RegionManifest | None:
        if latest.wal_last_seen >= newest:
            return None
        return replace(latest, wal_last_seen=newest)

    return RegionManifestStore(location.store, region_id).update(change, attempts=3)
