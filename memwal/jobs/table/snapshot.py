"""Publish the state of all regions in the MemWAL index (spec: Region Snapshot Builder).

Readers that accept some staleness then need no request per region. The commit changes only the
snapshot fields of the details, by compare-and-swap on the latest version.

A process that dies leaves, before the commit, at most a file that no version names, which the
collector deletes; after the commit, a whole snapshot. Repeating the job is harmless, and a slow run
never replaces a snapshot that was taken after its own.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from memwal.base_table.commit import current_spec, update_details
from memwal.base_table.region_marks import raise_marks, read_marks
from memwal.base_table.region_snapshot import (
    encode_pointer,
    encode_snapshot,
    snapshot_age,
    snapshot_key,
    snapshot_rows,
)
from memwal.base_table.required_regions import check_regions
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    StoreError,
    TableSetupError,
)
from memwal.format.memwal_index import IndexDetails
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.job import Guard, JobResult, RegionsTask, guarded, shares, task_limit
from memwal.jobs.options import SnapshotOptions
from memwal.jobs.progress import Unit, run_tasks
from memwal.lsm.wal.log import find_tip
from memwal.region.manifest_store import (
    RegionManifestStore,
    discover_regions,
    read_each,
    read_manifests,
)
from memwal.storage.location import TableLocation

logger = logging.getLogger(__name__)

# A task below this size costs more to start than to run.
_TASK_REGIONS = 250
# The log hint of a manifest is updated when it is this many entries behind: a new version of the
# manifest for every few entries would cost more than the requests that it saves.
_HINT_LAG = 64


_Tips = list[tuple[RegionManifest, bool]]


def build_snapshot(
    location: TableLocation,
    options: SnapshotOptions = SnapshotOptions(),
    *,
    clock: Callable[[], float] = time.time,
) -> JobResult:
    """Read every region's manifest and publish their contents.

    A claim or a flush while the manifests are read may be in the snapshot or not: it is a hint for
    readers, never the truth. The job also finds the tip of each log, and updates the hint of a
    manifest that is far behind, so that the next claim finds the tip sooner. Each task of this
    process also calls the guard before it updates hints.

    ``clock`` returns seconds since the epoch. A snapshot that was taken later is not replaced,
    unless it is from so far in the future that its clock must have been wrong.

    Returns
    -------
    JobResult
        Metrics ``regions``, ``bytes`` of the snapshot, and ``hints`` that were updated.
    """
    started = time.monotonic()
    taken_at = int(clock() * 1000)
    marks = read_marks(location.store)
    regions = discover_regions(location.store)
    count = min(task_limit(options), -(-len(regions) // _TASK_REGIONS))
    tasks = [RegionsTask(location, share) for share in shares(regions, count)]
    outcomes: list[_Tips] = run_tasks(
        options,
        tasks,
        guarded(run_snapshot_task, options.guard),
        job="snapshot",
        step="reading",
        unit=Unit.REGIONS,
    )
    manifests = [manifest for outcome in outcomes for manifest, _ in outcome]
    before = open_base(location)
    check_regions(before, marks, {manifest.region_id: manifest for manifest in manifests})
    # Readers may rely on the snapshot alone: regions that it names must not be lost unnoticed.
    progress = before.details.merged
    raise_marks(
        location.store, marks, {m.region_id: progress.get(m.region_id, 0) for m in manifests}
    )
    rows = snapshot_rows(manifests, before.details.region_specs)
    data = inline = encode_snapshot(rows)
    index_id = uuid.uuid4()
    if len(manifests) > options.inline_regions:
        key = snapshot_key(index_id)
        # The name is unique; put-if-absent is not needed, and not every store has it.
        location.store.put(key, data)
        inline = encode_pointer(key, rows.schema)

    def change(base: BaseTable) -> IndexDetails:
        details = base.details
        if details.snapshot_ts_millis > taken_at and snapshot_age(details, clock()) is not None:
            # A newer snapshot was published while this one was read.
            return details
        if options.guard is not None:
            options.guard()
        return replace(
            details,
            snapshot_ts_millis=taken_at,
            num_regions=configured_regions(base),
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
        metrics={
            "regions": len(manifests),
            "bytes": len(data),
            "hints": sum(is_updated for outcome in outcomes for _, is_updated in outcome),
        },
    )


def configured_regions(base: BaseTable) -> int:
    """Return the number of regions that the details of a table are to record.

    It is configuration: Lance stores the number that the region spec maps rows to (0 if that
    depends on the rows), and keeps it in every commit. How many regions exist is in the snapshot.
    Without a usable spec, the recorded number stays.
    """
    try:
        _, spec = current_spec(base)
    except (CorruptDataError, InvalidInputError, TableSetupError):
        return base.details.num_regions
    return spec.num_regions


def run_snapshot_task(task: RegionsTask, *, guard: Guard | None = None) -> _Tips:
    """Read the manifests of some regions, and find and record the tips of their logs.

    Returns the latest manifests, with these tips, and whether the stored hint was updated.
    """
    manifests = read_manifests(task.location.store, task.regions)
    if guard is not None:
        guard()
    return read_each(task.location.store, partial(_with_tip, task.location), manifests.values())


def _with_tip(location: TableLocation, manifest: RegionManifest) -> tuple[RegionManifest, bool]:
    """Return the manifest with the tip of its log, and whether the stored hint was updated."""

    def change(latest: RegionManifest) -> RegionManifest | None:
        return None if latest.wal_last_seen >= newest else replace(latest, wal_last_seen=newest)

    start = manifest.last_logged + 1
    # The newest entry may be torn, and a claim would then write its own entry in its place.
    newest = find_tip(location.store, manifest.region_id, start=start) - 2
    behind = newest - manifest.wal_last_seen
    if behind < _HINT_LAG:
        return replace(manifest, wal_last_seen=max(newest, manifest.wal_last_seen)), False
    try:
        # Lance does not sync entries on a local disk. A claim refuses a log that is shorter than
        # the hint, so the hint must not survive a crash of the machine that loses entries.
        location.store.barrier()
        manifests = RegionManifestStore(location.store, manifest.region_id)
        return manifests.update(change, attempts=3), True
    except (ConflictError, StoreError) as error:
        # The hint would only have saved the next claim some requests.
        logger.info("hint of region %s not updated: %s", manifest.region_id, error)
        return replace(manifest, wal_last_seen=newest), False
