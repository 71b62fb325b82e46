"""Merging flushed generations into the base table (spec: MemTable Merger).

One commit carries the rows of one or more regions together with their merge progress. What a
process that pauses, dies or repeats does at each step:

* before the delete pass: nothing happened. Rows that the rules of quality keep out are in the
  quarantine by then: :mod:`memwal.quality.ledger`;
* between the delete pass and the marked commit: keys whose newest row is a tombstone are gone from
  the base table a little early. Every reader that merges sees them as deleted anyway, and the next
  run does both passes again;
* after the marked commit: the progress says so, and every later try leaves the generations out.

A process that wakes late cannot do harm: its delete pass is pinned to the version whose progress
it read, and is refused when anybody touched the same rows since; its marked commit is refused when
the progress is not below its marks, when another merger moved the progress of its regions, and when
somebody else brought rows that may have the same keys.

Lance refuses a merge when somebody appended to the table meanwhile, since the same keys may be
among what was appended. Next to a writer that appends faster than a large commit takes, commits
shrink until they get through.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

from memwal.errors import ConflictError, TableSetupError
from memwal.format.names import generation_dir
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.maintenance.guard import Guard, guarded
from memwal.maintenance.merge_source import (
    Collected,
    Generation,
    MergeSource,
    RegionBatch,
    not_merged,
    read_source,
)
from memwal.maintenance.results import HeldRegion, JobResult, TaskRunner, run_in_process
from memwal.quality.ledger import Ledger
from memwal.quality.report import QualityReport, combine
from memwal.quality.rules import QualityRules
from memwal.region.discovery import read_manifests
from memwal.storage.location import TableLocation
from memwal.storage.write_behind import write_behind
from memwal.table_index.base_table import BaseTable, open_base, translate_lance_error
from memwal.table_index.commit_conflicts import is_conflict
from memwal.table_index.strict_commit import commit_durably
from memwal.telemetry.attributes import ROWS, VERSION
from memwal.telemetry.job_metrics import job_metrics
from memwal.telemetry.spans import span

logger = logging.getLogger(__name__)

DEFAULT_COMMIT_BYTES = 1 << 30

# Below this many rows Lance's own index finds the matches faster than a join does.
_JOIN_FROM_ROWS = 1_000
# A commit of many generations is tried so often before it shrinks, one that cannot so often.
_TRIES = 4
_ATTEMPTS = 50
_SHRINK = 4
_GROW = 2
_CONFLICT_WAIT_SECONDS = 0.05

# Syncing less takes no time worth another thread.
_WRITE_BEHIND_BYTES = 64 << 20

# Of a commit that was stored although its caller was told otherwise.
_NO_FIGURES = {"num_inserted_rows": 0, "num_updated_rows": 0, "num_deleted_rows": 0}


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Regions that one worker merges, in commits of up to ``commit_bytes``.

    A region stands in one task only, so that tasks do not get in each other's way; that two runs
    may overlap is what the commits themselves are safe against.
    """

    location: TableLocation
    regions: tuple[RegionBatch, ...]
    commit_bytes: int
    quality: QualityRules | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """What a task did."""

    version: int = 0
    commits: int = 0
    generations: int = 0
    rows_upserted: int = 0
    rows_deleted: int = 0
    bytes: int = 0
    held: tuple[HeldRegion, ...] = ()
    quality: tuple[QualityReport, ...] = ()


