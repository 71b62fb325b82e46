"""One run of one job on a managed table: due, leased, recorded, and within the policy's limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.errors import ConflictError, InvalidInputError, MemWalError
from memwal.fleet.order import Order, Skipped, Why
from memwal.fleet.perform import Perform, perform_here
from memwal.fleet.request import Request
from memwal.maintenance.due import JOBS, Due
from memwal.maintenance.guard import Guard
from memwal.maintenance.results import JobResult, TaskRunner, run_in_process
from memwal.telemetry.attributes import JOB, TABLE
from memwal.telemetry.spans import span

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.active_run import ActiveRun
    from memwal.catalog.setbacks import HeldRecord
    from memwal.table import Table

logger = logging.getLogger(__name__)


def run_job(
    catalog: Catalog,
    table_name: str,
    job: str,
    *,
    run: TaskRunner = run_in_process,
    perform: Perform | None = None,
    force: bool = False,
    dry_run: bool = False,
    regions: Collection[UUID] | None = None,
    index: str | None = None,
    wait: timedelta | None = None,
    max_tasks: int = 1,
    run_bytes: int | None = None,
    decided: Due | None = None,
    storage_options: Mapping[str, str] | None = None,
    external_id: str | None = None,
    ttl: timedelta | None = None,
    guard: Guard | None = None,
) -> JobResult | Skipped:
    """Run one job of a managed table under its lease, and record it.

    Parameters
    ----------
    catalog : Catalog
    table_name, job : str
        Name of the managed table; one of :data:`memwal.maintenance.due.JOBS`.
    run : callable
        Runs the tasks, here or elsewhere. Tasks that run elsewhere do not see the lease; what they
        commit is fenced by compare-and-swap alone.
    perform : callable, optional
        Does the whole job instead of this process: it is given the :class:`Order` (whose
        ``arguments()`` are those of the Spark application) and a guard that raises
        ``ConflictError`` when the lease is lost, to be called while it waits.
    force : bool, default False
        Do it now: due or not, in quiet hours, and also the regions that are held.
    dry_run : bool, default False
        Change nothing: a collection counts, other jobs are skipped with what they would do.
    regions : collection of UUID, optional
        Merge only these, as far as they are due.
    index : str, optional
        Build only this index, under a lease of its own: several can be built at once. It does not
        keep a build of all of them from going on beside it, which costs work and nothing else.
    wait : timedelta, optional
        How long to wait when the job is being run already. None does not wait.
    max_tasks : int, default 1
        Into how many tasks it is divided at most.
    run_bytes : int, optional
        Most bytes that a merge takes in, beside the policy's ``merge_run_bytes``.
    decided : Due, optional
        What the caller found that is due; by default the table's status is held against its policy.
    storage_options : mapping, optional
        By default those that the catalog refers to. A reference to an Airflow connection can only
        be resolved by Airflow, which gives the options here.
    external_id : str, optional
        Id of the run where it was started.
    ttl : timedelta, optional
        Time to live of the lease, 60 s by default.
    guard : callable, optional
        A further look before each commit: for a caller that may want the job to stop.

    Returns
    -------
    JobResult or Skipped
        What it did, or why it did nothing.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    InvalidInputError
        There is no such job, a region or an index does not exist, or the index is one of another
        job.
    ConflictError
        The lease was lost, or other commits kept getting in between. What was committed stays.
    MemWalError
        The job failed. It is recorded.
    """
    from memwal.catalog.leases import DEFAULT_TTL, job_resource
    from memwal.fleet.turns import HELD_BACK, stand_back, was_kept_out

    if job not in JOBS:
        raise InvalidInputError(f"there is no job {job!r}; the jobs are {', '.join(JOBS)}")
    if index is not None and job != "index":
        raise InvalidInputError(f"a {job} is not done to one index; leave the index out")
    managed = catalog.get(table_name)
    request = Request(
        catalog=catalog,
        managed=managed,
        job=job,
        force=force,
        dry_run=dry_run,
        regions=None if regions is None else tuple(regions),
        index=index,
        max_tasks=max_tasks,
        run_bytes=_least(run_bytes, managed.policy.merge_run_bytes),
        decided=decided,
        storage_options=storage_options,
        external_id=external_id,
    )
    if dry_run:
        return request.rehearse(run, perform)
    try:
        if job in HELD_BACK:
            wait = stand_back(catalog.leases, table_name, wait=wait)
        lease = catalog.leases.acquire(
            job_resource(table_name, job, part=index), ttl=ttl or DEFAULT_TTL, wait=wait
        )
    except ConflictError as error:
        return request.skipped(Why.AT_WORK, str(error))

    def look() -> None:
        lease.check()
        if guard is not None:
            guard()

    with lease:
        try:
            table, order = request.prepare()
        except MemWalError as error:
            request.record_failure(error)
            raise
        if isinstance(order, Skipped):
            return order
        with (
            span("memwal.job", table.location, attributes={TABLE: table_name, JOB: job}),
            catalog.record_run(
                table_name,
                job,
                external_id=external_id,
                version_before=table.base().version,
                lease=lease,
            ) as active,
        ):
            look()

            def do(order: Order, guard: Guard) -> JobResult:
                if perform is not None:
                    return perform(order, guard)
                tasks = _watched(active, run, guard)
                return perform_here(table, order, run=tasks, guard=guard)

            result = do(order, look)
            if was_kept_out(result):
                result = _in_its_turn(catalog, table, order, result, do=do, guard=look, ttl=ttl)
            if job == "merge":
                _settle(catalog, table, order, result)
            active.finish(result)
        return result


def _in_its_turn(
    catalog: Catalog,
    table: Table,
    order: Order,
    first: JobResult,
    *,
    do: Perform,
    guard: Guard,
    ttl: timedelta | None,
) -> JobResult:
    """Do an order again while those wait who kept it out before."""
    from memwal.fleet.turns import joined, turn

    indexes = table.base().details.maintained_indexes
    with ExitStack() as stack:
        try:
            theirs = stack.enter_context(
                turn(catalog.leases, order.table.name, indexes=indexes, ttl=ttl)
            )
        except ConflictError as error:
            return replace(first, problems=(*first.problems, f"it got no turn: {error}"))

        def look() -> None:
            guard()
            theirs()

        return joined(first, do(replace(order, alone=True), look))


def _settle(catalog: Catalog, table: Table, order: Order, result: JobResult) -> None:
    """Keep which regions are held, and forget those that no longer are."""
    name = order.table.name
    if result.held:
        catalog.setbacks.hold(name, result.held)
    known = catalog.setbacks.held(name)
    if not known:
        return
    merged = table.base().details.merged
    stuck = {held.region_id for held in result.held}
    skipped = set(order.skip)

    def is_over(record: HeldRecord) -> bool:
        region = UUID(record.region_id)
        if record.region_id in stuck or region in skipped:
            return merged.get(region, 0) >= record.generation
        tried = order.run_bytes is None and (order.regions is None or region in order.regions)
        return tried or merged.get(region, 0) >= record.generation

    over = [record.region_id for record in known if is_over(record)]
    if over:
        catalog.setbacks.release(name, over)


def _watched(active: ActiveRun, run: TaskRunner, guard: Guard) -> TaskRunner:
    """A runner that looks at the guard before each step that this process takes, and counts."""

    def here(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        def step(task: Any) -> Any:
            guard()
            return function(task)

        return active.run_tasks(tasks, step)

    def elsewhere(tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        guard()
        active.progress(done=0, total=len(tasks))
        results = run(tasks, function)
        active.progress(done=len(tasks), total=len(tasks))
        return results

    return here if run is run_in_process else elsewhere


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
