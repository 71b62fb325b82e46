"""Run one job of a managed table: due, leased, recorded, and within its policy's limits.

Also runs operations that are no job of a policy: leased and recorded like those.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.errors import ConflictError, InvalidInputError, MemWalError
from memwal.fleet.execute import Perform, perform_here
from memwal.fleet.job_spec import Order, Skipped, Why
from memwal.fleet.tables import Survey, check_regions, open_managed, survey
from memwal.jobs.due import JOBS, Due
from memwal.jobs.job import Guard, JobResult, TaskRunner, run_in_process
from memwal.telemetry.spans import JOB, TABLE, span

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.catalog.backoff import SkippedRegionRecord
    from memwal.catalog.runs import ActiveRun
    from memwal.table import Table


def run_recorded(
    catalog: Catalog,
    table_name: str,
    name: str,
    perform: Callable[[Guard], JobResult],
    *,
    instead_of: Sequence[str] = (),
    wait: timedelta | None = None,
    ttl: timedelta | None = None,
    external_id: str | None = None,
    guard: Guard | None = None,
) -> JobResult | Skipped:
    """Do something to a managed table under leases, and record it.

    Parameters
    ----------
    catalog : Catalog
    table_name : str
        Name of the managed table.
    name : str
        What it is called in the record, and what is leased, such as ``checkpoint``.
    perform : callable
        Does it, calling the guard it is given before each commit, or while it waits.
    instead_of : sequence of str
        Jobs that are not to run meanwhile, since this does their work: their leases are taken
        too, in this order.
    wait : timedelta, optional
        How long to wait for all of the leases. None does not wait.
    ttl : timedelta, optional
        Time to live of the leases, 60 s by default.
    external_id : str, optional
        Id of the run where it was started.
    guard : callable, optional
        A further look, for a caller that may want it to stop.

    Returns
    -------
    JobResult or Skipped
        What it did, or that somebody else is at work.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    ConflictError
        A lease was lost.
    """
    from memwal.catalog.leases import DEFAULT_TTL, job_resource

    catalog.get(table_name)
    ends_at = None if wait is None else time.monotonic() + wait.total_seconds()
    with ExitStack() as stack:
        leases = []
        for job in (name, *instead_of):
            left = None if ends_at is None else max(ends_at - time.monotonic(), 0.0)
            try:
                lease = catalog.leases.acquire(
                    job_resource(table_name, job),
                    ttl=ttl or DEFAULT_TTL,
                    wait=None if left is None else timedelta(seconds=left),
                )
            except ConflictError as error:
                return Skipped(job=name, table=table_name, why=Why.AT_WORK, reason=str(error))
            leases.append(stack.enter_context(lease))

        def look() -> None:
            for lease in leases:
                lease.check()
            if guard is not None:
                guard()

        run = stack.enter_context(
            catalog.record_run(table_name, name, external_id=external_id, lease=leases[0])
        )
        look()
        result = perform(look)
        run.finish(result)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the caller of :func:`memwal.fleet.run_job.run_job` asked for."""

    catalog: Catalog
    managed: ManagedTable
    job: str
    force: bool
    dry_run: bool
    regions: tuple[UUID, ...] | None
    index: str | None
    max_tasks: int
    run_bytes: int | None
    decided: Due | None
    storage_options: Mapping[str, str] | None
    external_id: str | None

    def prepare(self) -> tuple[Table, Order | Skipped]:
        """Open the table and decide what is to be done."""
        table = open_managed(self.managed, storage_options=self.storage_options)
        if self.regions is not None:
            check_regions(table, self.regions)
        return table, self._decide(table)

    def rehearse(self, run: TaskRunner, perform: Perform | None) -> JobResult | Skipped:
        """Tell what would be done; a collection can do so itself."""
        table, order = self.prepare()
        if isinstance(order, Skipped):
            return order
        if self.job == "gc":
            if perform is not None:
                return perform(order, lambda: None)
            return perform_here(table, order, run=run)
        what = "it was asked for" if self.decided is None else self.decided.reason
        if self.decided is None and not self.force:
            what = self._surveyed(table).due[self.job].reason
        return self.skipped(Why.DRY_RUN, f"it would run: {what}")

    def skipped(self, why: Why, reason: str) -> Skipped:
        """Nothing is done."""
        return Skipped(job=self.job, table=self.managed.name, why=why, reason=reason)

    def record_failure(self, error: MemWalError) -> None:
        """Record a run that did not get as far as to begin."""
        run_id = self.catalog.start_run(self.managed.name, self.job, external_id=self.external_id)
        self.catalog.finish_run(run_id, error=f"{type(error).__name__}: {error}")

    def _decide(self, table: Table) -> Order | Skipped:
        if self.force:
            return self._order(self.regions, ())
        if self.decided is not None:
            waiting = _waiting(self.catalog.backoffs.skipped_regions(self.managed.name))
            return self._ordered(self.decided, waiting)
        found = self._surveyed(table)
        return self._ordered(found.due[self.job], _waiting(found.held))

    def _surveyed(self, table: Table) -> Survey:
        return survey(
            self.catalog, self.managed, table=table, regions=self.regions, index=self.index
        )

    def _ordered(self, one: Due, waiting: Sequence[UUID]) -> Order | Skipped:
        if one.held_back is not None and one.reason is None:
            return self.skipped(Why.QUIET, one.held_back)
        if one.reason is None:
            if self.job == "merge" and waiting:
                return self.skipped(
                    Why.HELD,
                    f"{len(waiting)} regions are held and wait for their next try, and no other is "
                    "due",
                )
            return self.skipped(Why.NOT_DUE, "no limit of its policy is reached")
        if self.job != "merge":
            return self._order(None, ())
        asked = None if self.regions is None else set(self.regions)
        regions = [UUID(region) for region in one.regions]
        return self._order([r for r in regions if asked is None or r in asked], waiting)

    def _order(self, regions: Collection[UUID] | None, skip: Sequence[UUID]) -> Order:
        return Order(
            job=self.job,
            table=self.managed,
            regions=None if regions is None else tuple(regions),
            skip=tuple(skip),
            index=self.index,
            run_bytes=self.run_bytes if self.job == "merge" else None,
            max_tasks=self.max_tasks,
            dry_run=self.dry_run,
            force=self.force,
        )


