"""Run one job of a managed table: due, leased, recorded, and within its policy's limits.

Also runs operations that are no job of a policy: leased and recorded like those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from memwal.boundary.public import public
from memwal.catalog.records import ManagedTable
from memwal.errors import ConflictError, InvalidInputError, MemWalError
from memwal.fleet.job_spec import JobExecutor, JobRequest, JobSpec, Skipped, SkipReason, run_locally
from memwal.fleet.tables import Survey, check_regions, open_managed, survey
from memwal.jobs.due import JOBS, Due, jobs_of
from memwal.jobs.job import Guard, JobResult, Result, Task, TaskRunner, run_in_process, wrap_runner
from memwal.jobs.options import (
    CompactOptions,
    IndexOptions,
    JobOptions,
    MergeOptions,
    SnapshotOptions,
)
from memwal.jobs.progress import ProgressOption
from memwal.telemetry.spans import JOB, TABLE, span
from memwal.util.clock import Duration, duration

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.backoff import SkippedRegionRecord
    from memwal.catalog.leases import Lease
    from memwal.catalog.runs import ActiveRun
    from memwal.table import Table


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Surroundings of a job: its task runner, leases and credentials."""

    run: TaskRunner = run_in_process
    """Runs the tasks, here or elsewhere. Tasks that run elsewhere do not see the lease; their
    commits are fenced by compare-and-swap alone.
    """
    execute: JobExecutor | None = None
    """Does the whole job instead of this process: gets the :class:`JobSpec` (whose ``arguments()``
    are those of the Spark application) and a guard that raises ``ConflictError`` when the lease is
    lost, to be called while it waits. It returns None to leave the job to this process after
    all."""
    guard: Guard | None = None
    """Called before each commit, beside the check of the lease: for a caller that may want the job
    to stop."""
    storage_options: Mapping[str, str] | None = None
    """By default the options that the catalog refers to. A reference to an Airflow connection can
    only be resolved by Airflow, which gives the options here.
    """
    external_id: str | None = None
    """Id of the run where it was started."""
    ttl: Duration | None = None
    """Time to live of the leases, 60 s by default."""
    progress: ProgressOption = None
    """As for :class:`memwal.jobs.options.MergeOptions`."""


# Runtime of a job whose tasks run one after another in this process.
IN_PROCESS: Final = Runtime()


def _acquire(catalog: Catalog, resource: str, wait: Duration | None, runtime: Runtime) -> Lease:
    from memwal.catalog.leases import DEFAULT_TTL

    return catalog.leases.acquire(resource, ttl=runtime.ttl or DEFAULT_TTL, wait=wait)


def _guard(leases: Sequence[Lease], runtime: Runtime) -> Guard:
    """Return a guard that checks the leases, and then calls the guard of the runtime."""

    def check() -> None:
        for lease in leases:
            lease.check()
        if runtime.guard is not None:
            runtime.guard()

    return check


