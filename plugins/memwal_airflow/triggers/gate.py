"""The gate in front of the jobs of a run: waits until a job of the table is due.

The jobs alone decide whether a run fails. The gate never does: if it cannot read the table, it
opens, and the first job reports the error. Without a triggerer, a worker evaluates the gate once
when Airflow gives up waiting for the trigger.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.triggers.base import (
    BaseTaskEndEvent,
    BaseTrigger,
    StartTriggerArgs,
    TaskSkippedEvent,
    TaskSuccessEvent,
)

from memwal.catalog.records import SENSOR_JOB
from memwal.errors import MemWalError
from memwal.jobs.due import due, region_limits
from memwal.jobs.status import TableStatus
from memwal.util.records import JsonMapping, JsonObject
from memwal_airflow.links import TablePageLink, table_address
from memwal_airflow.notifications.failures import LATE
from memwal_airflow.run_params import includes
from memwal_airflow.skips import TaskSkipReason
from memwal_airflow.triggers.readings import TableReading, TableSource, shared_readings
from memwal_airflow.triggers.table import MAX_FAILURES
from memwal_airflow.version_compat import XCOM_SKIPMIXIN_FOLLOWED, XCOM_SKIPMIXIN_KEY

TRIGGER_GRACE = timedelta(minutes=1)
"""Time after the window in which a triggerer may answer; then a worker evaluates the gate."""

RUN_PARAMS = "{{ params | tojson }}"
"""Template of the parameters of a run, which the triggerer renders."""

_RETRY_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Outcome of one evaluation of a gate."""

    opens: bool
    """True if the wait is over: a job is due, or the run is forced."""
    succeeds: bool
    """True if the task succeeds when it ends now; otherwise it is skipped."""
    message: str
    lines: tuple[str, ...] = ()
    """A line for each region with a backlog, for the log."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks that may begin."""
    value: JsonObject
    """Return value of the task."""
    reason: TaskSkipReason = TaskSkipReason.NOT_DUE
    """Code of the reason, for a task that is skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The gate of a table, or a sensor of a share of its regions in front of the gate.

    ``tasks`` has the ids of the tasks directly behind the gate, by their jobs. A region with the
    number ``n``, in the order of the ids, belongs to the share ``n % shares``.
    """

    table: str
    tasks: Mapping[str, str]
    shares: int = 1

    def check(self, reading: TableReading, params: JsonMapping, *, share: int = 0) -> GateResult:
        """Evaluate the gate for a run with these parameters.

        If the merge is due, all tasks may begin: the merge decides about those behind it.
        """
        status, policy, at = reading.status, reading.policy, reading.at
        wanted = {str(region).lower() for region in params.get("regions") or ()}
        jobs = due(status, policy, now=at, last_runs=reading.last_runs)
        if status.mem_wal:
            ready = tuple(
                region
                for region in status.regions
                if region.region_id not in reading.regions_in_backoff
                and (not wanted or region.region_id in wanted)
            )
            only = replace(status, regions=ready)
            jobs["merge"] = due(only, policy, now=at, last_runs={})["merge"]
        requested = [job for job in self.tasks if includes(params, job)]
        reasons = {job: jobs[job].reason for job in requested if job in jobs and jobs[job].reason}
        forced = next((name for name in ("force", "dry_run") if params.get(name)), None)
        every = forced is not None or "merge" in reasons
        regions = self._regions(reading, share)
        is_own = self.shares == 1 or any(region["due"] for region in regions.values())
        postponed = [jobs[job].postponed for job in requested if job in jobs]
        held = next((text for text in postponed if text), None)
        waiting = sum(region["generations"] for region in regions.values())
        if reasons:
            message = "; ".join(f"{job} is due: {reason}" for job, reason in reasons.items())
        elif forced is not None:
            message = f"opened by the parameter {forced!r} of the run"
        else:
            why = f"postponed: {held}" if held else f"pending generations: {waiting}"
            message = f"nothing is due ({why})"
        return GateResult(
            opens=bool(reasons or forced),
            succeeds=bool(forced or (reasons and is_own)),
            message=message,
            lines=tuple(
                f"region {name}: {'due: ' if region['due'] else ''}{region['limit']}"
                for name, region in regions.items()
            ),
            tasks=tuple(self.tasks[job] for job in (requested if every else reasons)),
            value={"jobs": reasons, "regions": regions},
            reason=TaskSkipReason.NOT_DUE if held is None else TaskSkipReason.QUIET,
        )

    def unread(self, error: BaseException) -> GateResult:
        """Return the outcome for a table that cannot be read: the jobs find out themselves."""
        message = f"the status cannot be read, so that the jobs decide: {type(error).__name__}"
        if isinstance(error, MemWalError):
            message += f": {error}"
        return GateResult(
            opens=True,
            succeeds=self.shares == 1,
            message=message,
            tasks=tuple(self.tasks.values()),
            value={"jobs": {}, "regions": {}},
        )

    def xcoms(self, result: GateResult) -> JsonObject:
        """Return the XComs of the task, which skip the tasks that may not begin."""
        xcoms: JsonObject = {TablePageLink().xcom_key: table_address(self.table)}
        if self.shares == 1:
            xcoms[XCOM_SKIPMIXIN_KEY] = {XCOM_SKIPMIXIN_FOLLOWED: list(result.tasks)}
        if not result.succeeds:
            xcoms["reason"] = f"{self.table}: {result.message}."
        return {**xcoms, "return_value": result.value}

    def record(self, status: TableStatus) -> None:
        """Record the status, and that the previous run is over: runs of a table never overlap."""
        import memwal.catalog

        if self.shares > 1:
            return
        try:
            with closing(memwal.catalog.Catalog()) as catalog:
                for job in (LATE, SENSOR_JOB):
                    catalog.backoffs.clear_failure(self.table, job)
                catalog.record_backlog(self.table, status)
        except MemWalError as error:
            logger.warning("The backlog of %s was not recorded: %s", self.table, error)

    def log(self, result: GateResult, log: Any) -> None:
        """Write the outcome to the log of the task, region by region."""
        for line in result.lines:
            log.info("%s", line)
        log.info("%s: %s.", self.table, result.message)

    def _regions(self, reading: TableReading, share: int) -> dict[str, JsonObject]:
        """Describe the regions of a share that have a backlog, by id."""
        limits = region_limits(reading.status, reading.policy, now=reading.at)
        backlogs = sorted(reading.status.regions, key=lambda region: region.region_id)
        described = {}
        for region in backlogs[share :: self.shares]:
            name = region.region_id
            if name not in limits:
                continue
            decision, limit = limits[name]
            waits = name in reading.regions_in_backoff
            described[name] = {
                "due": decision.reason is not None and not waits,
                "limit": "waits for its next try" if waits else decision.postponed or limit,
                "generations": region.backlog_generations,
                "rows": region.backlog_rows,
                "bytes": region.backlog_bytes,
            }
        return described


