"""Catch the base table's indexes up with the merge progress (spec: Base Table Index Builder).

An index is behind if a fragment of the base table is not in it, even a fragment of another client:
merge progress does not count rows that other clients appended beside the log. An index is extended
by a segment over the fragments that it does not cover, and its newest segments are joined when
there are many. If there is much to index, the segment is built in parts by several tasks. Either
way Lance records the catch-up itself, in the commit that makes the index cover every fragment of
the version that was read: up to the generations that this version has, not to generations that were
merged during the build. A process that dies before that commit has changed nothing; a process that
repeats it has nothing to do. The result is read back, never assumed. Rows that are written to the
base table after the start of a build belong to the next build, so that a build ends beside clients
that do not stop.

In a parallel build, each task writes a *part*: a segment over some fragments, with the parameters
of the index it belongs to (those of a text index's tokenizer; of a vector index the centroids, the
codebook and the rotation). The parts are joined into one segment, which is committed beside the
existing ones. No version names a part before that commit. A process that dies leaves the files of
the parts behind, which are collected as stale index files; a process that repeats the build builds
new parts. Merges may be committed between the parts and the commit: the segment covers the
fragments it was built over, and Lance records the generations of the version that the parts were
built on. A compaction that rewrote one of the fragments makes the commit fail as a conflict, and
the parts are built again from the version of then.

A damaged index (:mod:`memwal.jobs.index.rebuild`) is replaced by a new one first. Until that commit
readers do not use it.

Centroids and codebook of a vector index stay bit for bit as they are, so that distances estimated
by generations and by the base table remain comparable while MemWAL is enabled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import lance
from lance.dataset import Index

from memwal.base_table.commit import commit_durably, update_details
from memwal.base_table.required_regions import check_not_held
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import ConflictError, InvalidInputError, TableSetupError
from memwal.jobs.index.rebuild import commit_parts, rebuild_damaged
from memwal.jobs.index.unindexable import (
    REFUSALS,
    build_without_unindexable,
    recorded_rows,
)
from memwal.jobs.job import Guard, JobResult, guarded, task_limit
from memwal.jobs.options import IndexOptions
from memwal.jobs.progress import Unit, run_tasks
from memwal.lsm.indexes.catchup import (
    covers,
    describe_index,
    group_fragments,
    index_coverage,
    index_names,
    maintained_index_names,
    segment_limit,
    segments_to_join,
    unmaintained_index_names,
    with_empty_coverage,
)
from memwal.lsm.indexes.kinds import kind_of
from memwal.lsm.indexes.maintained import index_of
from memwal.lsm.indexes.partition_balance import (
    PartitionBalance,
    advice_on,
    balance_metrics,
    partition_balance,
)
from memwal.storage.location import TableLocation
from memwal.util.retry import LostRaceError, LostWriteError, retry_lost_races

logger = logging.getLogger(__name__)


_NO_MODEL = (
    "index {} has no model yet, since Lance trains one from 256 rows on: rows are searched one by "
    "one, and merged generations stay until there are as many"
)
_NOT_TRAINED = (
    "index {} has no model yet, and Lance cannot train one: {}; replace or delete vectors of huge "
    "numbers, NaN or infinity, then build the index again: merged generations stay until then"
)
_MAX_ROUNDS = 5
# Rows that an index refuses are shown up to this number.
_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Extend one index until it covers the fragments and the target."""

    location: TableLocation
    index: str
    # Merge progress when the job was planned; empty for an index that is not maintained, of which
    # Lance records no catch-up.
    target: Mapping[UUID, int]
    max_segments: int
    # Fragments at the start of the job, also fragments that other clients appended beside the log.
    fragments: frozenset[int]
    rows: int = 0  # that it does not cover, for the progress


@dataclass(frozen=True, slots=True)
class PartTask:
    """Index some fragments of one version."""

    location: TableLocation
    version: int
    index: str
    fragments: tuple[int, ...]
    rows: int = 0  # in these fragments, for the progress


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """Result of an index task."""

    commits: int
    balance: PartitionBalance | None = None  # partition balance of a vector index that was extended
    # Why the index does not cover the target, if waiting for other commits does not help.
    warning: str | None = None


