"""Collecting what nobody needs any more (spec: Garbage Collector).

In this order, so that a collector which dies at any step leaves a table that is whole:

1. a generation that nothing needs is dropped from the region's manifest, with the writer's epoch
   left as it is;
2. a grace period later, when readers that still hold an older manifest have finished, its folder
   is deleted;
3. entries of the log go when no generation that is kept, and no replay, needs them;
4. manifests go when they name nothing that is still there.

What was dropped when is read off the manifest versions themselves, so that there is no state
besides the table. The newest entry of the log always stays: Lance finds the tip by listing the log,
and would put its next fence at the front of an empty one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from uuid import UUID

from memwal.errors import InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.format.names import (
    generation_dir,
    parse_generation_name,
    parse_wal_name,
    region_dir,
    wal_dir,
)
from memwal.format.region_manifest import RegionManifest
from memwal.maintenance.results import JobResult, TaskRunner, run_in_process
from memwal.maintenance.retention import removable_generations
from memwal.region.discovery import discover_regions
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.base import ObjectInfo, ObjectStore
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import open_base

logger = logging.getLogger(__name__)

DEFAULT_GRACE = timedelta(minutes=10)
DEFAULT_RETENTION = timedelta(hours=1)
DEFAULT_ORPHAN_AGE = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectTask:
    """Regions that one worker collects.

    Attributes
    ----------
    removable : mapping of UUID to int
        Newest generation of each region that nothing needs.
    now : datetime
        When the job began, in UTC: every age is counted up to then.
    """

    location: TableLocation
    removable: Mapping[UUID, int]
    now: datetime
    grace: timedelta
    orphan_age: timedelta
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOutcome:
    """What a task deleted, or would have."""

    generations_dropped: int = 0
    folders: int = 0
    log_entries: int = 0
    manifests: int = 0
    bytes: int = 0
    problems: tuple[str, ...] = ()


def collect_garbage(
    location: TableLocation,
    *,
    dry_run: bool = True,
    grace: timedelta = DEFAULT_GRACE,
    retention: timedelta = DEFAULT_RETENTION,
    orphan_age: timedelta = DEFAULT_ORPHAN_AGE,
    max_tasks: int = 1,
    run: TaskRunner = run_in_process,
    clock: Callable[[], float] = time.time,
) -> JobResult:
    """Collect merged generations, their log entries and old manifests.

    Parameters
    ----------
    dry_run : bool, default True
        Only count.
    grace : timedelta, default 10 minutes
        How long a reader may go on with what it planned, and a paused writer may take before it
        looks at its epoch again. Must be well above the longest query.
    retention : timedelta, default 1 hour
        How long versions of the base table keep the generations that they need; tags and
        branches keep them for ever.
    orphan_age : timedelta, default 1 day
        Age at which a folder that no manifest ever named is taken for the rest of a flush that
        died.
    max_tasks : int, default 1
        Into how many tasks the regions are divided at most.
    clock : callable
        Seconds since the epoch; must agree with the store's clock to well within ``grace``.

    Returns
    -------
    JobResult
        Figures ``generations_dropped``, ``folders``, ``log_entries``, ``manifests``, ``bytes``.
    """
    if min(grace, retention, orphan_age) < timedelta(0):
        raise InvalidInputError("grace, retention and orphan_age must not be negative")
    started = time.monotonic()
    now = datetime.fromtimestamp(clock(), UTC)
    regions = discover_regions(location.store)
    base = open_base(location)
    base.require_mem_wal()
    removable = removable_generations(base, cutoff=now - max(grace, retention))
    if not dry_run:
        # A commit of Lance is not synced to disk; what replaces the garbage must be, first.
        location.store.barrier()
    tasks = [
        CollectTask(
            location=location,
            removable={region_id: removable.get(region_id, 0) for region_id in share},
            now=now,
            grace=grace,
            orphan_age=orphan_age,
            dry_run=dry_run,
        )
        for share in _shares(regions, max_tasks)
    ]
    outcomes: list[CollectOutcome] = run(tasks, run_collect_task) if tasks else []
    return JobResult(
        job="gc",
        table=location.uri,
        version=base.version,
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        figures={
            name: sum(getattr(outcome, name) for outcome in outcomes)
            for name in ("generations_dropped", "folders", "log_entries", "manifests", "bytes")
        },
        problems=tuple(problem for outcome in outcomes for problem in outcome.problems),
    )


def run_collect_task(task: CollectTask) -> CollectOutcome:
    """Collect the task's regions, side by side. One that cannot be read is left alone."""
    regions = task.removable.items()
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda item: _collect_or_report(task, *item), regions))
    return CollectOutcome(
        generations_dropped=sum(o.generations_dropped for o in outcomes),
        folders=sum(o.folders for o in outcomes),
        log_entries=sum(o.log_entries for o in outcomes),
        manifests=sum(o.manifests for o in outcomes),
        bytes=sum(o.bytes for o in outcomes),
        problems=tuple(problem for o in outcomes for problem in o.problems),
    )


