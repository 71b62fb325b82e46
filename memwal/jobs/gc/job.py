"""Garbage collection job: read the pins, collect regions in tasks, then the table's files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from memwal.base_table.read_tags import delete_torn_tags
from memwal.base_table.snapshot import open_base
from memwal.errors import CorruptDataError, MemWalError
from memwal.jobs.gc.base_table import (
    BaseVersionCollector,
    IndexFileCollector,
    StagedManifestCollector,
    TemporaryFileCollector,
)
from memwal.jobs.gc.collector import Collector, GcContext
from memwal.jobs.gc.decision import CollectionResult, Tally
from memwal.jobs.gc.options import (
    DEFAULT_GRACE,
    DEFAULT_INDEX_AGE,
    DEFAULT_ORPHAN_AGE,
    DEFAULT_RETENTION,
    Ages,
)
from memwal.jobs.gc.pins import read_pins
from memwal.jobs.gc.read_tags import ReadTagCollector
from memwal.jobs.gc.region import GcTask, run_gc_task
from memwal.jobs.job import Guard, TaskRunner, guarded, run_in_process
from memwal.region.manifest_store import discover_regions
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import span


def collect_garbage(
    location: TableLocation,
    *,
    dry_run: bool = True,
    grace: timedelta = DEFAULT_GRACE,
    retention: timedelta = DEFAULT_RETENTION,
    orphan_age: timedelta = DEFAULT_ORPHAN_AGE,
    index_age: timedelta = DEFAULT_INDEX_AGE,
    base_versions: bool = False,
    version_age: timedelta | None = None,
    explain: bool = False,
    max_tasks: int = 1,
    guard: Guard | None = None,
    run: TaskRunner = run_in_process,
    clock: Callable[[], float] = time.time,
) -> CollectionResult:
    """Collect merged generations, their log entries, old manifests, and what crashes left.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
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
        died, and a staged file for the rest of a write.
    index_age : timedelta, default 7 days
        The same for index files, whose builds may take long.
    base_versions : bool, default False
        Whether to have Lance clean up versions of the base table that are older than the
        retention; tagged ones, and those that branches start from, stay.
    version_age : timedelta, optional
        Age at which these versions go instead, longer than the retention: what they need of the
        generations does not stay as long as they do.
    explain : bool, default False
        Whether to return every decision: what goes, what stays, and why. Costs a listing for each
        generation.
    max_tasks : int, default 1
        Into how many tasks the regions are divided at most.
    guard : callable, optional
        Called before each part of the regions by the tasks that run in this process, and before
        the table's own files are deleted; what it raises stops them.
    clock : callable
        Seconds since the epoch; must agree with the store's clock to well within ``grace``.
    run : callable
        Runs the tasks; in this process by default.

    Returns
    -------
    CollectionResult
        Figures ``generations_dropped``, ``folders`` (of which ``orphaned_folders`` were never
        named), ``log_entries``, ``manifests``, ``index_files``, ``staging_files``,
        ``base_versions``, ``read_protections``; ``bytes``, and the same by kind as ``bytes_...``.

    Raises
    ------
    InvalidInputError
        An age is negative.
    MemWalError
        What is in use cannot be read. Nothing was deleted then.
    """
    options = Ages(
        now=datetime.fromtimestamp(clock(), UTC),
        grace=grace,
        retention=retention,
        orphan_age=orphan_age,
        index_age=index_age,
    )
    started = time.monotonic()
    base = open_base(location)
    base.require_mem_wal()
    with span("memwal.collect.needs", location):
        try:
            pins = read_pins(location, options, base=base)
        except CorruptDataError:
            if dry_run or not delete_torn_tags(location):
                raise
            pins = read_pins(location, options, base=base)
        regions = discover_regions(location.store)
    if not dry_run:
        # A commit of Lance is not synced to disk; the one that replaced the garbage must be, first.
        location.store.barrier()
    context = GcContext(options=options, pins=pins, dry_run=dry_run, explain=explain)
    tasks = [
        GcTask(
            location=location,
            regions=share,
            context=replace(context, pins=pins.of_regions(share)),
        )
        for share in _shares(regions, max_tasks)
    ]
    tally = Tally(explain=explain)
    with span("memwal.collect.regions", location):
        outcomes: list[Tally] = run(tasks, guarded(run_gc_task, guard)) if tasks else []
    for outcome in outcomes:
        tally.merge(outcome)
    if guard is not None:
        guard()
    older_than = max(version_age or options.keep, options.keep) if base_versions else None
    try:
        with span("memwal.collect.table", location):
            for collector in table_collectors(location, older_than=older_than):
                for decision in collector.collect(context):
                    tally.add(decision)
    except MemWalError as error:
        tally.problems.append(f"files of the table itself: not collected: {error}")
    return CollectionResult(
        job="gc",
        table=location.uri,
        version=base.version,
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        figures=tally.figures,
        problems=tuple(tally.problems),
        decisions=tuple(tally.decisions),
    )


def table_collectors(location: TableLocation, *, older_than: timedelta | None) -> list[Collector]:
    """Return the collectors of what belongs to no region, in the order in which they run.

    Parameters
    ----------
    older_than : timedelta or None
        Age at which versions of the base table are deleted; None keeps them.
    """
    collectors: list[Collector] = [
        ReadTagCollector(location),
        IndexFileCollector(location),
        StagedManifestCollector(location),
        TemporaryFileCollector(location),
    ]
    if older_than is not None:
        collectors.append(BaseVersionCollector(location, older_than))
    return collectors


def _shares(regions: Sequence[UUID], tasks: int) -> list[tuple[UUID, ...]]:
    count = min(tasks, len(regions))
    return [tuple(regions[start::count]) for start in range(count)]
