"""Catch the base table's indexes up with the merge progress (spec: Base Table Index Builder).

An index is extended by a segment over the fragments that it does not cover, and its newest segments
are joined when there are many. Where much is to be indexed, the segment is built in parts by
several tasks. Either way Lance records the catch-up itself, in the commit that makes the index
cover every fragment of the version that was read: up to the generations that this version has, not
to those that were merged meanwhile. A process that dies before that commit has changed nothing; a
process that repeats it finds nothing left to do. The result is read back, never assumed.

Centroids and codebook of a vector index stay bit for bit as they are, so that distances estimated
by generations and by the base table remain comparable while MemWAL is enabled.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import lance

from memwal.base_table.commit import commit_durably, is_conflict
from memwal.base_table.details import update_details
from memwal.base_table.snapshot import BaseTable, open_base, translate_lance_error
from memwal.errors import ConflictError, InvalidInputError
from memwal.jobs.index.parallel import (
    PartTask,
    can_be_built_in_parts,
    commit_parts,
    maintained_index,
    run_part_task,
)
from memwal.jobs.job import Guard, JobResult, TaskRunner, guarded
from memwal.jobs.options import IndexOptions
from memwal.lsm.indexes.catchup import (
    caught_up,
    covers,
    covers_nothing,
    index_names,
    maintained_index_names,
)
from memwal.lsm.indexes.partition_balance import (
    PartitionBalance,
    advice_on,
    balance_figures,
    partition_balance,
)
from memwal.lsm.indexes.segments import (
    describe_index,
    group_fragments,
    index_coverage,
    segment_limit,
    segments_to_join,
)
from memwal.lsm.indexes.vector import VECTOR_KINDS
from memwal.storage.location import TableLocation

__all__ = (
    "build_indexes",
    "caught_up",
    "covers",
    "index_names",
    "maintained_index_names",
)

logger = logging.getLogger(__name__)

# A BTREE takes millions of rows in a second, a text or a vector index a hundred thousand or two.
_SCALAR_FACTOR = 16

_NO_MODEL = (
    "index {} has no model yet, since Lance trains one from 256 rows on: rows are searched one by "
    "one, and merged generations stay until there are as many"
)
_ATTEMPTS = 20
_PART_ROUNDS = 5
_CONFLICT_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One index that is to cover what was merged when the task was planned."""

    location: TableLocation
    index: str
    target: Mapping[UUID, int]
    max_segments: int


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """What a task did.

    Attributes
    ----------
    balance : PartitionBalance or None
        Of a vector index that was extended.
    problem : str or None
        Why it does not cover the target, where waiting for other commits is no help.
    """

    commits: int
    balance: PartitionBalance | None = None
    problem: str | None = None


@dataclass(slots=True)
class _Tally:
    tasks: int = 0
    commits: int = 0
    indexes: set[str] = field(default_factory=set)
    parts: int = 0
    balances: dict[str, PartitionBalance] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def build_indexes(location: TableLocation, options: IndexOptions = IndexOptions()) -> JobResult:
    """Catch every maintained index up with the merge progress.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    options : IndexOptions, optional

    Returns
    -------
    JobResult
        Figures ``indexes``, how many were behind or in too many segments, and where it applies
        ``parts``, and of the vector indexes that were extended the worst ``unevenness_percent``
        (rows of the fullest partition by the average) and ``empty_partitions_percent``. A
        problem for each maintained index that does not exist, and for each whose partitions are
        too uneven.

    Raises
    ------
    InvalidInputError
        One of ``indexes`` is not a maintained index.
    ConflictError
        Other commits kept getting in between.
    """
    started = time.monotonic()
    base = open_base(location)
    base.require_mem_wal()
    existing = index_names(base)
    maintained = _asked_for(maintained_index_names(base), options.indexes, location)
    built = [name for name in maintained if name in existing]
    target = dict(base.details.merged)
    tally = _Tally()
    for attempt in range(_PART_ROUNDS):
        if attempt:
            base = open_base(location)
            built = [name for name in built if name in index_names(base)]
        # Whatever could not be built in parts so often is done by one task, which is patient.
        divided = (options.max_tasks or 1) if attempt < _PART_ROUNDS - 1 else 1
        plan = _plan(base, built, target, divided, options.part_rows, options.max_segments)
        if not plan:
            break
        if not _run_plan(base, plan, options.run, tally, options.guard):
            break
    missing = tuple(
        f"maintained index {name} does not exist; build it, or garbage stays"
        for name in maintained
        if name not in existing
    )
    figures = {"indexes": len(tally.indexes)}
    if tally.parts:
        figures["parts"] = tally.parts
    return JobResult(
        job="index",
        table=location.uri,
        version=open_base(location).version,
        tasks=tally.tasks,
        commits=tally.commits,
        seconds=time.monotonic() - started,
        figures=figures | balance_figures(tally.balances.values()),
        problems=(*missing, *tally.problems, *advice_on(tally.balances.values())),
    )