def _collect_or_report(task: CollectTask, region_id: UUID, removable: int) -> CollectOutcome:
    try:
        return _collect(task, region_id, removable)
    except MemWalError as error:
        return CollectOutcome(problems=(f"region {region_id}: not collected: {error}",))


def _collect(task: CollectTask, region_id: UUID, removable: int) -> CollectOutcome:
    store = task.location.store
    manifests = RegionManifestStore(store, region_id)
    # Read before anything is dropped: what is dropped now is never deleted now, whatever the
    # clocks say.
    history = _History.read(manifests)
    if history is None:
        return CollectOutcome()
    dropped = _drop_from_manifest(manifests, removable, dry_run=task.dry_run)
    region = _Region(task, store, history)
    folders = region.deletable_folders()
    entries = region.deletable_log_entries()
    old = region.deletable_manifests(folders)
    if not task.dry_run:
        for folder in folders:
            store.delete_folder(folder)
        # Oldest first: what is left of a log is always its end.
        for info in entries:
            store.delete(info.key)
        if old:
            manifests.refresh_hint(history.latest.version)
        # Oldest first: whoever finds a version may conclude that nothing after it was trimmed.
        for info in old:
            store.delete(info.key)
        store.delete_stale_temporaries(region_dir(region_id), older_than=task.orphan_age)
    return CollectOutcome(
        generations_dropped=dropped,
        folders=len(folders),
        log_entries=len(entries),
        manifests=len(old),
        bytes=sum(folders.values()) + sum(info.size for info in (*entries, *old)),
    )


def _drop_from_manifest(manifests: RegionManifestStore, removable: int, *, dry_run: bool) -> int:
    """Stop naming the generations up to ``removable``; returns how many those are."""
    dropped = 0

    def change(latest: RegionManifest) -> RegionManifest | None:
        nonlocal dropped
        kept = tuple(f for f in latest.flushed if f.generation > removable)
        dropped = len(latest.flushed) - len(kept)
        return replace(latest, flushed=kept) if dropped and not dry_run else None

    try:
        manifests.update(change)
    except ObjectNotFoundError:
        # A claim that died before its first manifest.
        return 0
    return dropped


