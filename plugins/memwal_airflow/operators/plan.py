"""The first job of a maintenance run, which also decides which jobs follow it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.skipmixin import XCOM_SKIPMIXIN_FOLLOWED, XCOM_SKIPMIXIN_KEY

from memwal.errors import MemWalError
from memwal.util.records import JsonObject
from memwal_airflow.deadlines import LATE
from memwal_airflow.hooks.storage_options import read_options
from memwal_airflow.operators.maintenance import MemWalMergeOperator
from memwal_airflow.operators.target import Target
from memwal_airflow.run_params import RunRequest
from memwal_airflow.skips import TaskSkipped


class MergeAndPlanOperator(MemWalMergeOperator):
    """Merges due regions, and skips the jobs that are not due after it.

    Merging does not wait for a plan, and jobs that are not due start no process: this is the only
    process of a run beside those of the jobs that are due. When nothing is merged, the task is
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

        Its next try would merge nothing, so that nobody would learn of the merged rows. Undecided
        tasks all run, and check themselves whether they are due.
        """
        try:
            self._plan(context)
        except MemWalError as error:
            self.log.warning("Each later task decides for itself whether it is due: %s", error)

    def _record_backlog(self, target: Target) -> None:
        """Leave it to the plan, which reads the status after the merge in any case."""

    def _plan(self, context: Context) -> None:
        from memwal.catalog import Catalog
        from memwal.fleet.tables import survey

        request = RunRequest.of(context["params"])
        with closing(Catalog()) as catalog:
            managed = catalog.get(str(self.table))
            options = read_options(managed.storage_options_ref)
            result = survey(catalog, managed, storage_options=options)
            # The previous run is over: runs never overlap.
            catalog.backoffs.clear_failure(managed.name, LATE)
            catalog.record_backlog(managed.name, result.status)
        followed = []
        for job, task_id in self.later.items():
            due = result.due[job]
            self.log.info("%s: %s.", job, due.reason or due.postponed or "not due")
            # A dry run tells of each job what it would do.
            wanted = due.reason is not None or self.is_forced(context) or self.is_dry_run(context)
            if wanted and request.includes(job):
                followed.append(task_id)
        # Airflow skips the tasks behind this one that are not in the list, whatever its own state.
        context["ti"].xcom_push(key=XCOM_SKIPMIXIN_KEY, value={XCOM_SKIPMIXIN_FOLLOWED: followed})