def run_index_task(task: IndexTask, *, guard: Guard | None = None) -> IndexOutcome:
    """Extend one index over what is not indexed yet, until it covers the target.

    Raises
    ------
    ConflictError
        Other commits kept getting in between.
    MemWalError
        What the store failed with, or that the index was dropped.
    """
    commits = conflicts = 0
    for _ in range(_ATTEMPTS):
        if conflicts:
            time.sleep(random.uniform(0, _CONFLICT_WAIT_SECONDS * conflicts))  # noqa: S311
        base = open_base(task.location)
        if _is_done(base, task.index, task.target, task.max_segments):
            balance = partition_balance(base, task.index) if commits else None
            return IndexOutcome(commits, balance=balance)
        if guard is not None:
            guard()
        if base.dataset.count_rows() == 0:
            # Lance records nothing for an index that has nothing to cover.
            update_details(task.location, lambda latest: covers_nothing(latest, task.index))
            commits += 1
            continue
        try:
            _extend(base, task)
        except ConflictError as error:
            logger.info("index %s met another commit, trying again: %s", task.index, error)
            conflicts += 1
            continue
        except (OSError, RuntimeError, ValueError) as error:
            if is_conflict(error):
                logger.info("index %s met another commit, trying again: %s", task.index, error)
                conflicts += 1
                continue
            raise translate_lance_error(error, f"extending index {task.index}") from error
        commits += 1
        if _has_no_model(open_base(task.location), task.index):
            return IndexOutcome(commits, problem=_NO_MODEL.format(task.index))
    raise ConflictError(
        f"index {task.index} of {task.location} did not catch up in {_ATTEMPTS} attempts; "
        "other commits kept getting in between, try again later"
    )


def _asked_for(
    maintained: Collection[str], names: Collection[str] | None, location: TableLocation
) -> list[str]:
    if names is None:
        return list(maintained)
    unknown = sorted(set(names) - set(maintained))
    if unknown:
        raise InvalidInputError(
            f"{location} maintains no index {', '.join(unknown)}; it maintains "
            f"{', '.join(maintained) or 'none'}"
        )
    return [name for name in maintained if name in set(names)]


def run_any_task(task: IndexTask | PartTask, *, guard: Guard | None = None) -> Any:
    """Run a task of either sort: both go to the workers together."""
    if isinstance(task, PartTask):
        return run_part_task(task)
    return run_index_task(task, guard=guard)


def _plan(
    base: BaseTable,
    names: Sequence[str],
    target: Mapping[UUID, int],
    max_tasks: int,
    part_rows: int,
    max_segments: int,
) -> list[IndexTask | PartTask]:
    plan: list[IndexTask | PartTask] = []
    for name in names:
        if _is_done(base, name, target, max_segments):
            continue
        fragments = _parts_of(base, name, max_tasks, part_rows)
        if len(fragments) > 1:
            plan += [PartTask(base.location, base.version, name, group) for group in fragments]
        else:
            plan.append(IndexTask(base.location, name, target, max_segments))
    return plan


def _parts_of(
    base: BaseTable, name: str, max_tasks: int, part_rows: int
) -> tuple[tuple[int, ...], ...]:
    """Fragments of each part; none where the index is not worth being built in parts."""
    description = describe_index(base, name)
    if max_tasks == 1 or description is None or segment_limit(base, max_tasks) == 1:
        return ()
    coverage = index_coverage(base, description)
    if description.index_type not in VECTOR_KINDS and description.index_type != "Inverted":
        part_rows *= _SCALAR_FACTOR
    if coverage.uncovered_rows < part_rows:
        return ()
    index = maintained_index(base, name)
    if index is None or not can_be_built_in_parts(index):
        return ()
    groups = min(max_tasks, max(2, -(-coverage.uncovered_rows // part_rows)))
    return group_fragments(coverage.uncovered, groups=groups)


def _run_plan(
    base: BaseTable,
    plan: Sequence[IndexTask | PartTask],
    run: TaskRunner,
    tally: _Tally,
    guard: Guard | None,
) -> bool:
    """Run tasks and commit the parts; whether there may be something left to do."""
    results = run(plan, guarded(run_any_task, guard))
    tally.tasks += len(plan)
    tally.indexes |= {task.index for task in plan}
    parts: dict[str, list[Any]] = {}
    for task, result in zip(plan, results, strict=True):
        if isinstance(task, PartTask):
            parts.setdefault(task.index, []).append(result)
            continue
        tally.commits += result.commits
        tally.problems += [] if result.problem is None else [result.problem]
        if result.balance is not None:
            tally.balances[task.index] = result.balance
    for name, segments in parts.items():
        index = maintained_index(base, name)
        if index is None:
            continue
        if guard is not None:
            guard()
        try:
            commit_parts(base, index, segments)
        except ConflictError as error:
            logger.info("index %s: %s", name, error)
            continue
        tally.commits += 1
        tally.parts += len(segments)
        balance = partition_balance(open_base(base.location), name)
        if balance is not None:
            tally.balances[name] = balance
    return bool(parts)


def _extend(base: BaseTable, task: IndexTask) -> None:
    join = 0
    description = describe_index(base, task.index)
    if description is not None:
        coverage = index_coverage(base, description)
        limit = segment_limit(base, task.max_segments)
        join = segments_to_join(coverage, max_segments=limit)
        index = maintained_index(base, task.index) if coverage.is_void else None
        if index is not None and index.kind in VECTOR_KINDS:
            # Every row it was trained on is gone. Lance would train a new model.
            fragments = tuple(number for number, _ in coverage.uncovered)
            part = run_part_task(PartTask(base.location, base.version, task.index, fragments))
            commit_parts(base, index, [part])
            return

    def commit(dataset: lance.LanceDataset) -> None:
        dataset.optimize.optimize_indices(index_names=[task.index], num_indices_to_merge=join)

    commit_durably(base, commit)


def _has_no_model(base: BaseTable, name: str) -> bool:
    """Whether a vector index is there in name only: Lance made it with too few rows."""
    description = describe_index(base, name)
    return (
        description is not None
        and description.index_type in VECTOR_KINDS
        and base.dataset.count_rows() > 0
        and not any(segment.fragment_ids for segment in description.segments)
    )


def _is_done(base: BaseTable, name: str, target: Mapping[UUID, int], max_segments: int) -> bool:
    if not covers(base, name, target):
        return False
    description = describe_index(base, name)
    return description is None or len(description.segments) <= segment_limit(base, max_segments)
