"""Garbage collection job: read the pins, collect regions in tasks, then the table's files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from memwal.base_table.refs import delete_torn_tags
from memwal.base_table.region_marks import check_progress, lost_progress, read_marks
from memwal.base_table.required_regions import check_regions
from memwal.base_table.snapshot import open_base
from memwal.errors import MemWalError
from memwal.jobs.gc.base_table import (
    BaseVersionCollector,
    IndexFileCollector,
    MergeRunCollector,
    ReadTagCollector,
    StagedManifestCollector,
    TemporaryFileCollector,
)
from memwal.jobs.gc.collector import Collector, GcContext
from memwal.jobs.gc.decision import CollectionResult, CollectionTally, Reason
from memwal.jobs.gc.pins import read_pins
from memwal.jobs.gc.region import GcTask, run_gc_task
from memwal.jobs.job import guarded, run_in_process
from memwal.jobs.options import GcOptions
from memwal.jobs.progress import Meter, Unit, reporting, run_metered
from memwal.region.manifest_store import discover_regions
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import span


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
        ``base_versions``, ``read_protections``; ``bytes``, and the same by kind as ``bytes_...``.

    Raises
    ------
    MemWalError
        What is in use cannot be read. Nothing was deleted then.
    """
    now = datetime.fromtimestamp(clock(), UTC)
    started = time.monotonic()
    marks = read_marks(location.store)
    base = open_base(location)
    base.require_mem_wal()
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
    context = GcContext(options=sent, now=now, pins=pins, marks=marks)
    count = min(options.max_tasks or 1, len(regions))
    shares = [tuple(regions[start::count]) for start in range(count)]
    tasks = [GcTask(location, share, context.of_regions(share)) for share in shares]
    tally = CollectionTally(explain=options.explain)
    tally.warnings += pins.problems
    tally.warnings += [pin.message for pin in pins.pins if pin.reason is Reason.UNREADABLE]
    with span("memwal.collect.regions", location), reporting(options.progress) as report:
        meter = Meter(report, job="gc", step="collecting", unit=Unit.REGIONS, total=len(regions))
        run_task = guarded(run_gc_task, options.guard)
        outcomes: list[CollectionTally] = run_metered(
            options, tasks, run_task, meter, lambda task: len(task.regions)
        )
    for outcome in outcomes:
        tally.merge(outcome)
    if options.guard is not None:
        options.guard()
    try:
        with span("memwal.collect.table", location):
            for collector in table_collectors(location):
                for decision in collector.collect(context):
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


def table_collectors(location: TableLocation) -> list[Collector]:
    """Return the collectors of objects of no region, in the order in which they run."""
    return [
        ReadTagCollector(location),
        IndexFileCollector(location),
        StagedManifestCollector(location),
        MergeRunCollector(location),
        TemporaryFileCollector(location),
        BaseVersionCollector(location),
    ]
