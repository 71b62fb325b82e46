"""Poll a table cheaply: read its status again only after a change.

A full status of a table costs several requests for each region. A table that is idle needs none of
it: a poll needs to know whether the base table, a manifest or the log has changed since the status
was read. On local disks the times of the folders tell, without opening anything. On an object
store, a look is two requests: for the trace that each commit of a region's manifest by memwal is
followed by (:mod:`memwal.region.change_trace`), and for the next version of the base table. What
depends on time alone (ages, schedules) follows from the status that was read before, and from the
clock.

Other clients leave no trace, nor does a process that dies between its commit and the trace. A
*round* finds their changes: one request whether there is a new region, and one for each region
whether its manifest has a next version. A tenth of the time since the last change that came without
a trace passes between two rounds, at least the policy's ``poll_seconds`` and at most its
``untraced_poll_seconds``. When more than :data:`~memwal.region.manifest_store.RECENT_SECONDS` have
passed, the version after the known one may have been written and trimmed: then the round lists the
regions' objects instead, a request for every 1,000, which shows new log entries too.

A status is read in full

- when the table, its policy or its address changed,
- before a job counts as due that was not due when it was read last: what is remembered never starts
  a job. Of a table that stays due, because its job waits for its turn, only the catalog is read
  again: a run may have served it without changing the table,
- while rows wait in the log, every :data:`UNFLUSHED_SECONDS`: whether their writer lives depends on
  the age of the log entries,
- after :data:`~memwal.jobs.policy.MAX_REUSE_SECONDS` in any case: for what polls cannot see, such
  as damaged files.

A change between the poll and the read that follows it is in the status that is read, and seen as a
change once more by the next poll: what a poll compares is taken before the status is read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from memwal.base_table.snapshot import open_base, table_manifest_key
from memwal.fleet.tables import Survey, due_jobs, managed_location, survey
from memwal.format.paths import (
    CHANGE_TRACE_KEY,
    MEM_WAL_DIR,
    VERSIONS_DIR,
    manifest_dir,
    parse_manifest_name,
    parse_region_name,
    parse_wal_name,
    table_manifest_keys,
    wal_dir,
)
from memwal.jobs.policy import MAX_REUSE_SECONDS, Policy
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
from memwal.util.concurrency import map_parallel

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.history import TableWork
    from memwal.catalog.records import ManagedTable

UNFLUSHED_SECONDS: Final = 30.0
"""Time for which a status with rows in the log is reused."""

_PART = 10  # A pause is this part of the time for which nothing changed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A survey of a table, and whether its status was read for it or was read before."""

    survey: Survey
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class _Remembered:
    survey: Survey
    probe: _FolderTimes | _Traced
    read_at: float  # in seconds of the boot clock
    at: datetime  # the same time, in UTC


class TableWatch:
    """The latest survey of one table. Not thread-safe: one poll at a time."""

    def __init__(self) -> None:
        self._last: _Remembered | None = None
        self._polled_at = 0.0
        # When a change without a trace was seen last; a table that was never polled may have
        # changed just now.
        self._untraced_at = boot_seconds()
        self._log_tips: dict[UUID, int] = {}

    def poll(
        self,
        catalog: Catalog,
        managed: ManagedTable,
        *,
        storage_options: Mapping[str, str] | None = None,
        work: TableWork | None = None,
        now: datetime | None = None,
    ) -> Reading:
        """Return the survey of a table as it is now, reading no more than necessary.

        ``work`` is what the catalog has of the table; it is read if it is needed and not given.
        Raises as :func:`memwal.fleet.tables.survey`; the next poll then reads in full.
        """
        now = now or datetime.now(UTC)
        location = managed_location(managed, storage_options=storage_options)
        last = self._unchanged(managed)
        if last is not None:
            were_due = _due_jobs(last.survey)
            if were_due:
                name = managed.name
                last = _with_work(last, catalog.work_of([name])[name] if work is None else work)
            reused = _aged(last, now)
            if _due_jobs(reused) <= were_due:
                self._last = last
                return Reading(survey=reused, is_fresh=False)
        read_at = boot_seconds()
        probe = _probe(location)
        result = survey(catalog, managed, storage_options=location.storage_options, now=now)
        self._last = _Remembered(result, probe, read_at, now)
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
        if last is None or not self._is_reusable(last, managed):
            return None
        pause = self._polled_at - polled_at
        return None if self._has_changed(last.probe, managed.policy, pause) else last

    def _is_reusable(self, last: _Remembered, managed: ManagedTable) -> bool:
        age = self._polled_at - last.read_at
        status = last.survey.status
        if status.oldest_unflushed_seconds is not None and age >= UNFLUSHED_SECONDS:
            return False
        # A table must not seem to be unwatched.
        longest = min(MAX_REUSE_SECONDS, managed.policy.late_seconds / 2)
        same_table = replace(managed, regions=last.survey.table.regions) == last.survey.table
        return age < longest and same_table

    def _has_changed(self, probe: _FolderTimes | _Traced, policy: Policy, pause: float) -> bool:
        if isinstance(probe, _FolderTimes):
            return pause >= RECENT_SECONDS or probe.has_changed()
        # A pause of the process can be longer than manifests are kept: then a next version that
        # does not exist proves nothing.
        paused = pause >= RECENT_SECONDS
        if probe.has_trace() or probe.has_new_base(certain=paused):
            return True
        now = self._polled_at
        wanted = (now - self._untraced_at) / _PART
        every = max(policy.poll_seconds, min(wanted, policy.untraced_poll_seconds))
        since = now - probe.round_at
        if every > policy.poll_seconds and since < every and not paused:
            return False
        probe.round_at = now
        if since < RECENT_SECONDS:
            changed = probe.has_new_manifest()
        else:
            changed = probe.lists_change(self._log_tips)
        # The trace may follow its commit a moment later.
        if changed and not probe.has_trace():
            self._untraced_at = now
        return changed