def _waiting(held: Collection[SkippedRegionRecord]) -> list[UUID]:
    return [UUID(record.region_id) for record in held if record.waiting]


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
        Name of the managed table; one of :data:`memwal.jobs.due.JOBS`.
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
    from memwal.fleet.exclusive import BLOCKED_JOBS, lost_all_rewrites, wait_for_exclusive

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
        if job in BLOCKED_JOBS:
            wait = wait_for_exclusive(catalog.leases, table_name, wait=wait)
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
            if lost_all_rewrites(result):
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
    from memwal.fleet.exclusive import combined_result, exclusive_lease

    indexes = table.base().details.maintained_indexes
    with ExitStack() as stack:
        try:
            theirs = stack.enter_context(
                exclusive_lease(catalog.leases, order.table.name, indexes=indexes, ttl=ttl)
            )
        except ConflictError as error:
            return replace(first, problems=(*first.problems, f"it got no turn: {error}"))

        def look() -> None:
            guard()
            theirs()

        return combined_result(first, do(replace(order, alone=True), look))


def _settle(catalog: Catalog, table: Table, order: Order, result: JobResult) -> None:
    """Keep which regions are held, and forget those that no longer are."""
    name = order.table.name
    if result.held:
        catalog.backoffs.skip_regions(name, result.held)
    known = catalog.backoffs.skipped_regions(name)
    if not known:
        return
    merged = table.base().details.merged
    stuck = {held.region_id for held in result.held}
    skipped = set(order.skip)

    def is_over(record: SkippedRegionRecord) -> bool:
        region = UUID(record.region_id)
        if record.region_id in stuck or region in skipped:
            return merged.get(region, 0) >= record.generation
        tried = order.run_bytes is None and (order.regions is None or region in order.regions)
        return tried or merged.get(region, 0) >= record.generation

    over = [record.region_id for record in known if is_over(record)]
    if over:
        catalog.backoffs.clear_regions(name, over)


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
