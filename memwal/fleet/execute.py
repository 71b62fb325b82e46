"""Execute a job spec in this process, or preview its garbage collection."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from memwal.errors import InvalidInputError
from memwal.fleet.job_spec import Order
from memwal.jobs.due import JOBS
from memwal.jobs.job import Guard, JobResult, TaskRunner, run_in_process

if TYPE_CHECKING:
    from memwal.jobs.gc import CollectionResult
    from memwal.jobs.policy import Policy
    from memwal.table import Table

Perform = Callable[[Order, Guard], JobResult]
"""Does an order, looking at the guard whenever it can."""


def perform_here(
    table: Table, order: Order, *, run: TaskRunner = run_in_process, guard: Guard | None = None
) -> JobResult:
    """Do an order, with its tasks on a runner."""
    policy = order.policy
    match order.job:
        case "merge":
            return table.merge(
                regions=order.regions,
                skip=order.skip,
                commit_bytes=policy.merge_commit_bytes,
                run_bytes=order.run_bytes,
                max_tasks=order.max_tasks,
                quality=policy.quality,
                guard=guard,
                run=run,
            )
        case "index":
            names = None if order.index is None else (order.index,)
            return table.build_indexes(names=names, max_tasks=order.max_tasks, guard=guard, run=run)
        case "compact":
            return table.compact(
                min_fragments=order.min_fragments,
                commit_bytes=policy.merge_commit_bytes,
                max_commits=order.max_commits,
                attempts=order.attempts,
                guard=guard,
                run=run,
            )
        case "snapshot":
            return table.build_snapshot(max_tasks=order.max_tasks, guard=guard, run=run)
        case "gc":
            age = order.version_seconds
            return table.collect_garbage(
                dry_run=order.dry_run,
                grace=timedelta(seconds=policy.gc_grace_seconds),
                retention=timedelta(seconds=policy.gc_retention_seconds),
                index_age=timedelta(seconds=policy.gc_index_age_seconds),
                base_versions=age is not None,
                version_age=None if age is None else timedelta(seconds=age),
                max_tasks=order.max_tasks,
                guard=guard,
                run=run,
            )
        case "quality":
            return table.check_quality(order.rules, sample_rows=order.rules.check_sample_rows)
    raise InvalidInputError(f"there is no job {order.job!r}; the jobs are {', '.join(JOBS)}")


def would_collect(table: Table, policy: Policy) -> CollectionResult:
    """Decide what goes and what stays, with explanations, and delete nothing.

    Costs some requests to the store for each region.
    """
    age = policy.version_retention_seconds
    return table.collect_garbage(
        dry_run=True,
        explain=True,
        grace=timedelta(seconds=policy.gc_grace_seconds),
        retention=timedelta(seconds=policy.gc_retention_seconds),
        index_age=timedelta(seconds=policy.gc_index_age_seconds),
        base_versions=age is not None,
        version_age=None if age is None else timedelta(seconds=age),
    )
