"""The sensor in front of the jobs of a table's DAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseSensorOperator, Context
from airflow.triggers.base import StartTriggerArgs

from memwal.catalog.records import SENSOR_JOB
from memwal.errors import MemWalError
from memwal.util.records import JsonObject
from memwal_airflow.links import TablePageLink
from memwal_airflow.notifications.failures import record_failure
from memwal_airflow.skips import TaskSkipped
from memwal_airflow.triggers.gate import (
    RUN_PARAMS,
    TRIGGER_GRACE,
    Gate,
    GateResult,
    GateTrigger,
)
from memwal_airflow.triggers.readings import TableSource, read_table_status
from memwal_airflow.version_compat import START_IN_TRIGGERER, AirflowException, TaskDeferred


class TableGateSensor(BaseSensorOperator):
    """Waits until a job of a table is due, and lets the tasks of the jobs that are due begin.

    Waits in the triggerer, for all regions at once, and starts there without a worker where Airflow
    can. Its log and its return value name the due work: ``jobs`` has the reason of each due job,
    ``regions`` has ``due``, ``limit``, ``generations``, ``rows`` and ``bytes`` of each region with
    a backlog. If nothing is due at the end of the window, it is skipped with all tasks behind it.
    It does not fail: if the table cannot be read, all tasks may begin, and report that. The
    parameters ``jobs``, ``regions``, ``force`` and ``dry_run`` of a DAG run apply.

    With ``shares`` above 1, mapped over ``share``, it is a sensor of a share of the regions in
    front of the gate: it ends at the same time, succeeds if a region of its share is due, and skips
    no other task.

    Parameters
    ----------
    table : str
        Name of the managed table.
    tasks : mapping of str to str
        The ids of the tasks directly behind the gate, by their jobs.
    start_trigger_args : StartTriggerArgs
        Of :func:`memwal_airflow.triggers.gate.start_arguments`, which takes the length of the
        window.
    shares : int, default 1
        Number of sensors that the regions are divided among.
    share : int, default 0
        Number of this sensor, from 0.
    **kwargs
        As of ``BaseSensorOperator``.
    """

    start_from_trigger = True
    # Lets Airflow skip the tasks behind it that it has not chosen, as for a branch.
    inherits_from_skipmixin = True
    template_fields: Sequence[str] = ("run_params",)
    operator_extra_links = (TablePageLink(),)

    def __init__(
        self,
        *,
        table: str,
        tasks: Mapping[str, str],
        start_trigger_args: StartTriggerArgs,
        shares: int = 1,
        share: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.tasks = tasks
        self.start_trigger_args = start_trigger_args
        self.shares = shares
        self.share = share
        self.run_params = RUN_PARAMS

    def execute(self, context: Context) -> JsonObject:
        """Evaluate the gate; if nothing is due, wait in the triggerer unless it was there already.

        Airflow calls this at once where it starts no task in the triggerer, else never.
        """
        result = self._check(context)
        trigger = self.start_trigger_args
        if trigger is None or START_IN_TRIGGERER.here or result.opens:
            return self._end(result, context)
        if trigger.timeout is None or trigger.timeout <= TRIGGER_GRACE:
            return self._end(result, context)
        raise TaskDeferred(
            trigger=GateTrigger(
                **{**(trigger.trigger_kwargs or {}), "run_params": self.run_params}
            ),
            method_name=trigger.next_method,
            timeout=trigger.timeout,
        )

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> JsonObject:
        """Evaluate the gate in a worker, after no triggerer answered or the trigger failed."""
        self.log.warning("The triggerer did not end this task: evaluating the gate here.")
        try:
            return self._end(self._check(context), context)
        finally:
            reason = f"no triggerer answered the task {self.task_id} of {self.dag_id} in time"
            record_failure(self.table, SENSOR_JOB, reason)

    def _check(self, context: Context) -> GateResult:
        """Evaluate the gate once, in this process."""
        gate = self._gate
        try:
            reading = read_table_status(TableSource(table=self.table))
        except (MemWalError, OSError, AirflowException) as error:
            self.log.warning("%s cannot be read: %s", self.table, error)
            result = gate.unread(error)
        else:
            result = gate.check(reading, context["params"], share=self.share)
            gate.record(reading.status)
        gate.log(result, self.log)
        return result

    def _end(self, result: GateResult, context: Context) -> JsonObject:
        """End the task as the outcome says."""
        xcoms = self._gate.xcoms(result)
        value: JsonObject = xcoms.pop("return_value")
        for key, stored in xcoms.items():
            context["ti"].xcom_push(key=key, value=stored)
        if not result.succeeds:
            raise TaskSkipped(f"{self.table}: {result.message}.", reason=result.reason)
        return value

    @property
    def _gate(self) -> Gate:
        return Gate(table=self.table, tasks=self.tasks, shares=self.shares)
