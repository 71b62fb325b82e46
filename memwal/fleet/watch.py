"""Poll a table cheaply: read its status again only after a change.

A full status of a table costs several requests for each region. A table that is idle needs none of
it: a poll needs to know whether the base table, a manifest or the log has changed since the status
was read. On local disks the times of the folders tell, without opening anything. On an
object store one request tells whether the base table has a next version, one whether there is a new
region, and one for each region whether its manifest has a next version. What depends on time alone
(ages, schedules) follows from the status that was read before, and from the clock.

A status is read in full

- when the table, its policy or its address changed,
- before a job counts as due that was not due when it was read last: what is remembered never starts
  a job. Of a table that stays due, because its job waits for its turn, only the catalog is read
  again: a run may have served it without changing the table,
- while rows wait in the log, every :data:`UNFLUSHED_SECONDS`: whether their writer lives depends on
  the age of the log entries,
- after :data:`~memwal.jobs.policy.MAX_REUSE_SECONDS` in any case: also for changes that polls
  cannot see, such as new log entries in an object store.

A change between the poll and the read that follows it is in the status that is read, and seen as a
change once more by the next poll: marks are taken before the status is read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from memwal.base_table.snapshot import open_base, table_manifest_key
from memwal.fleet.tables import Survey, due_jobs, managed_location, survey
from memwal.format.paths import (
    MEM_WAL_DIR,
    VERSIONS_DIR,
    manifest_dir,
    table_manifest_keys,
    wal_dir,
)
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.policy import MAX_REUSE_SECONDS
from memwal.region.manifest_store import (
    RECENT_SECONDS,
    RegionManifestStore,
    discover_regions,
    parallel_reads,
    read_manifests,
)
from memwal.storage.location import TableLocation
from memwal.storage.object_store import STAMP_SETTLES_NS
from memwal.util.clock import boot_seconds

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.records import ManagedTable

UNFLUSHED_SECONDS: Final = 30.0
"""Time for which a status with rows in the log is reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A survey of a table, and whether its status was read for it or was read before."""

    survey: Survey
    is_fresh: bool


class _Marks(NamedTuple):
    """Observations of a table. It did not change if they are equal to earlier, settled ones."""

    seen: tuple[object, ...]
    settled: bool


@dataclass(frozen=True, slots=True)
class _Remembered:
    survey: Survey
    marks: _Marks
    probe: _FolderTimes | _NextVersions
    read_at: float  # in seconds of the boot clock
    at: datetime  # the same time, in UTC


class TableWatch:
    """The latest survey of one table. Not thread-safe: one poll at a time."""

    def __init__(self) -> None:
        self._last: _Remembered | None = None
        self._polled_at = 0.0

    def poll(
        self,
        catalog: Catalog,
        managed: ManagedTable,
        *,
        storage_options: Mapping[str, str] | None = None,
        now: datetime | None = None,
    ) -> Reading:
        """Return the survey of a table as it is now, reading no more than necessary.

        Raises as :func:`memwal.fleet.tables.survey`; the next poll then reads in full.
        """
        now = now or datetime.now(UTC)
        location = managed_location(managed, storage_options=storage_options)
        last = self._unchanged(managed)
        if last is not None:
            were_due = _due_jobs(last.survey)
            reused = _aged(_with_runs(last, catalog) if were_due else last, now)
            if _due_jobs(reused) <= were_due:
                self._last = last
                return Reading(survey=reused, is_fresh=False)
        probe = _probe(location)
        marks = probe.marks()
        read_at = boot_seconds()
        result = survey(catalog, managed, storage_options=location.storage_options, now=now)
        self._last = _Remembered(result, marks, probe, read_at, now)
        return Reading(survey=result, is_fresh=True)

    def is_idle(self, managed: ManagedTable) -> bool:
        """Return whether nothing happened to a local table, and nothing is due.

        Opens no file and does not ask the catalog. False if only :meth:`poll` can tell.
        """
        if self._last is None or not self._last.probe.is_quick:
            return False
        last = self._unchanged(managed)
        if last is None:
            return False
        self._last = last
        return not _due_jobs(last.survey) and not _due_jobs(_aged(last, datetime.now(UTC)))

    def _unchanged(self, managed: ManagedTable) -> _Remembered | None:
        """Forget the last survey; return it if the table has not changed since."""
        last, polled_at = self._last, self._polled_at
        self._last, self._polled_at = None, boot_seconds()
        # A pause of the process can be longer than manifests are kept: then a next version that
        # does not exist proves nothing.
        if last is None or self._polled_at - polled_at >= RECENT_SECONDS:
            return None
        return last if self._is_reusable(last, managed, last.probe.marks()) else None

    def _is_reusable(self, last: _Remembered, managed: ManagedTable, marks: _Marks) -> bool:
        age = boot_seconds() - last.read_at
        status = last.survey.status
        if status.oldest_unflushed_seconds is not None and age >= UNFLUSHED_SECONDS:
            return False
        # A table must not seem to be unwatched.
        longest = min(MAX_REUSE_SECONDS, managed.policy.late_seconds / 2)
        same_table = replace(managed, regions=last.survey.table.regions) == last.survey.table
        return age < longest and same_table and last.marks.settled and marks.seen == last.marks.seen


def _due_jobs(survey: Survey) -> set[str]:
    return {job for job, due in survey.due.items() if due.reason is not None}


def _with_runs(last: _Remembered, catalog: Catalog) -> _Remembered:
    """Return the last survey with the runs and skipped regions that the catalog has now."""
    name = last.survey.table.name
    survey = replace(
        last.survey,
        skipped_regions=tuple(catalog.backoffs.skipped_regions(name)),
        last_runs=catalog.last_runs(name),
    )
    return replace(last, survey=survey)


def _aged(last: _Remembered, now: datetime) -> Survey:
    """Return a survey as it would be read now of a table that did not change."""
    status = last.survey.status.aged(max(0.0, (now - last.at).total_seconds()))
    skipped = tuple(
        replace(record, waiting=record.next_try_at > now) for record in last.survey.skipped_regions
    )
    due = due_jobs(
        status, last.survey.table.policy, skipped, now=now, last_runs=last.survey.last_runs
    )
    return replace(last.survey, status=status, due=due, skipped_regions=skipped)


class _FolderTimes:
    """Times of the folders that every change creates or deletes a file in."""

    is_quick = True  # Takes system calls only.

    def __init__(self, location: TableLocation) -> None:
        self._store = location.store
        regions = discover_regions(location.store)
        self._folders = [
            VERSIONS_DIR,
            MEM_WAL_DIR,
            *(folder(region) for region in regions for folder in (manifest_dir, wal_dir)),
        ]

    def marks(self) -> _Marks:
        now = time.time_ns()
        stamps = tuple(self._store.folder_stamp(folder) for folder in self._folders)
        newest = max(stamp or 0 for stamp in stamps)
        return _Marks(stamps, settled=newest < now - STAMP_SETTLES_NS)


class _NextVersions:
    """Observes whether versions exist that are newer than those at construction."""

    is_quick = False

    def __init__(self, location: TableLocation) -> None:
        self._store = location.store
        version = open_base(location).version
        used = table_manifest_keys(version).index(table_manifest_key(location, version))
        self._next_base = table_manifest_keys(version + 1)[used]
        self._manifests = list(read_manifests(self._store).values())

    def marks(self) -> _Marks:
        with ThreadPoolExecutor(parallel_reads(self._store)) as pool:
            base = pool.submit(self._store.exists, self._next_base)
            regions = pool.submit(discover_regions, self._store)
            changed = pool.map(self._has_successor, self._manifests)
            return _Marks((base.result(), *regions.result(), *changed), settled=True)

    def _has_successor(self, manifest: RegionManifest) -> bool:
        return RegionManifestStore(self._store, manifest.region_id).has_successor(manifest)


def _probe(location: TableLocation) -> _FolderTimes | _NextVersions:
    local = location.store.folder_stamp(MEM_WAL_DIR) is not None
    return _FolderTimes(location) if local else _NextVersions(location)
