"""The trigger of the sensors of a run, which tell what the merge of their regions waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from airflow.triggers.base import (
    BaseTaskEndEvent,
    BaseTrigger,
    StartTriggerArgs,
    TaskSkippedEvent,
    TaskSuccessEvent,
)

from memwal.util.records import JsonObject
from memwal_airflow.triggers.conditions import BacklogDue, ConditionResult
from memwal_airflow.triggers.shared_readings import shared_readings
from memwal_airflow.triggers.table_status import TableReading, TableSource

TIMEOUT = timedelta(minutes=5)
"""After so long without a triggerer a sensor fails: it must not keep the next run from starting."""

# The sensors of a run start together: those that start within this time share one read.
_SHARED_SECONDS = 5.0


class RegionsDueTrigger(BaseTrigger):
    """Reads the status of a table once, and ends the sensor of a share of its regions.

    The sensor is mapped, and starts here without a worker: Airflow gives the triggers of all mapped
    sensors the same arguments, and the number of the sensor tells the share.

    Parameters
    ----------
    table : str
        Name of the managed table.
    shares : int
        Number of sensors that the regions are divided among.
    """

    def __init__(self, *, table: str, shares: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table
        self.shares = shares

    def serialize(self) -> tuple[str, JsonObject]:
        """Return the class path and the arguments that build an equal trigger elsewhere."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"table": self.table, "shares": self.shares}

    async def run(self) -> AsyncIterator[BaseTaskEndEvent]:
        """Yield one event, which ends the sensor as success if a region is due, else as skipped."""
        source = TableSource(table=self.table)
        async with shared_readings().watching(source, regions=None) as watch:
            reading = await watch.next(every=_SHARED_SECONDS)
        instance = self.task_instance
        number = -1 if instance is None else int(instance.map_index)
        result = check_share(reading, share=max(number, 0), shares=self.shares)
        self.log.info("%s: %s.", self.table, result.message)
        if result.met:
            yield TaskSuccessEvent(xcoms={"return_value": {**result.value}})
        else:
            yield TaskSkippedEvent(xcoms={"reason": f"{self.table}: {result.message}."})


def check_share(reading: TableReading, *, share: int, shares: int) -> ConditionResult:
    """Return whether a region of a share is due for a merge; each region is in one share."""
    regions = sorted(region.region_id for region in reading.status.regions)
    return BacklogDue(regions[share::shares], {}).check(reading)


def start_arguments(table: str, *, shares: int) -> StartTriggerArgs:
    """Return what lets Airflow start the trigger of a sensor without a worker."""
    return StartTriggerArgs(
        trigger_cls=f"{RegionsDueTrigger.__module__}.{RegionsDueTrigger.__qualname__}",
        # The trigger ends the sensor itself.
        next_method="execute",
        trigger_kwargs={"table": table, "shares": shares},
        timeout=TIMEOUT,
    )