@public
def run_recorded(
    catalog: Catalog,
    table_name: str,
    name: str,
    execute: Callable[[Guard], JobResult],
    *,
    instead_of: Sequence[str] = (),
    wait: Duration | None = None,
    runtime: Runtime = IN_PROCESS,
) -> JobResult | Skipped:
    """Run an operation on the table ``table_name`` of a ``catalog`` under leases, and record it.

    Returns the result of ``execute``, or ``Skipped`` if another process holds one of the leases.

    Parameters
    ----------
    name : str
        Name of the operation in the record and in its lease, such as ``checkpoint``.
    execute : callable
        Runs the operation; gets a guard to call before each commit, or while it waits.
    instead_of : sequence of str
        Jobs that must not run during the operation, since it does their work: their leases are
        acquired too, in this order.
    wait : float or timedelta, optional
        How long to wait for all of the leases. None does not wait.
    runtime : Runtime, optional
        Its guard, external id and time to live of the leases.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    ConflictError
        A lease was lost.
    """
    from memwal.catalog.leases import job_resource

    catalog.get(table_name)
    deadline = None
    if wait is not None:
        deadline = time.monotonic() + duration(wait, "wait").total_seconds()
    with ExitStack() as stack:
        leases = []
        for job in (name, *instead_of):
            if deadline is not None:
                wait = timedelta(seconds=max(deadline - time.monotonic(), 0.0))
            try:
                lease = _acquire(catalog, job_resource(table_name, job), wait, runtime)
            except ConflictError as error:
                return Skipped(
                    job=name, table=table_name, reason_code=SkipReason.RUNNING, reason=str(error)
                )
            leases.append(stack.enter_context(lease))
        guard = _guard(leases, runtime)
        run = stack.enter_context(
            catalog.record_run(table_name, name, external_id=runtime.external_id, lease=leases[0])
        )
        guard()
        result = execute(guard)
        run.finish(result)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolver:
    """Resolves a request into a :class:`JobSpec`, or into the reason why the job is skipped."""

    catalog: Catalog
    managed: ManagedTable
    request: JobRequest
    runtime: Runtime

    def resolve(self) -> tuple[Table, JobSpec | Skipped | None]:
        """Open the table and decide about the job; None if the table does not have such a job."""
        table = open_managed(self.managed, storage_options=self.runtime.storage_options)
        if self.request.job not in jobs_of(mem_wal=table.base().index is not None):
            return table, None
        if self.request.regions is not None:
            check_regions(table, self.request.regions)
        return table, self._decide(table)

    def dry_run(self) -> JobResult | Skipped:
        """Return the planned work; a collection can count it itself."""
        table, spec = self.resolve()
        if spec is None:
            return self.without_log(table)
        if isinstance(spec, Skipped):
            return spec
        request = self.request
        if request.job == "gc":
            done = None
            if self.runtime.execute is not None:
                done = self.runtime.execute(spec, lambda: None)
            return done or run_locally(table, spec, run=self.runtime.run)
        reason = "it was asked for" if request.due is None else request.due.reason
        if request.due is None and not request.force:
            reason = self._survey(table).due[request.job].reason
        return self.skipped(SkipReason.DRY_RUN, f"it would run: {reason}")

    def without_log(self, table: Table) -> Skipped:
        """Raise TableSetupError, for a job that needs a log, unless there is one by now."""
        table.base().require_mem_wal()
        return self.skipped(SkipReason.NOT_DUE, "MemWAL was enabled a moment ago")

    def skipped(self, reason_code: SkipReason, reason: str) -> Skipped:
        """Return the outcome of a skipped job."""
        return Skipped(
            job=self.request.job, table=self.managed.name, reason_code=reason_code, reason=reason
        )

    def _decide(self, table: Table) -> JobSpec | Skipped:
        request = self.request
        if request.force:
            return self._spec(request.regions, ())
        if request.due is not None:
            waiting = _waiting(table, self.catalog.backoffs.skipped_regions(self.managed.name))
            return self._spec_if_due(request.due, waiting)
        state = self._given_survey() or self._survey(table)
        waiting = _waiting(table, state.skipped_regions)
        spec = self._spec_if_due(state.due[request.job], waiting)
        return spec if isinstance(spec, Skipped) else replace(spec, status=state.status)

    def _given_survey(self) -> Survey | None:
        """Return the survey of the request, with the present skipped regions; None if it is old.

        Called under the lease of the job: no other process does it between this and the job.
        """
        given, name, job = self.request.survey, self.managed.name, self.request.job
        if given is None or self.catalog.last_runs(name).get(job) != given.last_runs.get(job):
            return None
        return replace(given, skipped_regions=tuple(self.catalog.backoffs.skipped_regions(name)))

    def _survey(self, table: Table) -> Survey:
        regions, index = self.request.regions, self.request.index
        return survey(self.catalog, self.managed, table=table, regions=regions, index=index)

    def _spec_if_due(self, due: Due, waiting: Sequence[UUID]) -> JobSpec | Skipped:
        job = self.request.job
        if due.postponed is not None and due.reason is None:
            return self.skipped(SkipReason.QUIET, due.postponed)
        if due.reason is None:
            if job == "merge" and waiting:
                reason = "regions are skipped and wait for their next try, and no other is due"
                return self.skipped(SkipReason.BACKOFF, f"{len(waiting)} {reason}")
            return self.skipped(SkipReason.NOT_DUE, "no limit of its policy is reached")
        if job != "merge":
            return self._spec(None, ())
        requested = None if self.request.regions is None else set(self.request.regions)
        regions = [UUID(region) for region in due.regions]
        return self._spec([r for r in regions if requested is None or r in requested], waiting)

    def _spec(self, regions: Collection[UUID] | None, skip_regions: Sequence[UUID]) -> JobSpec:
        options = self._options(None if regions is None else tuple(regions), tuple(skip_regions))
        return JobSpec(job=self.request.job, table=self.managed, options=options)

    def _options(
        self, regions: tuple[UUID, ...] | None, skip_regions: tuple[UUID, ...]
    ) -> JobOptions:
        request, policy = self.request, self.managed.policy
        match request.job:
            case "merge":
                options = policy.merge_options()
                limits = [n for n in (request.run_bytes, options.run_bytes) if n is not None]
                return replace(
                    options,
                    regions=regions,
                    skip_regions=skip_regions,
                    run_bytes=min(limits) if limits else None,
                    max_tasks=request.max_tasks,
                )
            case "recover":
                return replace(policy.recover_options(), max_tasks=request.max_tasks)
            case "index":
                indexes = None if request.index is None else (request.index,)
                return IndexOptions(indexes=indexes, max_tasks=request.max_tasks)
            case "compact":
                # Few rewrites may be lost: the compaction gets exclusive access then.
                compaction = replace(policy.compact_options(), attempts=2)
                # A forced compaction runs however few fragments there are.
                return replace(compaction, min_fragments=2) if request.force else compaction
            case "snapshot":
                return SnapshotOptions(max_tasks=request.max_tasks)
            case "gc":
                return replace(
                    policy.gc_options(), dry_run=request.dry_run, max_tasks=request.max_tasks
                )
            case "quality" if (quality := policy.quality_options()) is not None:
                return replace(quality, max_tasks=request.max_tasks)
        raise InvalidInputError(
            f"the policy of {self.managed.name} has no suite; give it one with memwal quality set"
        )


