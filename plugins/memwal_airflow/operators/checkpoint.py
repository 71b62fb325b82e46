"""An operator that merges and indexes everything there is, for whoever needs it to be so."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from memwal_airflow.operators.base import MemWalOperator, describe, external_id
from memwal_airflow.operators.target import Target
from memwal_airflow.skips import SkipReason, TaskSkipped
from memwal_airflow.spark.reattach import EarlierTry

if TYPE_CHECKING:
    from memwal.fleet import Skipped
    from memwal.jobs.job import Guard, JobResult


class TableCheckpointOperator(MemWalOperator):
    """Merges and indexes every generation that is flushed when it starts, due or not.

    When it has succeeded, a reader of the base table alone sees all of them. It fails when that
    is not so by its deadline; what was merged by then stays, and the retry goes on from there.
    Merges and index builds of the table by others wait meanwhile. Rows that writers have not
    flushed are not part of it. Rows that enter go through the gate of the table's policy; a region
    that it holds is a failure. The events of its outlets carry ``version``, ``rows`` and
    ``generations``.

    Parameters
    ----------
    deadline : timedelta, default 1 h
        How long one try may take, with the time that it waits for others.
    **kwargs
        As of :class:`~memwal_airflow.operators.base.MemWalOperator`; ``wait`` and ``force`` mean
        nothing here.
    """

    job = "checkpoint"
    instead_of: ClassVar[tuple[str, ...]] = ("merge", "index")

    def __init__(self, *, deadline: timedelta = timedelta(hours=1), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deadline = deadline

    def leased(self, target: Target) -> tuple[str, ...]:
        """Its own resource, and those of the jobs whose work it does."""
        from memwal.catalog.leases import job_resource

        others = (job_resource(target.name, job) for job in self.instead_of)
        return (*super().leased(target), *others) if self.table is not None else ()

    def run_on(
        self, target: Target, context: Context, earlier: EarlierTry | None
    ) -> JobResult | Skipped:
        """Run it under the leases of the jobs whose work it does."""
        from memwal.fleet import Runtime, Skipped, run_recorded
        from memwal.jobs.arguments import to_arguments
        from memwal.jobs.job import JobResult

        if self.is_dry_run(context):
            raise TaskSkipped(
                "Dry run: it would merge and index what is flushed.", reason=SkipReason.DRY_RUN
            )
        ends_at = time.monotonic() + self.deadline.total_seconds()

        def execute(guard: Guard) -> JobResult:
            options = replace(
                target.managed.policy.checkpoint_options(),
                timeout_seconds=round(max(ends_at - time.monotonic(), 0.0), 1),
            )
            return JobResult.from_dict(
                self.submit(
                    target, to_arguments(options), context=context, look=guard, earlier=earlier
                )
            )

        found = run_recorded(
            target.catalog,
            target.name,
            self.job,
            execute,
            instead_of=self.instead_of,
            wait=self.deadline,
            runtime=Runtime(external_id=external_id(context), guard=self.go_on),
        )
        if isinstance(found, Skipped):
            raise AirflowException(f"The checkpoint did not begin in time: {found.reason}")
        return found

    def take(self, result: dict[str, Any], context: Context) -> dict[str, Any]:
        """Describe it on its assets."""
        figures = result["figures"]
        rows = figures.get("rows_upserted", 0) + figures.get("rows_deleted", 0)
        extra = {"rows": rows, "generations": figures.get("generations", 0)}
        describe(self, context, {"version": result["version"], **extra})
        return result
