"""Operator that merges and indexes every flushed generation, due or not."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from memwal.jobs.arguments import to_arguments
from memwal.jobs.job import Guard, JobResult
from memwal.util.records import JsonObject
from memwal_airflow.operators.base import MemWalOperator, describe_merge, external_id
from memwal_airflow.operators.target import Target
from memwal_airflow.skips import TaskSkipped, TaskSkipReason
from memwal_airflow.spark.reattach import EarlierTry

if TYPE_CHECKING:
    from memwal.fleet import Skipped


class TableCheckpointOperator(MemWalOperator):
    """Merges and indexes every generation that is flushed when it starts, due or not.

    After it, a reader of the base table alone sees all of them; rows that writers have not flushed
    are not part of it. Fails if that takes longer than the deadline; what was merged by then stays,
    and the retry continues from there. Other merges and index builds of the table wait meanwhile.
    A region that the quality gate of the policy holds is a failure. Asset events carry
    ``version``, ``rows`` and ``generations``.

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

    def leased(self, target: Target) -> tuple[str, ...]:
        """Return its own resource, and those of the jobs whose work it does."""
        from memwal.catalog.leases import job_resource

        others = (job_resource(target.name, job) for job in self.instead_of)
        return (*super().leased(target), *others) if self.table is not None else ()

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
        describe_merge(self, context, result)
        return result