@dataclass(frozen=True, slots=True)
class _History:
    """The stored versions of a region's manifest, oldest first, and when each was written."""

    manifests: tuple[RegionManifest, ...]
    written: Mapping[int, datetime]
    objects: Mapping[int, ObjectInfo]

    @classmethod
    def read(cls, manifests: RegionManifestStore) -> _History | None:
        objects = manifests.objects()
        found = []
        for version in sorted(objects):
            try:
                found.append(manifests.read(version))
            except ObjectNotFoundError:
                # Another collector is at work here.
                continue
        if not found:
            return None
        written = {version: info.modified for version, info in objects.items()}
        return cls(tuple(found), written, objects)

    @property
    def latest(self) -> RegionManifest:
        return self.manifests[-1]

    def unnamed_since(self, name: str) -> datetime | None:
        """When the manifest stopped naming a folder; None when no stored version ever named it."""
        named = [m.version for m in self.manifests if any(f.path == name for f in m.flushed)]
        if not named:
            return None
        after = [m.version for m in self.manifests if m.version > named[-1]]
        return self.written[after[0]] if after else datetime.max.replace(tzinfo=UTC)


class _Region:
    """What of one region may go now."""

    def __init__(self, task: CollectTask, store: ObjectStore, history: _History) -> None:
        self._task = task
        self._store = store
        self._history = history
        self._id = history.latest.region_id

    def deletable_folders(self) -> dict[str, int]:
        """Folders of generations, with their size."""
        current = {flushed.path for flushed in self._history.latest.flushed}
        found = {}
        for name in self._store.list_folders(region_dir(self._id)):
            if parse_generation_name(name) is None or name in current:
                continue
            folder = generation_dir(self._id, name)
            objects = list(self._store.list(folder))
            if self._is_old_enough(name, objects):
                found[folder] = sum(info.size for info in objects)
        return found

    def _is_old_enough(self, name: str, objects: Sequence[ObjectInfo]) -> bool:
        unnamed = self._history.unnamed_since(name)
        if unnamed is not None:
            return unnamed + self._task.grace <= self._task.now
        if not objects:
            # An empty folder may be the very beginning of a flush; it costs nothing to keep.
            return False
        newest = max(info.modified for info in objects)
        return newest + self._task.orphan_age <= self._task.now

    def deletable_log_entries(self) -> list[ObjectInfo]:
        """Entries that only generations fed which are no longer kept, oldest first."""
        bound = self._log_bound()
        positions = {}
        for info in self._store.list(wal_dir(self._id)):
            position = parse_wal_name(info.key.rpartition("/")[2])
            if position is not None:
                positions[position] = info
        tip = max(positions, default=0)
        expired = self._task.now - self._task.grace
        return [
            positions[position]
            for position in sorted(positions)
            if position <= bound and position != tip and positions[position].modified <= expired
        ]

    def _log_bound(self) -> int:
        """Last position that neither a kept generation nor a replay needs."""
        settled = self._settled()
        return settled.replay_after if settled is not None else 0

    def _settled(self) -> RegionManifest | None:
        """The newest manifest, a grace period old, whose flushed generations are all dropped."""
        kept = min(
            (flushed.generation for flushed in self._history.latest.flushed),
            default=self._history.latest.current_generation,
        )
        expired = self._task.now - self._task.grace
        done = [
            manifest
            for manifest in self._history.manifests
            if manifest.current_generation <= kept
            and self._history.written[manifest.version] <= expired
        ]
        return done[-1] if done else None

    def deletable_manifests(self, folders: Collection[str]) -> list[ObjectInfo]:
        """Old versions, oldest first, up to one that names something which is still there.

        The one that bounds the log stays, and everything newer: later bounds are read off them.
        """
        settled = self._settled()
        if settled is None:
            return []
        going = {folder.rpartition("/")[2] for folder in folders}
        stored = {
            name
            for name in self._store.list_folders(region_dir(self._id))
            if parse_generation_name(name) is not None and name not in going
        }
        superfluous = takewhile(
            lambda manifest: (
                manifest.version < settled.version
                and not any(flushed.path in stored for flushed in manifest.flushed)
            ),
            self._history.manifests,
        )
        return [self._history.objects[manifest.version] for manifest in superfluous]


def _shares(regions: Sequence[UUID], tasks: int) -> list[list[UUID]]:
    count = min(tasks, len(regions))
    return [list(regions[start::count]) for start in range(count)]
