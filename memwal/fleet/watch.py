"""Poll a table cheaply: read its status again only after a change.

A full status of a table costs several requests for each region. A table that is idle needs none of
it: a poll needs to know whether the base table, a manifest or the log has changed since the status
was read. On local disks the times of the folders tell, without opening anything. On an object
store, a poll is two requests: for the trace that each commit of a region's manifest by memwal is
followed by (:mod:`memwal.region.change_trace`), and for the next version of the base table. Values
that depend on time alone (ages, schedules) follow from the status that was read before, and from
the clock.

The longer nothing changes in an object store, the longer the pauses between two polls: a tenth of
the time since the last change, at least the policy's ``poll_seconds`` and at most its
``idle_poll_seconds``.

Other clients leave no trace, nor does a process that dies between its commit and the trace. A
*round* finds their changes, and new log entries: it lists the regions' objects, with a request for
every 1,000. A tenth of the time since the last change that came without a trace passes between two
rounds, at least ``poll_seconds`` and at most ``untraced_poll_seconds``.

A status is read in full

- when the table, its policy or its address changed,
- before a job counts as due that was not due when it was read last: a remembered status never
  starts a job. Of a table that stays due, because its job waits for its turn, and of one with
  skipped regions, only the catalog is read again: a run may have served it without changing the
  table,
- while rows wait in the log, every :data:`UNFLUSHED_SECONDS`: whether their writer lives depends on
  the age of the log entries,
- after :data:`FULL_READ_SECONDS` in any case: for changes that polls cannot see, such as damaged
  files.

A job that is due still after it succeeded twice, although nothing changed since it became due,
counts as due again after a change, or after :data:`REPEAT_SECONDS`. Such a job has no effect, as
the compaction of a table that Lance cannot compact: without a pause it would run all the time.

A change between the poll and the read that follows it is in the status that is read, and seen as a
change once more by the next poll: the values that a poll compares are taken before the status is
read.

The catalog keeps the compared values beside the latest status (:meth:`TableWatch.probe`). A process
that starts compares first, with a round, and reads only the tables that changed while no process
watched them, or that are due. A stored status that was read by another version of memwal, before
the table's latest registration, or in the future by the clock, is not used. Two processes that
watch one table store each their own pair: any of these pairs is right, since the status was read
after the compared values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final

from memwal.base_table.snapshot import open_base, table_manifest_key
from memwal.fleet.tables import Survey, due_jobs, managed_location, survey
from memwal.format.paths import (
    CHANGE_TRACE_KEY,
    CONSUMERS_DIR,
    MEM_WAL_DIR,
    VERSIONS_DIR,
    manifest_dir,
    parse_manifest_name,
    parse_region_name,
    parse_wal_name,
    table_manifest_keys,
    wal_dir,
)
from memwal.jobs.due import NOT_DUE, Due
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus
from memwal.region.manifest_store import RECENT_SECONDS, discover_regions
from memwal.storage.location import TableLocation
from memwal.storage.object_store import STAMP_SETTLES_NS
from memwal.util.clock import boot_seconds
from memwal.util.records import JsonMapping, JsonObject
from memwal.version import __version__

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.history import TableWork
    from memwal.catalog.records import ManagedTable

FULL_READ_SECONDS: Final = 86_400.0
"""Longest time for which a status is reused."""

UNFLUSHED_SECONDS: Final = 30.0
"""Time for which a status with rows in the log is reused."""

REPEAT_SECONDS: Final = 600.0
"""Pause until a job that succeeded without any effect is due again."""

_PART = 10  # A pause is this part of the time for which nothing changed.


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledSurvey:
    """A survey of a table, and whether its status was read for it or was read before."""

    survey: Survey
    is_fresh: bool

    @property
    def needs_work(self) -> bool:
        """Return whether the next poll needs the runs and skipped regions in the catalog."""
        return _depends_on_work(self.survey)


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
        self._has_started = False
        self._polled_at = self._changed_at = boot_seconds()
        # When a change without a trace was seen last.
        self._untraced_at = -math.inf
        # Of each due job: the state in which it became due, and when it last succeeded, by each
        # poll since.
        self._became_due: dict[str, tuple[object, set[datetime | None]]] = {}

    def poll(
        self,
        catalog: Catalog,
        managed: ManagedTable,
        *,
        storage_options: Mapping[str, str] | None = None,
        work: TableWork | None = None,
        now: datetime | None = None,
    ) -> PolledSurvey:
        """Return the survey of a table as it is now, reading no more than necessary.

        ``work`` is the table's record in the catalog; it is read if it is needed and not given.
        Raises as :func:`memwal.fleet.tables.survey`; the next poll then reads in full.
        """
        now = now or datetime.now(UTC)
        location = managed_location(managed, storage_options=storage_options)
        if not self._has_started:
            self._has_started = True
            self._restore(catalog, managed, location, now)
        last = self._unchanged(managed)
        if last is not None:
            were_due = _due_jobs(last.survey)
            if _depends_on_work(last.survey):
                name = managed.name
                work = catalog.work_of([name])[name] if work is None else work
                skipped, last_runs = work.skipped_regions, work.last_runs
                known = replace(last.survey, skipped_regions=skipped, last_runs=last_runs)
                last = replace(last, survey=known)
            reused = self._aged_survey(last, now)
            if _due_jobs(reused) <= were_due:
                self._last = last
                return PolledSurvey(survey=reused, is_fresh=False)
        read_at = boot_seconds()
        probe = _probe_type(location)(location)
        result = survey(catalog, managed, storage_options=location.storage_options, now=now)
        result = replace(result, due=self._without_repeats(result, now))
        self._last = _Remembered(result, probe, read_at, now)
        return PolledSurvey(survey=result, is_fresh=True)

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
        aged = self._aged_survey(last, datetime.now(UTC))
        return not _depends_on_work(last.survey) and not _due_jobs(aged)

    def pause_seconds(self, policy: Policy) -> float:
        """Return the pause until the next poll of a table that starts when due."""
        last = self._last
        if last is None or not last.probe.is_remote or _depends_on_work(last.survey):
            return policy.poll_seconds
        return self._pause(self._changed_at, policy.poll_seconds, policy.idle_poll_seconds)

    def probe(self) -> JsonObject | None:
        """Return the state for the next poll to compare with; None if that reads in full."""
        values = None if self._last is None else self._last.probe.to_dict()
        return None if values is None else {"memwal": __version__, **values}

    def _restore(
        self, catalog: Catalog, managed: ManagedTable, location: TableLocation, now: datetime
    ) -> None:
        """Remember the status in the catalog, which a process that ended may have read."""
        created = (now - managed.created_at).total_seconds()
        self._untraced_at = self._polled_at - max(0.0, created)
        state = next(iter(catalog.states(table=managed.name)), None)
        if state is None or not managed.updated_at <= state.at <= now:
            return
        values = state.probe or {}
        if values.get("memwal") != __version__ or state.status.uri != location.uri:
            return
        probe_type = _probe_type(location)
        if ("folders" in values) != (probe_type is _FolderTimes):
            # The storage options lead to another kind of store since.
            return
        work = catalog.work_of([managed.name])[managed.name]
        # No job: any that is due is one that was not when the status was read.
        remembered = Survey(
            table=managed,
            status=state.status,
            due={},
            skipped_regions=work.skipped_regions,
            last_runs=work.last_runs,
        )
        read_at = self._polled_at - (now - state.at).total_seconds()
        probe = probe_type(location, values, read_at)
        self._last = _Remembered(remembered, probe, read_at, state.at)
        self._polled_at = self._changed_at = read_at

    def _unchanged(self, managed: ManagedTable) -> _Remembered | None:
        """Forget the last survey; return it if the table has not changed since."""
        last, polled_at = self._last, self._polled_at
        self._last, self._polled_at = None, boot_seconds()
        if last is None or not self._is_reusable(last, managed):
            return None
        if not self._has_changed(last.probe, managed.policy, self._polled_at - polled_at):
            return last
        self._changed_at = self._polled_at
        return None

    def _is_reusable(self, last: _Remembered, managed: ManagedTable) -> bool:
        age = self._polled_at - last.read_at
        status = last.survey.status
        if status.oldest_unflushed_seconds is not None and age >= UNFLUSHED_SECONDS:
            return False
        same_table = replace(managed, regions=last.survey.table.regions) == last.survey.table
        return age < FULL_READ_SECONDS and same_table

    def _has_changed(self, probe: _FolderTimes | _Traced, policy: Policy, pause: float) -> bool:
        if isinstance(probe, _FolderTimes):
            return probe.has_changed()
        # After a longer pause, a next version may have been written and deleted.
        if probe.has_trace() or probe.has_new_base(certain=pause >= RECENT_SECONDS):
            return True
        every = self._pause(self._untraced_at, policy.poll_seconds, policy.untraced_poll_seconds)
        now = self._polled_at
        if every > policy.poll_seconds and now - probe.round_at < every:
            return False
        probe.round_at = now
        match probe.find_change():
            case None:
                return False
            # The trace may follow its commit a moment later.
            case Change.MANIFEST if not probe.has_trace():
                self._untraced_at = now
        return True

    def _pause(self, since: float, least: float, most: float) -> float:
        return max(least, min((self._polled_at - since) / _PART, most))

    def _aged_survey(self, last: _Remembered, now: datetime) -> Survey:
        """Return a survey as it would be read now of a table that did not change."""
        # The clock that is set back does not make ages stand still.
        seconds = max((now - last.at).total_seconds(), self._polled_at - last.read_at)
        status = last.survey.status.aged(seconds)
        skipped = tuple(
            replace(record, waiting=record.next_try_at > now)
            for record in last.survey.skipped_regions
        )
        due = due_jobs(
            status, last.survey.table.policy, skipped, now=now, last_runs=last.survey.last_runs
        )
        aged = replace(last.survey, status=status, due=due, skipped_regions=skipped)
        return replace(aged, due=self._without_repeats(aged, now))

    def _without_repeats(self, survey: Survey, now: datetime) -> dict[str, Due]:
        """Return the due jobs without those that succeeded a moment ago and changed nothing.

        Two runs tell: the first one may have begun before the state was read, and changed it.
        Runs of a job follow each other, so that the second one began after that, and since the
        state is the same after it, it had no effect, and no other change needs the job.
        """
        due = dict(survey.due)
        if not _due_jobs(survey):
            self._became_due.clear()
            return due
        table = survey.table.policy, _measurements(survey.status)
        for job, decision in survey.due.items():
            last = survey.last_runs.get(job)
            # Time alone adds regions, which an earlier run left.
            state = *table, decision.regions
            due_state, successes = self._became_due.get(job, (None, set()))
            if decision.reason is None:
                self._became_due.pop(job, None)
            elif due_state != state:
                self._became_due[job] = state, {last}
            else:
                successes.add(last)
                pause = timedelta(seconds=REPEAT_SECONDS)
                if len(successes) > 2 and last is not None and now - last < pause:
                    due[job] = NOT_DUE
        return due


def _measurements(status: TableStatus) -> object:
    """Return what changes with each step of a job or a writer; the version alone tells nothing.

    An index build without effect makes a new version too, and a living writer appends to its log.
    """
    regions = {
        region.region_id: (
            region.writer_epoch,
            region.merged_generation,
            region.backlog_generations,
        )
        for region in status.regions
    }
    base = status.fragments, status.small_fragments, status.deleted_rows, status.base_rows
    return regions, status.indexes, base, status.changed_regions


def _depends_on_work(survey: Survey) -> bool:
    """Return whether runs and skipped regions in the catalog can change the table's due jobs.

    While a region waits for its next try, a person may have it tried now.
    """
    return bool(survey.skipped_regions or _due_jobs(survey))


def _due_jobs(survey: Survey) -> set[str]:
    return {job for job, due in survey.due.items() if due.reason is not None}


class _FolderTimes:
    """Times of the folders that every change creates or deletes a file in."""

    is_quick = True  # Takes system calls only.
    is_remote = False

    def __init__(
        self, location: TableLocation, stored: JsonMapping | None = None, at: float = 0.0
    ) -> None:
        self._store = location.store
        if stored is not None:
            self._settled = True
            self._stamps: dict[str, int | None] = stored["folders"]
            return
        regions = discover_regions(location.store)
        folders = [folder(region) for region in regions for folder in (manifest_dir, wal_dir)]
        now = time.time_ns()
        self._stamps = self._read([VERSIONS_DIR, MEM_WAL_DIR, CONSUMERS_DIR, *folders])
        newest = max(stamp or 0 for stamp in self._stamps.values())
        self._settled = newest < now - STAMP_SETTLES_NS

    def to_dict(self) -> JsonObject | None:
        """Return the times; None if they may tell nothing of a change that followed at once."""
        return {"folders": self._stamps} if self._settled else None

    def has_changed(self) -> bool:
        return not self._settled or self._read(self._stamps) != self._stamps

    def _read(self, folders: Iterable[str]) -> dict[str, int | None]:
        return {folder: self._store.folder_stamp(folder) for folder in folders}


class Change(Enum):
    """Listed manifests and log entries of a table in an object store."""

    MANIFEST = "manifest"
    """Another manifest, or another region."""
    LOG = "log"
    """New log entries only, which are no commit and leave no trace."""


class _Traced:
    """Trace of changes, next base version, and a listing of the regions in an object store."""

    is_quick = False

    def __init__(
        self, location: TableLocation, stored: JsonMapping | None = None, at: float | None = None
    ) -> None:
        self.round_at = boot_seconds() if at is None else at
        self.is_remote = not location.store.is_local
        self._store = location.store
        if stored is not None:
            self._trace: list[str | int | None] | None = stored["trace"]
            self._regions: dict[str, list[int]] = stored["regions"]
            self._base, self._next_base = stored["base"], stored["next_base"]
            return
        # First: a commit after the listing below leaves another one.
        self._trace = self._read_trace()
        version = open_base(location).version
        self._base = table_manifest_key(location, version)
        used = table_manifest_keys(version).index(self._base)
        self._next_base = table_manifest_keys(version + 1)[used]
        self._regions = self._list()

    def to_dict(self) -> JsonObject | None:
        return {
            "trace": self._trace,
            "base": self._base,
            "next_base": self._next_base,
            "regions": self._regions,
        }

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

    def find_change(self) -> Change | None:
        """Return the kind of change between the last listing and a new one."""
        found, known = self._list(), self._regions
        if {r: version for r, (version, _) in found.items()} != {
            r: version for r, (version, _) in known.items()
        }:
            return Change.MANIFEST
        # The newest entry of a log is never deleted.
        return Change.LOG if any(found[r][1] > tip for r, (_, tip) in known.items()) else None

    def _list(self) -> dict[str, list[int]]:
        """Return the newest version of the manifest and the newest log entry of each region."""
        regions: dict[str, list[int]] = {}
        for info in self._store.list(MEM_WAL_DIR):
            _, name, *rest = info.key.split("/")
            if parse_region_name(name) is None:
                continue
            newest = regions.setdefault(name, [0, 0])
            match rest:
                case ["manifest", file]:
                    newest[0] = max(newest[0], parse_manifest_name(file) or 0)
                case ["wal", file]:
                    newest[1] = max(newest[1], parse_wal_name(file) or 0)
        return regions

    def _read_trace(self) -> list[str | int | None] | None:
        info = self._store.head(CHANGE_TRACE_KEY)
        return None if info is None else [info.e_tag, info.modified.isoformat(), info.size]


def _probe_type(location: TableLocation) -> type[_FolderTimes | _Traced]:
    return _Traced if location.store.folder_stamp(MEM_WAL_DIR) is None else _FolderTimes
