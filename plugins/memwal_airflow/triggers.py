"""The waiting part of the region sensor; runs in Airflow's triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import (
    BaseTaskEndEvent,
    BaseTrigger,
    TaskSkippedEvent,
    TaskSuccessEvent,
)

from memwal.maintenance.policy import merge_reason
from memwal.maintenance.status import RegionBacklog
from memwal_airflow.storage import read_options_async, region_backlog


class RegionBacklogTrigger(BaseTrigger):
    """Looks at one region until it is due for a merge or the window ends, and ends the task.

    The task does not go back to a worker. That saves a process for each region, and more: a task
    that is resumed before the scheduler has taken notice of its deferral (some seconds on a busy
    machine) is taken for one that was killed, and failed. A task that is over cannot be.

    All state is in the arguments, so that another triggerer can go on where one stopped; the end
    of the window is a point in time for the same reason.

    Parameters
    ----------
    table_uri, region_id, min_generations, max_age_seconds, storage_options_ref
        As of :class:`memwal_airflow.sensors.RegionBacklogSensor`.
    poke_seconds : float
        Pause before each look, the first one too: an event that comes before the deferral is
        stored would be lost.
    window_ends_at : float
        Seconds since the epoch.
    """

    def __init__(
        self,
        *,
        table_uri: str,
        region_id: str,
        min_generations: int,
        max_age_seconds: float,
        storage_options_ref: str | None,
        poke_seconds: float,
        window_ends_at: float,
    ) -> None:
        super().__init__()
        self.table_uri = table_uri
        self.region_id = region_id
        self.min_generations = min_generations
        self.max_age_seconds = max_age_seconds
        self.storage_options_ref = storage_options_ref
        self.poke_seconds = poke_seconds
        self.window_ends_at = window_ends_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments that make the same trigger elsewhere."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "table_uri": self.table_uri,
                "region_id": self.region_id,
                "min_generations": self.min_generations,
                "max_age_seconds": self.max_age_seconds,
                "storage_options_ref": self.storage_options_ref,
                "poke_seconds": self.poke_seconds,
                "window_ends_at": self.window_ends_at,
            },
        )

    async def run(self) -> AsyncIterator[BaseTaskEndEvent]:
        """Yield one event, which ends the task as success or skipped.

        The XCom of a success is what :func:`look` found; of a skip, ``reason`` tells why. An error
        of the storage ends the trigger; Airflow then tries the task again.
        """
        while True:
            await asyncio.sleep(self.poke_seconds)
            options = await read_options_async(self.storage_options_ref)
            region = await asyncio.to_thread(
                region_backlog, self.table_uri, self.region_id, options
            )
            found = look(
                region,
                self.region_id,
                min_generations=self.min_generations,
                max_age_seconds=self.max_age_seconds,
            )
            if found["due"]:
                self.log.info("Region %s is due: %s.", self.region_id, found["due"])
                yield TaskSuccessEvent(xcoms={"return_value": found})
                return
            if time.time() >= self.window_ends_at:
                reason = not_due(found, self.min_generations)
                self.log.info("%s The window is over.", reason)
                yield TaskSkippedEvent(xcoms={"reason": reason})
                return


def not_due(found: dict[str, Any], min_generations: int) -> str:
    """Why a sensor is skipped."""
    return (
        f"Region {found['region_id']} is not due: {found['generations']} of {min_generations} "
        "generations wait."
    )


def look(
    region: RegionBacklog | None, region_id: str, *, min_generations: int, max_age_seconds: float
) -> dict[str, Any]:
    """What a sensor found, in plain values.

    Returns
    -------
    dict
        ``region_id``, ``due`` (why, or None), ``generations``, ``rows``, ``bytes``.
    """
    if region is None:
        return {"region_id": region_id, "due": None, "generations": 0, "rows": 0, "bytes": 0}
    return {
        "region_id": region_id,
        "due": merge_reason(region, at_generations=min_generations, at_age_seconds=max_age_seconds),
        "generations": region.backlog_generations,
        "rows": region.backlog_rows,
        "bytes": region.backlog_bytes,
    }
