"""Catching the base table's indexes up with what was merged (spec: Base Table Index Builder).

Lance records the catch-up itself, in the commit that extends an index over every fragment of the
version it read. A process that dies before that commit has changed nothing; one that repeats it
finds nothing left to do. The result is read back, never assumed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

import lance

from memwal.errors import ConflictError
from memwal.format.index_details import IndexDetails
from memwal.format.names import MEM_WAL_INDEX_NAME
from memwal.maintenance.results import JobResult, TaskRunner, run_in_process
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, open_base, translate_lance_error
from memwal.table_index.details import update_details
from memwal.table_index.strict_commit import commit_strictly

logger = logging.getLogger(__name__)

_ATTEMPTS = 20
_CONFLICT_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One index that is to cover what was merged when the task was planned."""

    location: TableLocation
    index: str
    target: Mapping[UUID, int]


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """What a task did."""

    commits: int
    problems: tuple[str, ...] = ()


def build_indexes(location: TableLocation, *, run: TaskRunner = run_in_process) -> JobResult:
    """Catch every maintained index up with the merge progress.

    Returns
    -------
    JobResult
        Figure ``indexes``: how many were behind. A problem for each maintained index that does
        not exist.
    """
    started = time.monotonic()
    base = open_base(location)
    base.require_mem_wal()
    existing = index_names(base)
    maintained = maintained_index_names(base)
    tasks = tuple(
        IndexTask(location, name, dict(base.details.merged))
        for name in maintained
        if name in existing and not covers(base, name, base.details.merged)
    )
    outcomes: list[IndexOutcome] = run(tasks, run_index_task) if tasks else []
    missing = tuple(
        f"maintained index {name} does not exist; build it, or garbage stays"
        for name in maintained
        if name not in existing
    )
    return JobResult(
        job="index",
        table=location.uri,
        version=open_base(location).version,
        tasks=len(tasks),
        commits=sum(outcome.commits for outcome in outcomes),
        seconds=time.monotonic() - started,
        figures={"indexes": len(tasks)},
        problems=missing + tuple(p for outcome in outcomes for p in outcome.problems),
    )


def run_index_task(task: IndexTask) -> IndexOutcome:
    """Extend one index over what is not indexed yet, until it covers the target.

    Centroids and codebook of a vector index stay as they are: distances from generations and base
    table must stay comparable while MemWAL is enabled.
    """

    def extend(dataset: lance.LanceDataset) -> None:
        dataset.optimize.optimize_indices(index_names=[task.index])

    commits = 0
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0, _CONFLICT_WAIT_SECONDS * min(attempt, 20)))  # noqa: S311
        base = open_base(task.location)
        if covers(base, task.index, task.target):
            return IndexOutcome(commits)
        if base.dataset.count_rows() == 0:
            # Lance records nothing for an index that has nothing to cover.
            update_details(task.location, lambda latest: _covering_nothing(latest, task.index))
            commits += 1
            continue
        try:
            if base.location.store.is_local:
                # Lance syncs nothing there, and a torn version would keep the table from opening.
                commit_strictly(base, extend)
            else:
                extend(base.dataset)
        except ConflictError as error:
            logger.info("index %s met another commit, trying again: %s", task.index, error)
            continue
        except (OSError, RuntimeError, ValueError) as error:
            text = str(error).lower()
            if "conflict" in text or "concurrent" in text:
                logger.info("index %s met another commit, trying again: %s", task.index, error)
                continue
            raise translate_lance_error(error, f"extending index {task.index}") from error
        commits += 1
    raise ConflictError(
        f"index {task.index} of {task.location} did not catch up in {_ATTEMPTS} attempts; "
        "other commits kept getting in between, try again later"
    )


def _covering_nothing(base: BaseTable, index: str) -> IndexDetails:
    """Details that say that an index covers everything merged, if there are no rows to cover."""
    if base.dataset.count_rows():
        return base.details
    return replace(base.details, catchup={**base.details.catchup, index: dict(base.details.merged)})


def maintained_index_names(base: BaseTable) -> tuple[str, ...]:
    """Indexes that are to be kept up with merges."""
    if base.details.maintain_all_indexes:
        return tuple(sorted(index_names(base)))
    return base.details.maintained_indexes


def index_names(base: BaseTable) -> set[str]:
    """Names of the base table's indexes over columns."""
    return {index.name for index in base.dataset.describe_indices()} - {MEM_WAL_INDEX_NAME}


def caught_up(base: BaseTable, index: str) -> Mapping[UUID, int]:
    """Newest merged generation that an index covers, by region. No entry is no coverage."""
    return base.details.catchup.get(index, {})


def covers(base: BaseTable, index: str, target: Mapping[UUID, int]) -> bool:
    """Whether an index covers these generations."""
    covered = caught_up(base, index)
    return all(covered.get(region_id, 0) >= generation for region_id, generation in target.items())
