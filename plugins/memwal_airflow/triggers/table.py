"""The waiting part of the sensors; runs in Airflow's triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from airflow.triggers.base import (
    BaseTaskEndEvent,
    BaseTrigger,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
)

from memwal.errors import MemWalError
from memwal_airflow.triggers.conditions import BacklogDue, CaughtUp, Condition, Merged
from memwal_airflow.triggers.shared_poll import polls
from memwal_airflow.triggers.table_status import TableSource

MOST_FAILURES = 3
"""So many looks in a row may fail before a trigger gives up, and its task is tried again."""


class TableTrigger(BaseTrigger):
    """Looks at one table until a condition is met or the window ends, and ends the task.

    The task does not go back to a worker. That saves a process for each task, and more: a task
    that is resumed before the scheduler has taken notice of its deferral (some seconds on a busy
    machine) is taken for one that was killed, and failed. A task that is over cannot be.

    All state is in the arguments, so that another triggerer can go on where one stopped; the end
    of the window is a point in time for the same reason. Triggers of one table share its looks:
    see :mod:`memwal_airflow.triggers.shared_poll`.

    Parameters
    ----------
    table, table_uri, storage_options_ref
        As of :class:`memwal_airflow.triggers.table_status.TableSource`.
    poke_seconds : float
        Pause between looks, and before the first one: an event that comes before the deferral is
        stored would be lost.
    window_ends_at : float
        Seconds since the epoch.
    soft_fail : bool
        Whether the end of the window skips the task, or fails it.
    **condition
        Fields of the condition, see the subclasses.
    """

    condition_type: ClassVar[type[Condition]]

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
        self.condition = self.condition_type(**condition)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments that make the same trigger elsewhere."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "table": self.source.table,
                "table_uri": self.source.table_uri,
                "storage_options_ref": self.source.storage_options_ref,
                "poke_seconds": self.poke_seconds,
                "window_ends_at": self.window_ends_at,
                "soft_fail": self.soft_fail,
                **self.condition.arguments(),
            },
        )

    async def run(self) -> AsyncIterator[BaseTaskEndEvent]:
        """Yield one event, which ends the task as success, skipped or failed.

        The XCom of a success is the value of the finding; otherwise ``reason`` tells why. Errors
        of the storage in :data:`MOST_FAILURES` looks in a row end the trigger; Airflow then tries
        the task again.
        """
        failures = 0
        async with polls().watching(self.source, regions=self.condition.regions) as watch:
            await asyncio.sleep(self.poke_seconds)
            while True:
                try:
                    look = await watch.next(every=self.poke_seconds)
                except (MemWalError, OSError) as error:
                    failures += 1
                    if failures >= MOST_FAILURES:
                        raise
                    self.log.warning("Look %d at %s failed: %s", failures, self.source, error)
                    continue
                failures = 0
                finding = self.condition.check(look)
                if finding.met:
                    self.log.info("%s: %s.", self.source, finding.text)
                    yield TaskSuccessEvent(xcoms={"return_value": finding.value})
                    return
                if time.time() >= self.window_ends_at:
                    reason = f"{self.source}: {finding.text}."
                    self.log.info("%s The window is over.", reason)
                    ended = TaskSkippedEvent if self.soft_fail else TaskFailedEvent
                    yield ended(xcoms={"reason": reason})
                    return


class BacklogTrigger(TableTrigger):
    """Waits until a region is due for a merge; see
    :class:`memwal_airflow.triggers.conditions.BacklogDue`.

    Parameters
    ----------
    region_ids : list of str or None
    policy : mapping
    **kwargs
        As of :class:`TableTrigger`.
    """

    condition_type = BacklogDue


class GenerationMergedTrigger(TableTrigger):
    """Waits until generations are merged; see :class:`memwal_airflow.triggers.conditions.Merged`.

    Parameters
    ----------
    generations : mapping of str to int
    existing : bool
    **kwargs
        As of :class:`TableTrigger`.
    """

    condition_type = Merged


class IndexCaughtUpTrigger(TableTrigger):
    """Waits until indexes have caught up; see :class:`memwal_airflow.triggers.conditions.CaughtUp`.

    Parameters
    ----------
    indexes : list of str or None
    generations : int
    **kwargs
        As of :class:`TableTrigger`.
    """

    condition_type = CaughtUp