@dataclass(slots=True)
class _BuildTally:
    tasks: int = 0
    commits: int = 0
    indexes: set[str] = field(default_factory=set)
    parts: int = 0
    balances: dict[str, PartitionBalance] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def build_indexes(location: TableLocation, options: IndexOptions = IndexOptions()) -> JobResult:
    """Extend every index over all rows of the base table, and rebuild damaged indexes.

    Rows that other clients wrote to the base table directly are covered as merged rows are. Indexes
    of kinds that cannot be built here are left alone, unless they are maintained.

    Returns
    -------
    JobResult
        Metrics ``indexes``, the number of indexes that were behind or had too many segments;
        ``unindexable_rows``, which an index refuses and is built without;
        ``parts`` if there were any; ``rebuilt``, if there were any, damaged indexes that were
        built again; and for extended vector indexes the worst
        ``unevenness_percent`` (rows of the largest partition by the average) and
        ``empty_partitions_percent``. A warning for each maintained index that does not exist, and
        for each whose partitions are too uneven.

    Raises
    ------
    InvalidInputError
        The table has no index of one of these names, or it is not to be extended.
    ConflictError
        Other commits kept getting in between.
    """
    started = time.monotonic()
    base = start = open_base(location)
    check_not_held(base)
    existing = index_names(base)
    selected = _select(base, options)
    built = [name for name in selected if name in existing]
    rebuilt, lost = rebuild_damaged(location, built, guard=options.guard)
    built = [name for name in built if name not in lost]
    tally = _BuildTally(commits=len(rebuilt), indexes=set(rebuilt), warnings=list(lost.values()))
    if rebuilt:
        base = open_base(location)
    for attempt in range(_MAX_ROUNDS):
        if attempt:
            base = open_base(location)
            names_now = index_names(base)
            built = [name for name in built if name in names_now]
        # After this many lost rounds each index is left to one task, which retries longer.
        parts = task_limit(options) if attempt < _MAX_ROUNDS - 1 else 1
        plan = _plan(base, built, start, replace(options, max_tasks=parts))
        if not plan or not _run_plan(base, plan, options, tally):
            break
    missing = tuple(
        f"maintained index {name} does not exist; build it, or garbage stays"
        for name in selected
        if name not in existing
    )
    latest = open_base(location)
    refused = recorded_rows(latest)
    metrics = {"indexes": len(tally.indexes)}
    if refused:
        metrics["unindexable_rows"] = len(refused)
    if tally.parts:
        metrics["parts"] = tally.parts
    if rebuilt:
        metrics["rebuilt"] = len(rebuilt)
    return JobResult(
        job="index",
        table=location.uri,
        version=latest.version,
        tasks=tally.tasks,
        commits=tally.commits,
        seconds=time.monotonic() - started,
        metrics=metrics | balance_metrics(tally.balances.values()),
        warnings=(
            *missing,
            *tally.warnings,
            *advice_on(tally.balances.values()),
            *map(str, refused[:_MAX_SHOWN]),
        ),
        unindexable_rows=tuple(refused[:_MAX_SHOWN]),
    )


