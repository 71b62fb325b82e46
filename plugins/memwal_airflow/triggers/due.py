"""The trigger that starts the DAG of a table when one of its jobs is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from memwal.util.records import JsonObject

if TYPE_CHECKING:
    from memwal_airflow.triggers.due_tables import DueTable

# Every process that parses the DAGs imports this module: what polls is imported by the triggerer.

POLL_SECONDS = 1.0
"""Pause between two polls of all tables; each table has its own pause between looks at it."""

FIRST_REPEAT_SECONDS = 30.0
LAST_REPEAT_SECONDS = 600.0

_FIRST_JOB = "merge"


class TableDueTrigger(BaseEventTrigger):
    """Fires when a job of a table is due, and again until it is served.

    Airflow can lose an event: while a run is queued, while the DAG is paused, while no triggerer
    runs. So an event says what is due now, and not that something changed: it is repeated, at first
    after :data:`FIRST_REPEAT_SECONDS` and then after longer and longer pauses, until a job has run
    or nothing is due any more. The run that it starts looks itself at what is due.

    All triggers of a triggerer share one poll, which looks at the tables of the catalog, see
    :class:`memwal_airflow.triggers.due_tables.DueTables`. The name of the table is the only
    argument, and never changes: Airflow does not watch an asset for minutes when the arguments of
    its trigger change.

    Parameters
    ----------
    table : str
        Name of the managed table.
    """

    def __init__(self, *, table: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table

    def serialize(self) -> tuple[str, JsonObject]:
        """Return the class path and the arguments that build an equal trigger elsewhere."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"table": self.table}

    def shared_stream_key(self) -> Hashable:
        """Return one key for all tables: one poll looks at all of them."""
        return ("memwal", "due")

    @classmethod
    async def open_shared_stream(
        cls, kwargs: dict[str, Any]
    ) -> AsyncIterator[Mapping[str, DueTable]]:
        """Yield the due jobs by table, again and again.

        Never raises: an exception would end the triggers of all tables at once.
        """
        from memwal_airflow.triggers.due_tables import DueTables

        tables = DueTables()
        try:
            while True:
                due = await tables.poll()
                if due:
                    yield due
                await asyncio.sleep(POLL_SECONDS)
        finally:
            tables.close()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Mapping[str, DueTable]]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield an event when a job of this table is due and no run is about to serve it."""
        announcements = Announcements()
        async for due_tables in shared_stream:
            due = due_tables.get(self.table)
            if due is not None and announcements.is_wanted(due):
                yield TriggerEvent({"jobs": dict(due.jobs)})  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll alone; Airflow calls this only where triggers share no streams."""
        _, arguments = self.serialize()
        async for event in self.filter_shared_stream(type(self).open_shared_stream(arguments)):
            yield event


class Announcements:
    """Decides when due jobs are announced, and announced again.

    The first announcement is immediate, also by a trigger that has just started: it cannot know
    what an earlier one announced. Afterwards,

    - nothing is announced while a job of the table runs or is about to be tried again: the same run
      of the DAG goes on with what is due next;
    - a job that is due again although it succeeded since the last announcement is announced at
      once: the run that served it is done with it, and Airflow queues the next one behind it;
    - a merge that was not announced is announced at once as well: it comes first in a run, so that
      the run of an announcement without it may have passed it over already;
    - anything else is repeated after a pause, which doubles each time and counts from the last
      announcement or from when a run was last seen to serve the table. A run has the time of the
      pause to start its next job, and a job that fails again and again starts fewer and fewer runs.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._announced_at: float | None = None
        self._succeeded: Mapping[str, int] = {}
        self._jobs: Collection[str] = ()
        self._pause = FIRST_REPEAT_SECONDS

    def is_wanted(self, due: DueTable) -> bool:
        """Return whether to announce now; True counts as announced."""
        now = self._clock()
        if self._announced_at is not None:
            if due.is_served:
                self._announced_at = now
                return False
            before, latest = self._succeeded, due.succeeded
            passed_over = _FIRST_JOB in due.jobs and _FIRST_JOB not in self._jobs
            if passed_over or any(latest.get(job) != before.get(job) for job in due.jobs):
                self._pause = FIRST_REPEAT_SECONDS
            elif now - self._announced_at < self._pause:
                return False
            else:
                self._pause = min(2 * self._pause, LAST_REPEAT_SECONDS)
        self._announced_at = now
        self._succeeded = dict(due.succeeded)
        self._jobs = tuple(due.jobs)
        return True