class GateTrigger(BaseTrigger):
    """Polls a table until a job is due or the window ends, and ends the task of the gate.

    The task starts here, without a worker, and does not go to one. All gates and sensors of a table
    share its readings. The window ends :data:`TRIGGER_GRACE` before the timeout of the task, which
    Airflow stores, so that another triggerer continues the same window.

    Parameters
    ----------
    table, tasks, shares
        As of :class:`Gate`. Airflow gives the triggers of all mapped sensors the same arguments:
        the map index of the sensor is its share.
    run_params : str
        The parameters of the run as JSON, after the triggerer has rendered :data:`RUN_PARAMS`.
    """

    def __init__(
        self, *, table: str, tasks: Mapping[str, str], shares: int, run_params: str
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate = Gate(table=table, tasks=tasks, shares=shares)
        self.run_params = run_params

    def serialize(self) -> tuple[str, JsonObject]:
        """Return the class path and the arguments that build an equal trigger elsewhere."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "table": self.gate.table,
            "tasks": dict(self.gate.tasks),
            "shares": self.gate.shares,
            "run_params": self.run_params,
        }

    async def run(self) -> AsyncIterator[BaseTaskEndEvent]:
        """Yield one event, which ends the task: success if jobs may begin, else skipped."""
        gate, failures, seen = self.gate, 0, ""
        instance: Any = self.task_instance
        share = 0 if instance is None else max(int(instance.map_index), 0)
        params = json.loads(self.run_params)
        # The first read must not be older than the run: the previous one may have ended just now.
        pause = 0.0
        async with shared_readings().watching(TableSource(table=gate.table), regions=None) as watch:
            while True:
                try:
                    reading = await watch.next(every=pause)
                except (MemWalError, OSError) as error:
                    failures += 1
                    self.log.warning("Read %d of %s failed: %s", failures, gate.table, error)
                    if failures < MAX_FAILURES:
                        await asyncio.sleep(_RETRY_SECONDS)
                        continue
                    result = gate.unread(error)
                    break
                failures, pause = 0, reading.policy.poll_seconds
                result = gate.check(reading, params, share=share)
                if result.opens or datetime.now(UTC) >= self._window_end():
                    await asyncio.to_thread(gate.record, reading.status)
                    break
                if not seen:
                    gate.log(result, self.log)
                seen = result.message
        gate.log(result, self.log)
        event_type = TaskSuccessEvent if result.succeeds else TaskSkippedEvent
        yield event_type(xcoms=gate.xcoms(result))

    def _window_end(self) -> datetime:
        timeout = getattr(self, "timeout_after", None)
        return datetime.min.replace(tzinfo=UTC) if timeout is None else timeout - TRIGGER_GRACE


def start_arguments(
    table: str, tasks: Mapping[str, str], *, shares: int = 1, wait: float
) -> StartTriggerArgs:
    """Return the arguments with which Airflow starts the trigger of a gate without a worker.

    ``wait`` is the length of the window in seconds.
    """
    return StartTriggerArgs(
        trigger_cls=f"{GateTrigger.__module__}.{GateTrigger.__qualname__}",
        # The trigger ends the task itself.
        next_method="execute",
        trigger_kwargs={
            "table": table,
            "tasks": dict(tasks),
            "shares": shares,
            "run_params": RUN_PARAMS,
        },
        timeout=timedelta(seconds=wait) + TRIGGER_GRACE,
    )