def run_index_task(task: IndexTask, *, guard: Guard | None = None) -> IndexOutcome:
    """Extend one index over the fragments that it does not cover, until the task is done.

    Raises ConflictError if other commits kept getting in between, LostWriteError if files of the
    index were not written whole in several attempts.
    """
    commits = 0

    def attempt() -> IndexOutcome:
        nonlocal commits
        base = open_base(task.location)
        if not _is_done(base, task):
            if guard is not None:
                guard()
            if base.dataset.count_rows():
                try:
                    with lance_errors(f"extending index {task.index}"):
                        _extend(base, task)
                except InvalidInputError as error:
                    if not _has_no_model(base, task.index):
                        raise
                    # The other indexes are extended. To find the rows, a model would be needed.
                    return IndexOutcome(commits, warning=_NOT_TRAINED.format(task.index, error))
            else:
                # Lance records no catch-up for an index that has nothing to cover.
                update_details(
                    task.location, lambda latest: with_empty_coverage(latest, task.index)
                )
            commits += 1
            base = open_base(task.location)
            if _has_no_model(base, task.index):
                return IndexOutcome(commits, warning=_NO_MODEL.format(task.index))
            if not _is_done(base, task):
                raise LostRaceError(f"index {task.index} is behind again after its commit")
        balance = _balance(base, task.index) if commits else None
        return IndexOutcome(commits, balance=balance)

    return retry_lost_races(
        attempt,
        attempts=20,
        seconds=0.2,
        exhausted=ConflictError(
            f"index {task.index} of {task.location} did not catch up in 20 attempts; other commits "
            "kept getting in between, try again later"
        ),
    )


def run_part_task(task: PartTask) -> Index:
    """Write one part; no version names it yet.

    Raises TableSetupError if, in the task's version, the index does not exist, or its kind cannot
    be built in parts.
    """
    base = open_base(task.location, version=task.version)
    index = index_of(base, task.index)
    part = None
    if index is not None:
        try:
            with lance_errors(f"building a part of index {task.index}"):
                part = index.spec.build(
                    base.dataset, name=index.name, column=index.column, fragment_ids=task.fragments
                )
        except REFUSALS as error:
            part = build_without_unindexable(base, index, task.fragments, error)
    if part is None:
        raise TableSetupError(f"index {task.index} of {task.location} cannot be built in parts")
    return part


def run_build_task(
    task: IndexTask | PartTask, *, guard: Guard | None = None
) -> IndexOutcome | Index:
    """Run a task of either type: both are in one plan."""
    if isinstance(task, PartTask):
        return run_part_task(task)
    return run_index_task(task, guard=guard)


def _select(base: BaseTable, options: IndexOptions) -> list[str]:
    """Return the names of the indexes to extend, the maintained ones first."""
    candidates = list(maintained_index_names(base))
    if not options.maintained_only:
        candidates += unmaintained_index_names(base)
    if options.indexes is None:
        return candidates
    unknown = sorted(set(options.indexes) - set(candidates))
    if unknown:
        raise InvalidInputError(
            f"{base.location} has no index {', '.join(unknown)} to extend; it has "
            f"{', '.join(candidates) or 'none'}"
        )
    return [name for name in candidates if name in set(options.indexes)]


def _plan(
    base: BaseTable, names: Sequence[str], start: BaseTable, options: IndexOptions
) -> list[IndexTask | PartTask]:
    """Plan the tasks after which the indexes cover ``start``, the version at the job's start."""
    plan: list[IndexTask | PartTask] = []
    maintained = maintained_index_names(base)
    target, fragments = dict(start.details.merged), frozenset(start.dataset.fragment_ids())
    for name in names:
        progress = target if name in maintained else {}
        task = IndexTask(base.location, name, progress, options.max_segments, fragments)
        if _is_done(base, task):
            continue
        index = describe_index(base, name)
        rows = {} if index is None else dict(index_coverage(base, index).uncovered)
        groups = _part_fragments(base, name, task_limit(options), options.part_rows)
        if len(groups) > 1:
            plan += [
                PartTask(
                    base.location, base.version, name, group, sum(map(rows.__getitem__, group))
                )
                for group in groups
            ]
        else:
            plan.append(replace(task, rows=sum(rows.values())))
    return plan


