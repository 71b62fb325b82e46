"""Garbage collection job: read the pins, collect regions in tasks, then the table's files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from memwal.base_table.read_tags import withdraw_torn
from memwal.base_table.snapshot import open_base
from memwal.errors import CorruptDataError, MemWalError
from memwal.jobs.gc import base_table, pins
from memwal.jobs.gc.base_table import clean_base_versions
from memwal.jobs.gc.decision import CollectionResult, Decision, Tally
from memwal.jobs.gc.history import StoredVersions
from memwal.jobs.gc.options import Ages
from memwal.jobs.gc.pins import Refs, read_needs
from memwal.jobs.gc.region import CollectOutcome, CollectTask, run_collect_task
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
            needs = read_needs(location, ages, base=base)
        except CorruptDataError:
            if dry_run or not withdraw_torn(location):
                raise
            needs = read_needs(location, ages, base=base)
        regions = discover_regions(location.store)
    if not dry_run:
        # A commit of Lance is not synced to disk; what replaces the garbage must be, first.
        location.store.barrier()
    tasks = [
        CollectTask(
            location=location,
            regions=share,
            needs=needs.only(share),
            ages=ages,
            dry_run=dry_run,
            explain=options.explain,
        )
        for share in _shares(regions, options.max_tasks or 1)
    ]
    with span("memwal.collect.regions", location):
        outcomes: list[CollectOutcome] = (
            options.run(tasks, guarded(run_collect_task, guard)) if tasks else []
        )
    tally = Tally(explain=options.explain)
    problems: list[str] = []
    for outcome in outcomes:
        tally.merge(outcome.figures, outcome.decisions)
        problems.extend(outcome.problems)
    if guard is not None:
        guard()
    try:
        with span("memwal.collect.table", location):
            for decision in _of_the_table(
                location, ages, needs.refs, dry_run=dry_run, versions=options.version_age
            ):
                tally.add(decision)
    except MemWalError as error:
        problems.append(f"files of the table itself: not collected: {error}")
    return CollectionResult(
        job="gc",
        table=location.uri,
        version=base.version,
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        figures=tally.figures,
        problems=tuple(problems),
        decisions=tuple(tally.decisions),
    )


def _of_the_table(
    location: TableLocation, ages: Ages, refs: Refs, *, dry_run: bool, versions: timedelta | None
) -> Iterator[Decision]:
    """Decide about what belongs to no region; yields each decision after it was carried out."""
    store = location.store
    for tag, decision in pins.judge_read_tags(refs, ages):
        if not decision.goes or dry_run:
            yield decision
        elif ended := pins.end(location, tag, ages):
            yield ended
    for decision in base_table.judge_index_files(location, ages):
        if decision.goes and not dry_run:
            base_table.delete(store, decision.what)
        yield decision
    for decision in base_table.judge_staged_manifests(StoredVersions.list(location), ages):
        if decision.goes and not dry_run:
            store.delete(decision.what)
        yield decision
    yield from base_table.judge_temporaries(location, ages)
    if not dry_run:
        base_table.delete_temporaries(store, ages)
    if versions is not None:
        cleaned = clean_base_versions(location, older_than=versions, dry_run=dry_run)
        if cleaned is not None:
            yield cleaned


def _shares(regions: Sequence[UUID], tasks: int) -> list[tuple[UUID, ...]]:
    count = min(tasks, len(regions))
    return [tuple(regions[start::count]) for start in range(count)]