def merge(
    location: TableLocation,
    *,
    regions: Collection[UUID] | None = None,
    skip: Collection[UUID] = (),
    commit_bytes: int = DEFAULT_COMMIT_BYTES,
    run_bytes: int | None = None,
    max_tasks: int = 1,
    quality: QualityRules | None = None,
    guard: Guard | None = None,
    run: TaskRunner = run_in_process,
) -> JobResult:
    """Merge every flushed generation that the base table does not have.

    Parameters
    ----------
    regions : collection of UUID, optional
        Only these regions; all by default.
    skip : collection of UUID, optional
        Not these regions: what cannot be read need not be tried each time.
    commit_bytes : int, default 1 GiB
        Size in memory up to which generations go into one commit. It bounds a worker's memory;
        a single larger generation still goes alone.
    run_bytes : int, optional
        Size in memory of what is merged at most; the oldest generations of each region go first.
        At least one generation is merged.
    max_tasks : int, default 1
        Into how many tasks the regions are divided at most. A task has a whole commit to make:
        a merge keeps all processors of a machine busy; and of two merges at once that each insert
        more than some dozens of new keys Lance refuses the second, which is then done again.
    quality : QualityRules, optional
        What the rows must be like that enter, and what is done about those that are not; see
        :mod:`memwal.quality`. By default all rows enter.
    guard : callable, optional
        Called right before each commit by the tasks that run in this process; what it raises stops
        them.
    run : callable
        Runs the tasks.

    Returns
    -------
    JobResult
        Figures ``generations``, ``rows_upserted``, ``rows_deleted``, and the ``bytes`` in memory
        of these generations; one problem for each region that had to be left out; what the rules of
        quality found.
    """
    started = time.monotonic()
    tasks = plan_merge(
        location,
        regions=regions,
        skip=skip,
        commit_bytes=commit_bytes,
        run_bytes=run_bytes,
        max_tasks=max_tasks,
        quality=quality if quality is not None and quality.gates else None,
    )
    outcomes: list[MergeOutcome] = run(tasks, guarded(run_merge_task, guard)) if tasks else []
    held = tuple(region for outcome in outcomes for region in outcome.held)
    found = combine(report for outcome in outcomes for report in outcome.quality)
    return JobResult(
        job="merge",
        table=location.uri,
        version=open_base(location).version,
        tasks=len(tasks),
        commits=sum(outcome.commits for outcome in outcomes),
        seconds=time.monotonic() - started,
        figures={
            "generations": sum(outcome.generations for outcome in outcomes),
            "rows_upserted": sum(outcome.rows_upserted for outcome in outcomes),
            "rows_deleted": sum(outcome.rows_deleted for outcome in outcomes),
            "bytes": sum(outcome.bytes for outcome in outcomes),
        },
        problems=(*map(str, held), *(found.problems() if found is not None else ())),
        held=held,
        quality=None if found is None else found.to_dict(),
    )