def _waiting(table: Table, records: Collection[SkippedRegionRecord]) -> list[UUID]:
    waiting = {UUID(record.region_id) for record in records if record.waiting}
    # A table that was created again may have other regions.
    return sorted(waiting.intersection(table.region_ids())) if waiting else []


@public
def run_job(
    catalog: Catalog, request: JobRequest, *, runtime: Runtime = IN_PROCESS
) -> JobResult | Skipped:
    """Run one job of a managed table of a ``catalog`` under its lease, and record it.

    Parameters
    ----------
    request : JobRequest
        The table, the job, and how the caller narrows or forces it.
    runtime : Runtime, optional
        Task runner, storage options, callbacks and lease time of the job; by default its tasks run
        in this process.

    Returns
    -------
    JobResult or Skipped
        The result of the job, or the reason why it was skipped.

    Raises
    ------
    ObjectNotFoundError
        No table has this name.
    InvalidInputError
        There is no such job, a region or an index does not exist, or the index is one of another
        job.
    ConflictError
        The lease was lost, or other commits kept getting in between. Earlier commits of the job
        stay.
    MemWalError
        The job failed. It is recorded.
    """
    from memwal.catalog.leases import job_resource
    from memwal.fleet.exclusive import BLOCKED_JOBS, wait_for_exclusive

    table_name, job, wait = request.table, request.job, request.wait
    if job not in JOBS:
        raise InvalidInputError(f"there is no job {job!r}; the jobs are {', '.join(JOBS)}")
    if request.index is not None and job != "index":
        raise InvalidInputError(f"a {job} is not done to one index; leave the index out")
    resolver = _Resolver(
        catalog=catalog, managed=catalog.get(table_name), request=request, runtime=runtime
    )
    if request.dry_run:
        return resolver.dry_run()
    try:
        if job in BLOCKED_JOBS:
            wait = wait_for_exclusive(catalog.leases, table_name, wait=wait)
        resource = job_resource(table_name, job, part=request.index)
        lease = _acquire(catalog, resource, wait, runtime)
    except ConflictError as error:
        return resolver.skipped(SkipReason.RUNNING, str(error))
    with lease:
        try:
            table, spec = resolver.resolve()
        except MemWalError:
            # Ends as abandoned if this process dies before the failure is written.
            with catalog.record_run(table_name, job, external_id=runtime.external_id):
                raise
        if spec is None:
            # Not recorded: the table did not fail, and no later run could end such a failure.
            return resolver.without_log(table)
        if isinstance(spec, Skipped):
            return spec
        return _run_spec(catalog, table, spec, lease, runtime)


