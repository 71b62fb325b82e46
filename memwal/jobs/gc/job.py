"""Garbage collection job: read the pins, collect regions in tasks, then the table's files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from memwal.base_table.read_tags import delete_torn_tags
from memwal.base_table.snapshot import open_base
from memwal.errors import CorruptDataError, MemWalError
from memwal.jobs.gc import base_table, pins
from memwal.jobs.gc.base_table import clean_base_versions
from memwal.jobs.gc.decision import CollectionResult, Decision, Tally
from memwal.jobs.gc.history import StoredVersions
from memwal.jobs.gc.options import (
    DEFAULT_GRACE,
    DEFAULT_INDEX_AGE,
    DEFAULT_ORPHAN_AGE,
    DEFAULT_RETENTION,
    Ages,
)
from memwal.jobs.gc.pins import Refs, read_needs
from memwal.jobs.gc.region import CollectOutcome, CollectTask, run_collect_task
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
    ages = Ages(
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
            needs = read_needs(location, ages, base=base)
        except CorruptDataError:
            if dry_run or not delete_torn_tags(location):
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
            explain=explain,
        )
        for share in _shares(regions, max_tasks)
    ]
    with span("memwal.collect.regions", location):
        outcomes: list[CollectOutcome] = (
            run(tasks, guarded(run_collect_task, guard)) if tasks else []
        )
    tally = Tally(explain=explain)
    problems: list[str] = []
    for outcome in outcomes:
        tally.merge(outcome.figures, outcome.decisions)
        problems.extend(outcome.problems)
    if guard is not None:
        guard()
    older_than = max(version_age or ages.keep, ages.keep) if base_versions else None
    try:
        with span("memwal.collect.table", location):
            for decision in _of_the_table(
                location, ages, needs.refs, dry_run=dry_run, versions=older_than
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
