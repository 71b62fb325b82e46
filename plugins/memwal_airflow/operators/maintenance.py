"""Operators of the maintenance jobs; each runs one Spark application when its job is due."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import UUID

from airflow.sdk import Context

import memwal.catalog
from memwal.errors import InvalidInputError, MemWalError
from memwal.fleet import open_managed
from memwal.jobs.arguments import to_arguments
from memwal.jobs.due import NOT_DUE, Due
from memwal.jobs.job import Guard, JobResult
from memwal.util.records import JsonMapping, JsonObject
from memwal_airflow.hooks.storage_options import read_options
from memwal_airflow.operators.base import (
    MemWalOperator,
    Target,
    describe_assets,
    external_id,
    merge_extra,
    region_ids,
)
from memwal_airflow.provider.settings import LOCAL_BELOW_BYTES
from memwal_airflow.run_params import includes
from memwal_airflow.skips import RegionsSkipped, TaskSkipped, TaskSkipReason
from memwal_airflow.spark.connected import connect_server, run_connected
from memwal_airflow.spark.reattach import EarlierTry
from memwal_airflow.version_compat import (
    XCOM_SKIPMIXIN_FOLLOWED,
    XCOM_SKIPMIXIN_KEY,
    AirflowException,
    AirflowFailException,
)

if TYPE_CHECKING:
    from memwal.fleet import JobSpec, Skipped


class TableCheckpointOperator(MemWalOperator):
    """Merges and indexes every generation that is flushed when it starts, due or not.

    After it, a reader of the base table alone sees all of them; rows that writers have not flushed
    are not part of it. Fails if that takes longer than the deadline; generations that were merged
    by then stay merged, and the retry continues from there. Other merges and index builds of the
    table wait until it ends. A region that the quality gate of the policy holds is a failure. Asset
    events carry ``version``, ``rows`` and ``generations``.

    Parameters
    ----------
    deadline : timedelta, default 1 h
        How long one try may take, its wait for other jobs included.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`, where ``wait`` and ``force``
        have no effect.
    """

    job = "checkpoint"
    instead_of: ClassVar[tuple[str, ...]] = ("merge", "index")

    def __init__(self, *, deadline: timedelta = timedelta(hours=1), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deadline = deadline

    def leased_resources(self, target: Target) -> tuple[str, ...]:
        """Return its own resource, and those of the jobs whose work it does."""
        from memwal.catalog.leases import job_resource

        others = (job_resource(target.name, job) for job in self.instead_of)
        return (*super().leased_resources(target), *others) if self.table is not None else ()

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Run it under the leases of the jobs whose work it does."""
        from memwal.fleet import Runtime, Skipped, run_recorded

        if self.is_dry_run(context):
            raise TaskSkipped(
                "Dry run: it would merge and index what is flushed.", reason=TaskSkipReason.DRY_RUN
            )
        ends_at = time.monotonic() + self.deadline.total_seconds()

        def execute(guard: Guard) -> JobResult:
            options = replace(
                target.managed.policy.checkpoint_options(),
                timeout_seconds=round(max(ends_at - time.monotonic(), 0.0), 1),
            )
            arguments = to_arguments(options)
            return JobResult.from_dict(
                self.submit(target, arguments, context=context, check_lease=guard, earlier=earlier)
            )

        outcome = run_recorded(
            target.catalog,
            target.name,
            self.job,
            execute,
            instead_of=self.instead_of,
            wait=self.deadline,
            runtime=Runtime(external_id=external_id(context), guard=self.raise_if_killed),
        )
        if isinstance(outcome, Skipped):
            raise AirflowException(f"The checkpoint did not begin in time: {outcome.reason}")
        return outcome

    def handle_result(self, result: JsonObject, context: Context) -> JsonObject:
        """Describe the checkpoint on its assets."""
        describe_assets(self, context, merge_extra(result))
        return result


QualityFailOn = Literal["critical", "warning", "never"]
_QUALITY_FAILS_ON: dict[QualityFailOn, tuple[str, ...]] = {
    "critical": ("critical",),
    "warning": ("critical", "warning"),
    "never": (),
}


class MemWalJobOperator(MemWalOperator):
    """Runs one job of a table's policy when a limit of the policy is reached.

    Skipped, with the reason, when not due, in quiet hours, while another process runs the job, and
    when all that is due is skipped. The job of a table that stores less than ``[memwal]
    local_below_bytes`` of ``airflow.cfg`` (default: 256 MiB) runs in the task's own process,
    without Spark. With a Spark Connect server, the job runs there as well, and its tasks on the
    server. Arguments are those of :class:`~memwal_airflow.operators.base.MemWalOperator`.
    """

    index: str | None = None
    """Index of the job; None for all."""

    def regions_for(self, context: Context) -> tuple[UUID, ...] | None:
        """Return the regions of the job; None for all."""
        return None

    def leased_resources(self, target: Target) -> tuple[str, ...]:
        """Return the job's resource, and that of a checkpoint if it does the same work."""
        from memwal.catalog.leases import job_resource

        if self.table is None:
            return ()
        part = self.index
        own = job_resource(target.name, self.job, part=part)
        if part is None and self.job in TableCheckpointOperator.instead_of:
            return own, job_resource(target.name, TableCheckpointOperator.job)
        return (own,)

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Run the job under its lease, as :func:`memwal.fleet.run_job` does."""
        from memwal.fleet import JobRequest, Runtime, run_job

        request = JobRequest(
            target.name,
            self.job,
            force=bool(self.force or context["params"].get("force")),
            dry_run=self.is_dry_run(context),
            regions=None if earlier is not None else self.regions_for(context),
            index=self.index,
            wait=self.wait,
        )
        if earlier is not None:
            # Its work was chosen when it was started; by now it may not be due any more.
            regions = tuple(map(str, earlier.regions or ()))
            request = replace(
                request,
                force=self.job == "merge" and earlier.regions is None,
                due=Due(reason="an earlier try began it", regions=regions),
            )

        def execute(spec: JobSpec, guard: Guard) -> JobResult | None:
            if earlier is None:
                if is_small(spec, target.storage_options):
                    return None
                options = self.spark_options or {}
                server = connect_server(master=options.get("master"), conn_id=self.spark_conn_id)
                if server is not None:
                    return run_connected(
                        server,
                        spec,
                        storage_options=target.storage_options,
                        py_files=options.get("py_files"),
                        guard=guard,
                        raise_if_killed=self.raise_if_killed,
                    )
            result = self.submit(
                target,
                spec.arguments(),
                context=context,
                check_lease=guard,
                earlier=earlier,
                regions=spec.regions,
            )
            return JobResult.from_dict(result)

        runtime = Runtime(
            execute=execute,
            guard=self.raise_if_killed,
            storage_options=target.storage_options,
            external_id=external_id(context),
        )
        return run_job(target.catalog, request, runtime=runtime)


class MemWalMergeOperator(MemWalJobOperator):
    """Merges the backlog of regions that are due into the base table.

    Asset events carry ``version``, ``rows`` and ``generations``. Skipped, without an event, when
    nothing was merged.

    Parameters
    ----------
    regions : list of str, optional
        UUIDs of the regions of which the due ones are merged; default: all. The parameter
        ``regions`` of a DAG run narrows it further.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`.
    """

    job = "merge"
    template_fields = (*MemWalOperator.template_fields, "regions")

    def __init__(self, *, regions: Iterable[str] | Any | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.regions = regions

    def regions_for(self, context: Context) -> tuple[UUID, ...] | None:
        """Return the regions of the operator, of the run, or those of both."""
        own = None if self.regions is None else region_ids(self.regions)
        requested = region_ids(context["params"].get("regions") or ())
        if own is None:
            return tuple(sorted(requested)) or None
        selected = own & requested if requested else own
        if not selected:
            raise TaskSkipped(
                "The run requests none of this task's regions.", reason=TaskSkipReason.NOT_REQUESTED
            )
        return tuple(sorted(selected))

    def handle_result(self, result: JsonObject, context: Context) -> JsonObject:
        """Describe the merge on its asset; fail if nothing at all could be merged."""
        if result["metrics"]["generations"]:
            describe_assets(self, context, merge_extra(result))
            return result
        if result["skipped_regions"] or result["warnings"]:
            kind = RegionsSkipped if result["skipped_regions"] else AirflowException
            raise kind(f"Nothing could be merged: {result['warnings'][0]}")
        raise TaskSkipped(
            "Nothing was merged: the backlog is gone by now.", reason=TaskSkipReason.NOTHING_TO_DO
        )


class MemWalIndexOperator(MemWalJobOperator):
    """Builds maintained indexes up to the merged generations.

    Asset events carry ``version``. Skipped, without an event, when nothing was built.

    Parameters
    ----------
    index : str, optional
        Name of the only index to build. Tasks of several indexes run concurrently, each under a
        lease of its own: map over ``index``, or leave it out to build all in one task.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`.
    """

    job = "index"
    template_fields = (*MemWalOperator.template_fields, "index")

    def __init__(self, *, index: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.index = index

    def handle_result(self, result: JsonObject, context: Context) -> JsonObject:
        """Describe the build on its asset."""
        if not result["commits"]:
            raise TaskSkipped(
                "No index was changed: they have caught up by now.",
                reason=TaskSkipReason.NOTHING_TO_DO,
            )
        describe_assets(self, context, {"version": result["version"]})
        return result


class MemWalRecoverOperator(MemWalJobOperator):
    """Flushes the rows that closed or dead writers left in the log, so that readers see them."""

    job = "recover"


class MemWalCompactOperator(MemWalJobOperator):
    """Rewrites small fragments of the base table, and those with many deleted rows."""

    job = "compact"


class MemWalSnapshotOperator(MemWalJobOperator):
    """Publishes the region snapshot that readers plan by."""

    job = "snapshot"


class MemWalCollectOperator(MemWalJobOperator):
    """Deletes objects that no reader needs; with ``dry_run`` it counts them, and succeeds."""

    job = "gc"


class MemWalQualityOperator(MemWalJobOperator):
    """Checks the rows of the base table by the suite of the table's policy.

    Skipped when not due, and when the policy has no suite. The report is ``quality`` of the
    result, in the catalog and on the page of the table. Each unmet expectation is logged as a
    warning, also when the task fails.

    Parameters
    ----------
    fail_on : {"critical", "warning", "never"}, default "critical"
        The least severity of an unmet expectation that fails the task, without a retry.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`.

    Raises
    ------
    InvalidInputError
        ``fail_on`` is none of its three values.
    """

    job = "quality"

    def __init__(self, *, fail_on: QualityFailOn = "critical", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if fail_on not in _QUALITY_FAILS_ON:
            raise InvalidInputError(
                f"fail_on is {fail_on!r}; it must be one of {', '.join(_QUALITY_FAILS_ON)}."
            )
        self.fail_on = fail_on

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Run the check, if the policy has a suite."""
        rules = target.managed.policy.quality
        if rules is None or not rules.suite:
            raise TaskSkipped(
                f"The policy of {target.name} has no suite.", reason=TaskSkipReason.NO_SUITE
            )
        return super().run_on(target, context, earlier)

    def handle_result(self, result: JsonObject, context: Context) -> JsonObject:
        """Fail if an expectation of a severity of ``fail_on`` is not met."""
        if has_unmet(result, self.fail_on):
            raise AirflowFailException(f"{result['table']}: {result['warnings'][0]}")
        return result


