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
from memwal.jobs.gc.options import Ages
from memwal.jobs.gc.pins import read_pins
from memwal.jobs.gc.read_tags import ReadTagCollector
from memwal.jobs.gc.region import GcTask, run_gc_task
from memwal.jobs.job import guarded
from memwal.jobs.options import GcOptions
from memwal.region.manifest_store import discover_regions
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import span


def collect_garbage(
    location: TableLocation,
    options: GcOptions = GcOptions(),
    *,
    clock: Callable[[], float] = time.time,
) -> CollectionResult:
    """Collect merged generations, their log entries, old manifests, and what crashes left.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    options : GcOptions, optional
        By default a dry run. The guard is called before each part of the regions, and before the
        table's own files are deleted.
    clock : callable
        Seconds since the epoch; must agree with the store's clock to well within the grace period.

    Returns
    -------
    CollectionResult
        Figures ``generations_dropped``, ``folders`` (of which ``orphaned_folders`` were never
        named), ``log_entries``, ``manifests``, ``index_files``, ``staging_files``,
        ``base_versions``, ``read_protections``; ``bytes``, and the same by kind as ``bytes_...``.

    Raises
    ------
    MemWalError
        What is in use cannot be read. Nothing was deleted then.
    """
    ages = Ages.of(options, now=datetime.fromtimestamp(clock(), UTC))
    dry_run, guard = options.dry_run, options.guard
    started = time.monotonic()
    base = open_base(location)
    base.require_mem_wal()
    with span("memwal.collect.needs", location):
        try:
            pins = read_pins(location, ages, base=base)
        except CorruptDataError:
            if dry_run or not delete_torn_tags(location):
                raise
            pins = read_pins(location, ages, base=base)
        regions = discover_regions(location.store)
    if not dry_run:
        # A commit of Lance is not synced to disk; the one that replaced the garbage must be, first.
        location.store.barrier()
    context = GcContext(ages=ages, pins=pins, dry_run=dry_run, explain=options.explain)
    tasks = [
        GcTask(
            location=location,
            regions=share,
            context=replace(context, pins=pins.of_regions(share)),
        )
        for share in _shares(regions, options.max_tasks or 1)
    ]
    tally = Tally(explain=options.explain)
    with span("memwal.collect.regions", location):
        outcomes: list[Tally] = options.run(tasks, guarded(run_gc_task, guard)) if tasks else []
    for outcome in outcomes:
        tally.merge(outcome)
    if guard is not None:
        guard()
    try:
        with span("memwal.collect.table", location):
            for collector in table_collectors(location, older_than=options.version_age):
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