def _run_spec(
    catalog: Catalog, table: Table, spec: JobSpec, lease: Lease, runtime: Runtime
) -> JobResult:
    from memwal.fleet.exclusive import lost_all_rewrites

    name, job, guard = spec.table.name, spec.job, _guard([lease], runtime)
    with (
        span("memwal.job", table.location, attributes={TABLE: name, JOB: job}),
        catalog.record_run(
            name,
            job,
            external_id=runtime.external_id,
            version_before=table.base().version,
            lease=lease,
        ) as active,
    ):
        guard()

        def execute(spec: JobSpec, guard: Guard) -> JobResult:
            done = None if runtime.execute is None else runtime.execute(spec, guard)
            if done is not None:
                return done
            run = _guarded_runner(active, runtime.run, guard)
            return run_locally(table, spec, run=run, guard=guard, progress=runtime.progress)

        result = execute(spec, guard)
        if lost_all_rewrites(result):
            result = _run_exclusively(
                catalog, table, spec, result, execute=execute, guard=guard, ttl=runtime.ttl
            )
        if job == "merge":
            _record_skipped_regions(catalog, table, spec, result)
        active.finish(result)
    return result


def _run_exclusively(
    catalog: Catalog,
    table: Table,
    spec: JobSpec,
    first: JobResult,
    *,
    execute: Callable[[JobSpec, Guard], JobResult],
    guard: Guard,
    ttl: Duration | None,
) -> JobResult:
    """Compact again under the exclusive lease, which keeps out the commits that won before."""
    from memwal.fleet.exclusive import combined_result, exclusive_lease

    if isinstance(spec.options, CompactOptions):
        # The blocked jobs wait for one commit only.
        spec = replace(spec, options=replace(spec.options, max_commits=1))
    indexes = table.base().details.maintained_indexes
    with ExitStack() as stack:
        try:
            check_exclusive = stack.enter_context(
                exclusive_lease(catalog.leases, spec.table.name, indexes=indexes, ttl=ttl)
            )
        except ConflictError as error:
            return replace(
                first, warnings=(*first.warnings, f"could not get exclusive access: {error}")
            )

        def check() -> None:
            guard()
            check_exclusive()

        return combined_result(first, execute(spec, check))


def _record_skipped_regions(
    catalog: Catalog, table: Table, spec: JobSpec, result: JobResult
) -> None:
    """Record the regions that the merge could not read; forget those that are merged or gone."""
    name, options = spec.table.name, spec.options
    if not isinstance(options, MergeOptions):
        return
    if result.skipped_regions:
        catalog.backoffs.skip_regions(name, result.skipped_regions)
    records = catalog.backoffs.skipped_regions(name)
    if not records:
        return
    merged = table.base().details.merged
    stuck = {region.region_id for region in result.skipped_regions}
    skipped = set(options.skip_regions)
    present = set(table.region_ids())

    def is_over(record: SkippedRegionRecord) -> bool:
        region = UUID(record.region_id)
        if region not in present:
            return True
        if record.region_id in stuck or region in skipped:
            return merged.get(region, 0) >= record.generation
        tried = options.run_bytes is None and (options.regions is None or region in options.regions)
        return tried or merged.get(region, 0) >= record.generation

    over = [record.region_id for record in records if is_over(record)]
    if over:
        catalog.backoffs.clear_regions(name, over)


def _guarded_runner(active: ActiveRun, run: TaskRunner, guard: Guard) -> TaskRunner:
    """Return a runner that calls the guard before each local task, and records the progress."""

    def here(tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        def step(task: Task) -> Result:
            guard()
            return function(task)

        return active.run_tasks(tasks, step)

    def elsewhere(tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        guard()
        active.progress(done=0, total=len(tasks))
        results = run(tasks, function)
        active.progress(done=len(tasks), total=len(tasks))
        return results

    return here if run is run_in_process else wrap_runner(run, elsewhere)