def _due_jobs(survey: Survey) -> set[str]:
    return {job for job, due in survey.due.items() if due.reason is not None}


def _with_work(last: _Remembered, work: TableWork) -> _Remembered:
    """Return the last survey with the runs and skipped regions that the catalog has now."""
    survey = replace(last.survey, skipped_regions=work.skipped_regions, last_runs=work.last_runs)
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
        now = time.time_ns()
        self._stamps = self._read()
        self._settled = max(stamp or 0 for stamp in self._stamps) < now - STAMP_SETTLES_NS

    def has_changed(self) -> bool:
        return not self._settled or self._read() != self._stamps

    def _read(self) -> list[int | None]:
        return [self._store.folder_stamp(folder) for folder in self._folders]


class _Traced:
    """Trace of changes, next base version, and manifests of the regions in an object store."""

    is_quick = False

    def __init__(self, location: TableLocation) -> None:
        self.round_at = boot_seconds()
        self._store = location.store
        # First: what is committed after the manifests below were read leaves another one.
        self._trace = self._read_trace()
        version = open_base(location).version
        self._base = table_manifest_key(location, version)
        used = table_manifest_keys(version).index(self._base)
        self._next_base = table_manifest_keys(version + 1)[used]
        self._regions = discover_regions(self._store)
        self._manifests = read_manifests(self._store, self._regions)

    def has_trace(self) -> bool:
        """Return whether a trace was left since; one request."""
        return self._read_trace() != self._trace

    def has_new_base(self, *, certain: bool) -> bool:
        """Return whether the base table has a new version; one request, or two to be ``certain``.

        Versions are deleted oldest first: while the known one exists, no next one was deleted.
        """
        return self._store.exists(self._next_base) or (
            certain and not self._store.exists(self._base)
        )

    def has_new_manifest(self) -> bool:
        """Return whether there is a new region or next version of a manifest.

        Relies on a next version to be there still if it was ever written.
        """
        if discover_regions(self._store) != self._regions:
            return True
        stores = [RegionManifestStore(self._store, region) for region in self._manifests]
        return any(
            map_parallel(
                lambda region: region.has_successor(self._manifests[region.region_id]),
                stores,
                threads=parallel_reads(self._store),
            )
        )

    def lists_change(self, log_tips: dict[UUID, int]) -> bool:
        """Return whether a listing shows other manifests, or log entries that are new.

        ``log_tips`` has the newest entries that were seen before, and is updated.
        """
        versions: dict[UUID, int] = {}
        tips: dict[UUID, int] = {}
        regions = set()
        for info in self._store.list(MEM_WAL_DIR):
            _, name, *rest = info.key.split("/")
            region = parse_region_name(name)
            if region is None:
                continue
            regions.add(region)
            version = position = None
            match rest:
                case ["manifest", file]:
                    version = parse_manifest_name(file)
                case ["wal", file]:
                    position = parse_wal_name(file)
            versions[region] = max(versions.get(region, 0), version or 0)
            tips[region] = max(tips.get(region, 0), position or 0)
        known = {region: manifest.version for region, manifest in self._manifests.items()}
        if regions != set(self._regions) or known != {r: v for r, v in versions.items() if v}:
            return True
        logged = {region: manifest.last_logged for region, manifest in self._manifests.items()}
        new = [r for r in known if tips[r] > max(logged[r], log_tips.get(r, 0))]
        log_tips.update(tips)
        return bool(new)

    def _read_trace(self) -> object:
        info = self._store.head(CHANGE_TRACE_KEY)
        return None if info is None else (info.e_tag, info.modified, info.size)


def _probe(location: TableLocation) -> _FolderTimes | _Traced:
    local = location.store.folder_stamp(MEM_WAL_DIR) is not None
    return _FolderTimes(location) if local else _Traced(location)
