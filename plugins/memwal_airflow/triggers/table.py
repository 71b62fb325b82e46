"""Triggers of the sensors, which run in Airflow's triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import (
    BaseTaskEndEvent,
    BaseTrigger,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
)

from memwal.catalog.records import SENSOR_JOB, STATUS_JOB
from memwal.errors import MemWalError
from memwal.util.records import JsonObject
from memwal_airflow.notifications.failures import clear_failures, failure_reason, record_failure
from memwal_airflow.triggers.conditions import new_condition
from memwal_airflow.triggers.readings import TableSource, shared_readings

MAX_FAILURES = 3
"""Failed reads in a row after which a trigger gives up and Airflow retries its task."""


class TableTrigger(BaseTrigger):
    """Polls one table until a condition is met or the window ends, and ends the task.

    The task does not go back to a worker. That saves a process for each task, and it is safe: the
    scheduler takes a task that is resumed before it has noticed the deferral (some seconds on a
    busy machine) for one that was killed, and fails it. It cannot do so to a task that has ended.

    All state is in the arguments, so that another triggerer can continue. Triggers of one table
    share its readings, see :mod:`memwal_airflow.triggers.readings`.

    Parameters
    ----------
    table, table_uri, storage_options_ref
        As of :class:`memwal_airflow.sensors.table.TableSensor`.
    poke_seconds : float
        Pause between reads, and before the first read: an event that comes before the deferral
        is stored would be lost.
    window_ends_at : float
        Seconds since the epoch, so that it means the same in another triggerer.
    soft_fail : bool
        True if the end of the window skips the task; otherwise it fails the task.
    **condition
        As of :func:`memwal_airflow.triggers.conditions.new_condition`.
    """

    def __init__(
        self,
        *,
        table: str | None = None,
        table_uri: str | None = None,
        storage_options_ref: str | None = None,
        poke_seconds: float,
        window_ends_at: float,
        soft_fail: bool,
        **condition: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = TableSource(
            table=table, table_uri=table_uri, storage_options_ref=storage_options_ref
        )
        self.poke_seconds = poke_seconds
        self.window_ends_at = window_ends_at
        self.soft_fail = soft_fail
        self.condition = new_condition(**condition)

    def serialize(self) -> tuple[str, JsonObject]:
        """Return the class path and the arguments that build an equal trigger elsewhere."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                **asdict(self.source),
                "poke_seconds": self.poke_seconds,
                "window_ends_at": self.window_ends_at,
                "soft_fail": self.soft_fail,
                **self.condition.arguments(),
            },
        )

    async def run(self) -> AsyncIterator[BaseTaskEndEvent]:
        """Yield one event, which ends the task as success, skipped or failed.

        The XCom of a success is the value of the condition; otherwise ``reason`` tells why. Errors
        of the storage in :data:`MAX_FAILURES` reads in a row end the trigger; Airflow then retries
        the task.
        """
        failures = 0
        async with shared_readings().watching(self.source, regions=self.condition.regions) as watch:
            await asyncio.sleep(self.poke_seconds)
            while True:
                try:
                    reading = await watch.next(every=self.poke_seconds)
                except (MemWalError, OSError) as error:
                    failures += 1
                    if failures >= MAX_FAILURES:
                        if self.source.table is not None:
                            reason = failure_reason(error)
                            await asyncio.to_thread(
                                record_failure, self.source.table, STATUS_JOB, reason
                            )
                        raise
                    self.log.warning("Read %d of %s failed: %s", failures, self.source, error)
                    continue
                failures = 0
                result = self.condition.check(reading)
                table = self.source.table
                if result.met:
                    self.log.info("%s: %s.", self.source, result.message)
                    if table is not None:
                        await asyncio.to_thread(clear_failures, table, (SENSOR_JOB,))
                    yield TaskSuccessEvent(xcoms={"return_value": result.value})
                    return
                if time.time() >= self.window_ends_at:
                    reason = f"{self.source}: {result.message}."
                    self.log.info("%s The window is over.", reason)
                    event_type = TaskSkippedEvent if self.soft_fail else TaskFailedEvent
                    if table is not None and not self.soft_fail:
                        text = f"a sensor waited in vain: {result.message}"
                        await asyncio.to_thread(record_failure, table, SENSOR_JOB, text)
                    yield event_type(xcoms={"reason": reason})
                    return