def _part_fragments(
    base: BaseTable, name: str, max_tasks: int, part_rows: int
) -> tuple[tuple[int, ...], ...]:
    """Return the fragments of each part; empty if the index is not worth building in parts."""
    description = describe_index(base, name)
    if max_tasks == 1 or description is None or segment_limit(base, max_tasks) == 1:
        return ()
    coverage = index_coverage(base, description)
    part_rows *= kind_of(description).part_rows_factor
    if coverage.uncovered_rows < part_rows:
        return ()
    index = index_of(base, name)
    if index is None or not index.spec.parallel:
        return ()
    groups = min(max_tasks, max(2, -(-coverage.uncovered_rows // part_rows)))
    return group_fragments(coverage.uncovered, groups=groups)


def _run_plan(
    base: BaseTable,
    plan: Sequence[IndexTask | PartTask],
    options: IndexOptions,
    tally: _BuildTally,
) -> bool:
    """Run tasks and commit the parts. Returns True if an index may still be behind."""
    results = run_tasks(
        options,
        plan,
        guarded(run_build_task, options.guard),
        job="index",
        step="indexing",
        unit=Unit.ROWS,
    )
    tally.tasks += len(plan)
    tally.indexes |= {task.index for task in plan}
    parts: dict[str, list[Index]] = {}
    for task, result in zip(plan, results, strict=True):
        if isinstance(task, PartTask):
            parts.setdefault(task.index, []).append(result)
            continue
        tally.commits += result.commits
        if result.warning is not None:
            tally.warnings.append(result.warning)
        if result.balance is not None:
            tally.balances[task.index] = result.balance
    for name, segments in parts.items():
        index = index_of(base, name)
        if index is None:
            continue
        if options.guard is not None:
            options.guard()
        try:
            commit_parts(base, index, segments)
        except (LostRaceError, LostWriteError) as error:
            logger.info("%s; building the parts again", error)
            continue
        tally.commits += 1
        tally.parts += len(segments)
        balance = _balance(open_base(base.location), name)
        if balance is not None:
            tally.balances[name] = balance
    return bool(parts)


def _extend(base: BaseTable, task: IndexTask) -> None:
    """Make the commit that extends an index over all fragments of ``base``."""
    segments_joined = 0
    description = describe_index(base, task.index)
    if description is not None:
        coverage = index_coverage(base, description)
        limit = segment_limit(base, task.max_segments)
        segments_joined = segments_to_join(coverage, max_segments=limit)
        index = index_of(base, task.index) if coverage.is_void else None
        if index is not None and index.kind.is_vector:
            # Every row that it was trained on is gone. Lance would train a new model.
            fragments = tuple(number for number, _ in coverage.uncovered)
            part = run_part_task(PartTask(base.location, base.version, task.index, fragments))
            commit_parts(base, index, [part])
            return

    def commit(dataset: lance.LanceDataset) -> None:
        dataset.optimize.optimize_indices(
            index_names=[task.index], num_indices_to_merge=segments_joined
        )

    try:
        commit_durably(base, commit, doing=f"extending index {task.index}")
    except REFUSALS as error:
        index = index_of(base, task.index)
        if description is None or index is None:
            raise
        uncovered = [number for number, _ in index_coverage(base, description).uncovered]
        if base.dataset.has_stable_row_ids:
            # A changed row keeps its id: another segment would still have its old value.
            uncovered = sorted(base.dataset.fragment_ids())
        part = build_without_unindexable(base, index, uncovered, error)
        commit_parts(base, index, [part])


def _balance(base: BaseTable, name: str) -> PartitionBalance | None:
    # Another process may have dropped the index after the commit.
    return partition_balance(base, name) if name in index_names(base) else None


def _has_no_model(base: BaseTable, name: str) -> bool:
    """Return whether a vector index was never trained: Lance created it with too few rows."""
    description = describe_index(base, name)
    return (
        description is not None
        and kind_of(description).is_vector
        and base.dataset.count_rows() > 0
        and not any(segment.fragment_ids for segment in description.segments)
    )


def _is_done(base: BaseTable, task: IndexTask) -> bool:
    """Return whether an index covers its fragments and target, and has no segments to join."""
    if not covers(base, task.index, task.target):
        return False
    description = describe_index(base, task.index)
    if description is None:
        return True
    uncovered = index_coverage(base, description).uncovered
    if not task.fragments.isdisjoint(number for number, _ in uncovered):
        return False
    return len(description.segments) <= segment_limit(base, task.max_segments)
