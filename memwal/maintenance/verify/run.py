"""Checking every invariant of a table, in tasks that may run anywhere.

Writers, mergers, collectors and other clients go on meanwhile, and every check reads in the order
that makes a change in between look right: the base table before the manifests, a manifest before
its log and its generations. What is left are moments in which things are being collected or
replaced. So whatever is found is looked at again, on the state of then, and counts only when it is
found again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from memwal.errors import InvalidInputError
from memwal.maintenance.results import TaskRunner, run_in_process
from memwal.maintenance.verify.base_versions import NewestBase, open_newest
from memwal.maintenance.verify.findings import Finding, VerifyReport, worst_first
from memwal.maintenance.verify.plan import Depth, VerifyTask, plan_verify
from memwal.maintenance.verify.regions import look_at_regions
from memwal.maintenance.verify.table import look_at_table
from memwal.storage.location import TableLocation

_LOOKS: Final = 3
_PAUSE_SECONDS: Final = 0.2


def verify(
    location: TableLocation,
    *,
    regions: Collection[UUID] | None = None,
    depth: Depth | str = Depth.FULL,
    sample: int | None = None,
    max_tasks: int = 1,
    run: TaskRunner = run_in_process,
    clock: Callable[[], float] = time.time,
) -> VerifyReport:
    """Check a table. Nothing is changed.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    regions : collection of UUID, optional
        Only these, beside what concerns the table as a whole; all by default.
    depth : Depth or {"quick", "full"}, default full
        Whether rows are read.
    sample : int, optional
        Read the rows of at most so many generations of each region, others with every version of
        the table; all by default.
    max_tasks : int, default 1
        Into how many tasks the regions are divided at most; one more is for the base table.
    run : callable
        Runs the tasks.
    clock : callable
        Seconds since the epoch.

    Raises
    ------
    InvalidInputError
        ``sample`` or ``max_tasks`` is not positive, or no such depth.
    TableSetupError
        There is no table, or it has no MemWAL.
    StoreAccessError, StoreUnavailableError
        The store failed, so that nothing can be said.
    """
    if max_tasks < 1 or (sample is not None and sample < 1):
        raise InvalidInputError("sample and max_tasks must be at least 1")
    started = time.monotonic()
    tasks = plan_verify(
        location,
        regions=regions,
        depth=_depth(depth),
        sample=sample,
        max_tasks=max_tasks,
        now=datetime.fromtimestamp(clock(), UTC),
    )
    found: list[tuple[int, tuple[Finding, ...]]] = run(tasks, run_verify_task)
    return VerifyReport(
        table=location.uri,
        version=max(version for version, _ in found),
        regions=sum(len(task.regions) for task in tasks),
        tasks=len(tasks),
        seconds=time.monotonic() - started,
        findings=worst_first(finding for _, findings in found for finding in findings),
    )


def _depth(depth: Depth | str) -> Depth:
    try:
        return Depth(depth)
    except ValueError as error:
        raise InvalidInputError(f"{depth!r} is no depth: quick or full") from error


def run_verify_task(task: VerifyTask) -> tuple[int, tuple[Finding, ...]]:
    """Check a share; returns the version of the base table that was read, and the findings."""
    first = open_newest(task.location)

    def look(newest: NewestBase, regions: Sequence[UUID]) -> list[Finding]:
        if task.regions:
            return list(look_at_regions(task, newest, regions))
        return [*newest.findings, *look_at_table(task, newest.base)]

    found = look(first, task.regions)
    for _ in range(_LOOKS - 1):
        if not found:
            break
        time.sleep(_PAUSE_SECONDS)
        suspect = {finding.region for finding in found}
        regions = [region_id for region_id in task.regions if region_id in suspect]
        again = look(open_newest(task.location), regions or task.regions)
        known = {finding.identity for finding in again}
        found = [finding for finding in found if finding.identity in known]
    return first.base.version if first.base is not None else 0, tuple(found)