def plan_merge(
    location: TableLocation,
    *,
    regions: Collection[UUID] | None = None,
    skip: Collection[UUID] = (),
    commit_bytes: int = DEFAULT_COMMIT_BYTES,
    run_bytes: int | None = None,
    max_tasks: int = 1,
    quality: QualityRules | None = None,
) -> tuple[MergeTask, ...]:
    """Divide the backlog into tasks of about the same size; see :func:`merge`."""
    manifests = read_manifests(location.store, regions)
    base = open_base(location)
    base.require_mem_wal()
    batches = [
        RegionBatch(region_id, pending)
        for region_id, manifest in manifests.items()
        if region_id not in set(skip) and (pending := pending_generations(location, base, manifest))
    ]
    if run_bytes is not None:
        batches = _oldest(batches, run_bytes)
    whole_commits = -(-sum(batch.bytes for batch in batches) // max(commit_bytes, 1))
    # No task for an empty backlog, and one where the sizes are unknown.
    count = min(max_tasks, len(batches), max(whole_commits, 1))
    shares: list[list[RegionBatch]] = [[] for _ in range(count)]
    for batch in sorted(batches, key=lambda batch: batch.bytes, reverse=True):
        min(shares, key=lambda share: sum(b.bytes for b in share)).append(batch)
    return tuple(MergeTask(location, tuple(share), commit_bytes, quality) for share in shares)


def _oldest(batches: Sequence[RegionBatch], budget: int) -> list[RegionBatch]:
    """What fits the budget, level by level: the oldest generation of each region, then the next.

    No region waits for another one to be merged whole. Within a level any may come first: were it
    always the same ones, and the budget too small for a level, others would wait for ever.
    """
    order = random.sample(range(len(batches)), len(batches))
    levels = sorted(
        (level, turn, number)
        for turn, number in enumerate(order)
        for level in range(len(batches[number].generations))
    )
    taken = [0] * len(batches)
    size = 0
    for level, _, number in levels:
        size += batches[number].generations[level].bytes
        if size > budget and any(taken):
            break
        taken[number] = level + 1
    return [
        replace(batch, generations=batch.generations[:count])
        for batch, count in zip(batches, taken, strict=True)
        if count
    ]


def pending_generations(
    location: TableLocation, base: BaseTable, manifest: RegionManifest
) -> tuple[Generation, ...]:
    """Generations of a region that are flushed and not merged, oldest first."""
    merged = base.details.merged.get(manifest.region_id, 0)
    return tuple(
        Generation(flushed.generation, flushed.path, _size(location, manifest.region_id, flushed))
        for flushed in sorted(manifest.flushed, key=lambda flushed: flushed.generation)
        if flushed.generation > merged
    )


def run_merge_task(task: MergeTask, *, guard: Guard | None = None) -> MergeOutcome:
    """Merge a task's generations, one commit after another, oldest first within each region.

    A region whose generations cannot be read stops at that point and is reported; the others go
    on. Safe to run any number of times, also at the same time as any other merger.
    """
    outcome = MergeOutcome()
    left = list(task.regions)
    budget = task.commit_bytes
    while left:
        now, later = _next_commit(left, budget)
        size = sum(batch.bytes for batch in now)
        single = sum(len(batch.generations) for batch in now) == 1
        try:
            attempts = _ATTEMPTS if single else _TRIES
            done = _merge_commit(
                task.location, now, attempts=attempts, look=guard or _go_on, rules=task.quality
            )
        except _Contended:
            if single:
                raise
            # A smaller commit takes less time, in which less can get in between.
            budget = max(size // _SHRINK, 1)
            continue
        left = later
        budget = min(budget * _GROW, task.commit_bytes)
        outcome = replace(
            outcome,
            version=max(outcome.version, done.version),
            commits=outcome.commits + done.commits,
            generations=outcome.generations + done.generations,
            rows_upserted=outcome.rows_upserted + done.rows_upserted,
            rows_deleted=outcome.rows_deleted + done.rows_deleted,
            bytes=outcome.bytes + done.bytes,
            held=(*outcome.held, *done.held),
            quality=(*outcome.quality, *done.quality),
        )
        stopped = {held.region_id for held in done.held}
        left = [batch for batch in left if str(batch.region_id) not in stopped]
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    version: int = 0
    commits: int = 0
    generations: int = 0
    rows_upserted: int = 0
    rows_deleted: int = 0
    bytes: int = 0
    held: tuple[HeldRegion, ...] = ()
    quality: tuple[QualityReport, ...] = ()


def _next_commit(
    batches: Sequence[RegionBatch], budget: int
) -> tuple[list[RegionBatch], list[RegionBatch]]:
    """Split off what fits one commit; at least one generation, and never a later one first."""
    now: list[RegionBatch] = []
    later: list[RegionBatch] = []
    size = 0
    for batch in batches:
        taken = 0
        for generation in batch.generations:
            if size and size + generation.bytes > budget:
                break
            size += generation.bytes
            taken += 1
        if taken:
            now.append(replace(batch, generations=batch.generations[:taken]))
        if taken < len(batch.generations):
            later.append(replace(batch, generations=batch.generations[taken:]))
    return now, later


def _merge_commit(
    location: TableLocation,
    batches: Sequence[RegionBatch],
    *,
    attempts: int,
    look: Guard,
    rules: QualityRules | None = None,
) -> _Commit:
    """Merge what the base table does not have yet of these batches, with one marked commit."""
    held: dict[UUID, HeldRegion] = {}
    source: MergeSource | None = None
    ledger = Ledger(rules, location) if rules is not None else None
    deleted = 0
    for attempt in range(attempts):
        if attempt:
            time.sleep(random.uniform(0, _CONFLICT_WAIT_SECONDS * min(attempt, 20)))  # noqa: S311
        base = open_base(location)
        base.require_mem_wal()
        wanted = not_merged(base, batches, held)
        if not wanted:
            return _Commit(
                version=base.version, held=tuple(held.values()), quality=_found(ledger, ())
            )
        if source is None or not _is_of(source, base, wanted):
            try:
                source = read_source(base, wanted, held, ledger)
            except Collected:
                continue
            if source is None:
                continue
        try:
            look()
            if ledger is not None:
                ledger.keep(batch.region_id for batch in source.batches)
            if source.deletes.num_rows:
                deleted += _delete(base, source.deletes)
                base = open_base(location)
                if not _is_of(source, base, not_merged(base, source.batches)):
                    continue
                look()
            figures = _upsert(base, source)
        except _Conflict as conflict:
            logger.info("merge into %s met another commit, trying again: %s", location, conflict)
            continue
        if ledger is not None:
            ledger.settle(
                (batch.region_id, [g.number for g in batch.generations]) for batch in source.batches
            )
        return _Commit(
            version=base.version,
            commits=2 if source.deletes.num_rows else 1,
            generations=sum(len(batch.generations) for batch in source.batches),
            rows_upserted=figures,
            rows_deleted=deleted,
            bytes=sum(batch.bytes for batch in source.batches),
            held=tuple(held.values()),
            quality=_found(ledger, [batch.region_id for batch in source.batches]),
        )
    raise _Contended(
        f"{attempts} attempts to merge into {location} met other commits; try again later"
    )


def _found(ledger: Ledger | None, merged: Collection[UUID]) -> tuple[QualityReport, ...]:
    report = ledger.report(merged) if ledger is not None else None
    return () if report is None else (report,)


def _is_of(source: MergeSource, base: BaseTable, wanted: Sequence[RegionBatch]) -> bool:
    """Whether a source has exactly these generations, in the columns of this version."""
    return source.batches == tuple(wanted) and source.upserts.schema.equals(base.schema)


def _go_on() -> None:
    """Stands for the guard of a job that has none."""


class _Contended(ConflictError):
    """Other commits kept getting in between."""


class _Conflict(Exception):
    """Another commit got in between; nothing of ours was written."""


def _delete(base: BaseTable, keys: pa.Table) -> int:
    """Delete keys from exactly the version that was read, or raise _Conflict."""

    def execute(dataset: lance.LanceDataset) -> Mapping[str, int]:
        builder = dataset.merge_insert(list(base.primary_key)).when_matched_delete()
        return _execute(builder, keys)

    return int(_traced("delete", base, keys, execute)["num_deleted_rows"])


def _upsert(base: BaseTable, source: MergeSource) -> int:
    """Upsert the rows and record the progress in one commit, or raise _Conflict."""

    def execute(dataset: lance.LanceDataset) -> Mapping[str, int]:
        builder = (
            dataset.merge_insert(list(base.primary_key))
            .when_matched_update_all()
            .when_not_matched_insert_all()
        )
        builder.mark_sstables_as_compacted(
            [CompactedSsTable(str(b.region_id), b.generations[-1].number) for b in source.batches]
        )
        return _execute(builder, source.upserts)

    accept = _ours_to_merge(base, source)
    with write_behind(_data_folder(base.location, source.upserts.nbytes)):
        figures = _traced("upsert", base, source.upserts, execute, accept=accept)
    return int(figures["num_inserted_rows"] + figures["num_updated_rows"])


def _data_folder(location: TableLocation, size: int) -> Path | None:
    """Where a local table's new files come, if so many bytes of them are worth writing ahead."""
    folder = location.local_path
    return None if folder is None or size < _WRITE_BEHIND_BYTES else folder / "data"


def _ours_to_merge(base: BaseTable, source: MergeSource) -> Callable[[int], bool]:
    """Whether the rows of a merge may be committed behind a version that came after ``base``.

    Lance looks for rows that both commits touched, and does not see all of them:

    * another merger may have brought one of several generations, and with it a key that a later
      one deletes, after the delete pass;
    * somebody may have inserted, directly, a key that is new here as well. Lance compares inserted
      keys only of merges that join, and not of those that look keys up in an index. A commit that
      moves the progress of other regions brings other keys.
    """
    known = {base.version: base}

    def accept(version: int) -> bool:
        for number in range(base.version + 1, version + 1):
            if number not in known:
                try:
                    known[number] = open_base(base.location, version=number)
                except TableSetupError:
                    # Cleaned up already: nobody can tell any more what it brought.
                    return False
            before, after = known[number - 1], known[number]
            if not_merged(after, source.batches) != list(source.batches):
                return False
            brought = set(after.dataset.fragment_ids()) - set(before.dataset.fragment_ids())
            if brought and after.details.merged == before.details.merged:
                return False
        return True

    return accept


def _execute(builder: lance.dataset.MergeInsertBuilder, rows: pa.Table) -> Mapping[str, int]:
    # Lance's own retries would run the pass on a version whose progress nobody looked at.
    builder = builder.conflict_retries(0).use_index(rows.num_rows < _JOIN_FROM_ROWS)
    figures: Mapping[str, int] = builder.execute(rows)
    return figures


def _traced(
    what: str,
    base: BaseTable,
    rows: pa.Table,
    execute: Callable[[lance.LanceDataset], Mapping[str, int]],
    *,
    accept: Callable[[int], bool] | None = None,
) -> Mapping[str, int]:
    """One try of a commit, with a span of its own."""
    known = {ROWS: rows.num_rows, VERSION: base.version}
    with span(f"memwal.merge.{what}", base.location, attributes=known):
        try:
            return _commit(base, execute, accept=accept)
        except _Conflict:
            job_metrics().conflict(base.location.uri)
            raise


def _commit(
    base: BaseTable,
    execute: Callable[[lance.LanceDataset], Mapping[str, int]],
    *,
    accept: Callable[[int], bool] | None = None,
) -> Mapping[str, int]:
    try:
        return commit_durably(base, execute, accept=accept) or _NO_FIGURES
    except ConflictError as error:
        raise _Conflict(str(error)) from error
    except (OSError, RuntimeError, ValueError) as error:
        if is_conflict(error):
            raise _Conflict(str(error).splitlines()[0]) from error
        raise translate_lance_error(error, f"merging into {base.location}") from error


def _size(location: TableLocation, region_id: UUID, flushed: FlushedGeneration) -> int:
    if flushed.memory_bytes is not None:
        return flushed.memory_bytes
    folder = generation_dir(region_id, flushed.path)
    return sum(info.size for info in location.store.list(f"{folder}/data"))