def has_unmet(result: JsonMapping, fail_on: QualityFailOn = "critical") -> bool:
    """Return whether a check found an expectation unmet of the severity ``fail_on``, or a worse."""
    severities = _QUALITY_FAILS_ON[fail_on]
    return any(
        not expectation["success"] and expectation["severity"] in severities
        for expectation in result["quality"]["expectations"]
    )


def is_small(spec: JobSpec, storage_options: Mapping[str, str] | None) -> bool:
    """Return whether a table stores little enough for its jobs to run in the task's own process.

    The base table counts as well: a merge of few rows searches all of it for their keys. The
    status is that by which the job is due; only a forced job has none, and it is read then.
    """
    limit = LOCAL_BELOW_BYTES.read()
    if limit <= 0:
        return False
    status = spec.status
    if status is None:
        status = open_managed(spec.table, storage_options=storage_options).status()
    if status.base_bytes is None:
        return False
    return status.base_bytes + status.backlog_bytes + status.reclaimable_bytes < limit


class MergeAndPlanOperator(MemWalMergeOperator):
    """Merges due regions, and skips the jobs that are not due after it.

    Jobs that are not due after the merge start no process. When nothing is merged, the task is
    skipped, and has still decided about the others.

    Parameters
    ----------
    table : str
        Name of the managed table.
    later : mapping of str to str
        The ids of the tasks that are directly behind this one, by their jobs.
    **kwargs
        As of :class:`~memwal_airflow.operators.maintenance.MemWalMergeOperator`.
    """

    # Lets Airflow ask which of the tasks behind it such a task has chosen, as for a branch.
    inherits_from_skipmixin = True

    def __init__(self, *, table: str, later: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        self.later = dict(later)

    def execute(self, context: Context) -> JsonObject:
        """Merge, and decide about the later jobs, also if nothing was merged."""
        try:
            result = super().execute(context)
        except TaskSkipped:
            self._plan_if_possible(context)
            raise
        self._plan_if_possible(context)
        return result

    def _plan_if_possible(self, context: Context) -> None:
        """Decide about the later jobs, without failing a merge that is done.

        Its next try would merge nothing, so that no task would learn of the merged rows. Undecided
        tasks all run, and check themselves whether they are due.
        """
        try:
            self._plan(context)
        except MemWalError as error:
            self.log.warning("Each later task decides for itself whether it is due: %s", error)

    def _record_backlog(self, target: Target) -> None:
        """Leave it to the plan, which reads the status after the merge in any case."""

    def _plan(self, context: Context) -> None:
        """Store the status of the table, and choose the tasks of the jobs that are due."""
        from memwal.fleet.tables import survey

        with closing(memwal.catalog.Catalog()) as catalog:
            managed = catalog.get(str(self.table))
            options = read_options(managed.storage_options_ref)
            result = survey(catalog, managed, storage_options=options)
            catalog.record_backlog(managed.name, result.status)
        params = context["params"]
        # The task that is behind all jobs is in none of them.
        followed = sorted(self.downstream_task_ids - {*self.later.values()})
        for job, task_id in self.later.items():
            due = result.due.get(job, NOT_DUE)
            self.log.info("%s: %s.", job, due.reason or due.postponed or "not due")
            # A dry run tells the plan of each job.
            wanted = due.reason is not None or params.get("force") or params.get("dry_run")
            if wanted and includes(params, job):
                followed.append(task_id)
        # Airflow skips the tasks behind this one that are not in the list, independent of its own
        # state.
        context["ti"].xcom_push(key=XCOM_SKIPMIXIN_KEY, value={XCOM_SKIPMIXIN_FOLLOWED: followed})
