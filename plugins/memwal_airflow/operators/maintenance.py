"""The maintenance jobs as Airflow operators; each runs one Spark application when it is due."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from airflow.sdk import Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import memwal
from memwal.errors import InvalidInputError
from memwal_airflow.operators.base import MemWalOperator, describe, external_id
from memwal_airflow.operators.checkpoint import TableCheckpointOperator
from memwal_airflow.operators.target import Target, region_ids
from memwal_airflow.operators.verify import MemWalVerifyOperator
from memwal_airflow.skips import SkipReason, TaskSkipped
from memwal_airflow.spark.reattach import EarlierTry
from memwal_airflow.spark.settings import SECTION

if TYPE_CHECKING:
    from memwal.fleet import JobSpec, Skipped
    from memwal.jobs.job import Guard, JobResult

__all__ = [
    "MemWalCollectOperator",
    "MemWalCompactOperator",
    "MemWalIndexOperator",
    "MemWalJobOperator",
    "MemWalMergeOperator",
    "MemWalOperator",
    "MemWalQualityOperator",
    "MemWalSnapshotOperator",
    "MemWalVerifyOperator",
    "TableCheckpointOperator",
]

QualityFailOn = Literal["critical", "warning", "never"]
_QUALITY_FAILS_ON: dict[QualityFailOn, tuple[str, ...]] = {
    "critical": ("critical",),
    "warning": ("critical", "warning"),
    "never": (),
}


class MemWalJobOperator(MemWalOperator):
    """Does one job of a table's policy, when a limit of the policy is reached.

    It is skipped with the reason when it is not due, in quiet hours, while somebody else does it,
    and when all that is due is held.

    A table that stores less than ``[memwal] local_below_bytes`` of ``airflow.cfg`` is worked on in
    the task's own process, without Spark. By default none is.

    Parameters
    ----------
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`.
    """

    def regions_for(self, context: Context) -> tuple[UUID, ...] | None:
        """The regions that it is about; None for all."""
        return None

    def index_for(self) -> str | None:
        """The index that it is about; None for all."""
        return None

    def leased(self, target: Target) -> tuple[str, ...]:
        """The job on the table, or on one of its indexes; and what takes the same lease."""
        from memwal.catalog.leases import job_resource

        if self.table is None:
            return ()
        part = self.index_for()
        own = job_resource(target.name, self.job, part=part)
        if part is None and self.job in TableCheckpointOperator.instead_of:
            return own, job_resource(target.name, TableCheckpointOperator.job)
        return (own,)

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Run the job under its lease, as :func:`memwal.fleet.run_job` does."""
        from memwal.fleet import JobRequest, Runtime, run_job
        from memwal.jobs.due import Due
        from memwal.jobs.job import JobResult

        force, due = self.is_forced(context), None
        if earlier is not None:
            # What it does was decided when it was started; by now it may not be due any more.
            due = Due(
                reason="an earlier try began it", regions=tuple(map(str, earlier.regions or ()))
            )
            force = self.job == "merge" and earlier.regions is None

        def execute(spec: JobSpec, guard: Guard) -> JobResult:
            return JobResult.from_dict(
                self.submit(
                    target,
                    spec.arguments(),
                    context=context,
                    look=guard,
                    earlier=earlier,
                    regions=spec.regions,
                )
            )

        here = earlier is None and is_small(target)
        return run_job(
            target.catalog,
            JobRequest(
                target.name,
                self.job,
                force=force,
                dry_run=self.is_dry_run(context),
                regions=None if earlier is not None else self.regions_for(context),
                index=self.index_for(),
                due=due,
                wait=self.wait,
            ),
            runtime=Runtime(
                execute=None if here else execute,
                guard=self.go_on,
                storage_options=target.storage_options,
                external_id=external_id(context),
            ),
        )


class MemWalMergeOperator(MemWalJobOperator):
    """Merges the backlog of regions that are due into the base table.

    The events of its outlets carry ``version``, ``rows`` and ``generations``. Skipped, without an
    event, when nothing was merged.

    Parameters
    ----------
    regions : list of str, optional
        UUIDs of the regions, of which those are merged that are due; all regions by default. The
        param ``regions`` of a run narrows it further.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`.
    """

    job = "merge"
    template_fields = (*MemWalOperator.template_fields, "regions")

    def __init__(self, *, regions: Iterable[str] | Any | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.regions = regions

    def regions_for(self, context: Context) -> tuple[UUID, ...] | None:
        """Those of the operator, of the run, or of both."""
        own = None if self.regions is None else region_ids(self.regions)
        asked = region_ids(context["params"].get("regions") or ())
        if own is None:
            return tuple(sorted(asked)) or None
        found = own & asked if asked else own
        if not found:
            raise TaskSkipped("None of the regions is asked for.", reason=SkipReason.NOT_REQUESTED)
        return tuple(sorted(found))

    def take(self, result: dict[str, Any], context: Context) -> dict[str, Any]:
        """Describe the merge on its asset; fail when it could merge nothing at all."""
        figures = result["figures"]
        if figures["generations"]:
            rows = figures["rows_upserted"] + figures["rows_deleted"]
            extra = {"rows": rows, "generations": figures["generations"]}
            describe(self, context, {"version": result["version"], **extra})
            return result
        if result["held"]:
            # Held regions are left out by the next try; for people to see, this one is red.
            raise AirflowFailException(f"Nothing could be merged: {result['problems'][0]}")
        if result["problems"]:
            raise AirflowException(f"Nothing could be merged: {result['problems'][0]}")
        raise TaskSkipped(
            "Nothing was merged: the backlog is gone by now.", reason=SkipReason.NOTHING_TO_DO
        )


class MemWalIndexOperator(MemWalJobOperator):
    """Brings maintained indexes up to what was merged.

    The events of its outlets carry ``version``. Skipped, without an event, when nothing was built.

    Parameters
    ----------
    index : str, optional
        Build this one only. Tasks of several indexes run at once, each under a lease of its own:
        map over ``index``, or give all of them to one task.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`.
    """

    job = "index"
    template_fields = (*MemWalOperator.template_fields, "index")

    def __init__(self, *, index: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.index = index

    def index_for(self) -> str | None:
        """That of the operator."""
        return self.index

    def take(self, result: dict[str, Any], context: Context) -> dict[str, Any]:
        """Describe the build on its asset."""
        if not result["commits"]:
            raise TaskSkipped(
                "No index was changed: they have caught up by now.",
                reason=SkipReason.NOTHING_TO_DO,
            )
        describe(self, context, {"version": result["version"]})
        return result


class MemWalCompactOperator(MemWalJobOperator):
    """Rewrites small fragments of the base table, and those with many deleted rows."""

    job = "compact"


class MemWalSnapshotOperator(MemWalJobOperator):
    """Publishes the region snapshot that readers plan by."""

    job = "snapshot"


class MemWalCollectOperator(MemWalJobOperator):
    """Deletes what no reader can need any more; with ``dry_run`` it counts that, and succeeds."""

    job = "gc"


class MemWalQualityOperator(MemWalJobOperator):
    """Holds the rows of the base table against the suite of the table's policy.

    Skipped when the check is not due, and when the policy has no suite. What it finds is
    ``quality`` of its result, in the catalog and on the page of the table; every expectation that
    is not met is a warning in its log, also when the task fails.

    Parameters
    ----------
    fail_on : {"critical", "warning", "never"}, default "critical"
        What the task fails by, without a retry: critical expectations that are not met, those of
        the severity ``warning`` as well, or none.
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
        """Run the check, where there is something to check by."""
        rules = target.managed.policy.quality
        if rules is None or not rules.suite:
            raise TaskSkipped(
                f"The policy of {target.name} has no suite.", reason=SkipReason.NO_SUITE
            )
        return super().run_on(target, context, earlier)

    def take(self, result: dict[str, Any], context: Context) -> dict[str, Any]:
        """Fail by the expectations that are not met, if any of them weighs enough."""
        weights = _QUALITY_FAILS_ON[self.fail_on]
        unmet = [one for one in result["quality"]["expectations"] if not one["success"]]
        if any(one["severity"] in weights for one in unmet):
            raise AirflowFailException(f"{result['table']}: {result['problems'][0]}")
        return result


def is_small(target: Target) -> bool:
    """Return whether a table is worked on in the task's own process, because of all that it stores.

    Not the backlog alone is counted: a merge of few rows looks for their keys in all of the base
    table.
    """
    limit = int(conf.getint(SECTION, "local_below_bytes", fallback=0))
    if limit <= 0:
        return False
    status = memwal.open(target.managed.uri, storage_options=target.storage_options).status()
    if status.base_bytes is None:
        return False
    return status.base_bytes + status.backlog_bytes + status.reclaimable_bytes < limit
