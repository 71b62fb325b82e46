"""The trigger that starts the DAGs of tables of which a job is due."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from memwal.util.records import JsonObject
from memwal_airflow import DAG_PREFIX

if TYPE_CHECKING:
    from memwal_airflow.triggers.due_tables import DueTable

# Every process that parses the DAGs imports this module; only the triggerer imports the polls.

POLL_SECONDS = 1.0
"""Pause between two polls of all tables; each table has its own pause between its polls."""

EVENT_SECONDS = 5.0
"""Shortest pause between two events: each starts a run, and so a process."""

MAX_TABLES = 100
"""Tables of one event: a single request, of five seconds at most, updates all of their assets."""

FIRST_REPEAT_SECONDS = 30.0
LAST_REPEAT_SECONDS = 600.0

FIRST_HOLD_SECONDS = 2.0
"""Pause until the trigger asks again whether the active run of a due table has ended."""

UNSTARTED_SECONDS = 600.0
"""Time after which a table that was announced, and that no run has served, counts as unstarted."""

_FIRST_JOB = "merge"

logger = logging.getLogger(__name__)


class TablesDueTrigger(BaseEventTrigger):
    """Fires when a job of a table is due, and again until it is served.

    One trigger watches all tables of a shard, in one seat of a triggerer for any number of tables.
    An event names the tables to start and their due jobs, for the task of
    :mod:`memwal_airflow.due_dag`.

    Airflow can lose an event: while a run is queued, while a DAG is paused, while no triggerer
    runs. So an event names the jobs that are due now, and not a change: a table is announced again,
    at first after :data:`FIRST_REPEAT_SECONDS` and then after longer and longer pauses, until a job
    has run or nothing is due any more. Before it repeats, the trigger asks Airflow whether a run of
    the table is active. The run that it starts checks itself which jobs are due.

    The trigger holds no lease. Airflow gives the triggers of a triggerer without a heartbeat to
    another one (24 s after it froze), and starts a trigger that raised again. A triggerer that
    wakes from a pause polls beside its successor for some seconds, and neither knows the
    announcements of the other. That costs polls, and announces a table twice: the task leaves out
    tables that were served since, and a run that finds nothing due does nothing.

    The arguments are the same for all tables and policies: Airflow leaves an asset unwatched until
    the DAGs are parsed again when the arguments of its trigger change.

    Parameters
    ----------
    shard : int
        Number of the shard, from 0.
    shards : int
        Number of shards that the tables are divided among, by the hashes of their names.
    drained : bool
        Whether one DAG runs the jobs of all tables, so that there are no runs to ask Airflow for.
    """

    def __init__(self, *, shard: int = 0, shards: int = 1, drained: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shard = shard
        self.shards = shards
        self.drained = drained

    def serialize(self) -> tuple[str, JsonObject]:
        """Return the class path and the arguments that build an equal trigger elsewhere."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"shard": self.shard, "shards": self.shards, "drained": self.drained}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the tables to start, by name, with their due jobs. Never ends and never raises."""
        from memwal_airflow.triggers.due_tables import DueTables

        tables = DueTables(shard=self.shard, shards=self.shards)
        announcer = Announcer()
        if not self.drained:
            # The first question has Airflow load its API in the triggerer, which takes seconds and
            # keeps it from all else: it comes before there are events and gates that would wait.
            await _active_runs([""])
        try:
            while True:
                due = await tables.poll()
                wanted = announcer.wanted_tables(due)
                before = () if self.drained else announcer.announced_before(wanted)
                active = await _active_runs(before)
                event = announcer.announce(due, wanted, active=active)
                await tables.record_unstarted(announcer.unstarted_tables())
                if event:
                    yield TriggerEvent({"tables": event})  # type: ignore[no-untyped-call]
                await tables.wait(POLL_SECONDS)
        finally:
            tables.close()


def active_runs(tables: Iterable[str]) -> set[str]:
    """Return those of ``tables`` of which a run of their DAG is queued or running.

    A request for each table, for a task or a thread of a trigger. Of a table whose asset was
    updated, and whose run the scheduler has not created yet, Airflow tells none.
    """
    # The process that runs tasks or triggers has imported it; processes that parse DAGs need not.
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = ["queued", "running"]
    return {
        table
        for table in tables
        if RuntimeTaskInstance.get_dr_count(f"{DAG_PREFIX}{table}", states=states)
    }


async def _active_runs(tables: Collection[str]) -> set[str]:
    """Return the tables with an active run; none if Airflow does not tell: the task asks again."""
    if not tables:
        return set()
    try:
        # It asks Airflow. Requests from a thread of asyncio would be sent beside those of the
        # triggerer's loop: in Airflow 3.1, one reads the other's answer, and the triggerer ends.
        return await sync_to_async(active_runs, thread_sensitive=False)(tables)
    except Exception as error:
        logger.warning("The runs of %d tables are not known: %s", len(tables), error)
        return set()


class Announcer:
    """Decides which tables an event names, and when.

    An event follows at once, or :data:`EVENT_SECONDS` after the last one. It names at most
    :data:`MAX_TABLES`; the next one names the rest.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at = -math.inf
        self._tables: defaultdict[str, Announcements] = defaultdict(
            lambda: Announcements(clock=clock)
        )
        # Since when a table waits for a run, and the runs of it that had succeeded then.
        self._waiting: dict[str, tuple[float, Mapping[str, int]]] = {}

    def wanted_tables(self, due: Mapping[str, DueTable]) -> list[str]:
        """Return the due tables to announce now, unless a run of them is active."""
        self._waiting = {
            name: (since, succeeded)
            for name, (since, succeeded) in self._waiting.items()
            if name in due and not due[name].is_served and due[name].succeeded == succeeded
        }
        if self._clock() < self._next_at:
            return []
        wanted = (name for name, table in due.items() if self._tables[name].is_wanted(table))
        return list(itertools.islice(wanted, MAX_TABLES))

    def announced_before(self, names: Collection[str]) -> list[str]:
        """Return those of ``names`` that a run may serve: to ask for each would delay the others.

        That of a table that is announced for the first time is found by the task.
        """
        return [name for name in names if self._tables[name].has_begun]

    def announce(
        self, due: Mapping[str, DueTable], names: Collection[str], *, active: Collection[str]
    ) -> dict[str, JsonObject]:
        """Return the event of the tables ``names``, without tables with an active run."""
        now = self._clock()
        event: dict[str, JsonObject] = {}
        for name in names:
            table = due[name]
            self._waiting.setdefault(name, (now, table.succeeded))
            if name in active:
                self._tables[name].hold(table)
            else:
                self._tables[name].announce(table)
                event[name] = {"jobs": dict(table.jobs), "succeeded": dict(table.succeeded)}
        if event:
            self._next_at = now + EVENT_SECONDS
            for name in [n for n, table in self._tables.items() if n not in due and table.is_over]:
                del self._tables[name]
        return event

    def unstarted_tables(self) -> set[str]:
        """Return the tables that are due still, and that no run serves in spite of the events."""
        before = self._clock() - UNSTARTED_SECONDS
        return {name for name, (since, _) in self._waiting.items() if since <= before}


class Announcements:
    """Decides when due jobs are announced, and announced again.

    The first announcement is immediate, also by a trigger that has just started: it cannot know the
    announcements of an earlier trigger. Afterwards,

    - nothing is announced while a job of the table runs or is about to be tried again: the same run
      of the DAG goes on with the jobs that are due next;
    - a job that is due again although it succeeded since the last announcement is announced at
      once, and any job once all that were announced have succeeded: the run is done with them;
    - a merge that was not announced is announced at once as well: it comes first in a run, so that
      the run of an announcement without it may have passed it over already;
    - anything else is repeated after a pause, which doubles each time and counts from the last
      announcement or from when a run was last seen to serve the table: a job that fails again and
      again starts fewer and fewer runs;
    - an announcement that comes while a run of the table is active is held until that run has
      ended: it may serve the table yet, and a run that starts behind it would have nothing to do.
      The pause between two questions for it doubles until a job of the run ends, so that it delays
      the table by no more than the run has waited, and by at most :data:`LAST_REPEAT_SECONDS`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._announced_at: float | None = None
        self._succeeded: Mapping[str, int] = {}
        self._jobs: Collection[str] = ()
        self._pause = FIRST_REPEAT_SECONDS
        self._held_until = -math.inf
        self._hold = FIRST_HOLD_SECONDS
        self._held_with: Mapping[str, int] = {}

    @property
    def has_begun(self) -> bool:
        """True from the first announcement on."""
        return self._announced_at is not None

    @property
    def is_over(self) -> bool:
        """True after the longest pause: any due job would be announced now."""
        last = self._announced_at
        return last is None or self._clock() - last >= LAST_REPEAT_SECONDS

    def is_wanted(self, due: DueTable) -> bool:
        """Return whether to announce now, unless a run of the table is active."""
        now, last = self._clock(), self._announced_at
        if due.is_served:
            self._end_hold()
            if last is not None:
                self._announced_at = now
            return False
        if due.succeeded != self._held_with:
            self._end_hold()
        if now < self._held_until:
            return False
        return last is None or self._is_new(due) or now - last >= self._pause

    def announce(self, due: DueTable) -> None:
        """Note that the table is announced now."""
        repeats = self._announced_at is not None and not self._is_new(due)
        self._pause = min(2 * self._pause, LAST_REPEAT_SECONDS) if repeats else FIRST_REPEAT_SECONDS
        self._announced_at = self._clock()
        self._succeeded = dict(due.succeeded)
        self._jobs = tuple(due.jobs)
        self._end_hold()

    def hold(self, due: DueTable) -> None:
        """Note that a run of the table is active now."""
        self._held_with = dict(due.succeeded)
        self._held_until = self._clock() + self._hold
        self._hold = min(2 * self._hold, LAST_REPEAT_SECONDS)

    def _end_hold(self) -> None:
        self._held_until, self._hold = -math.inf, FIRST_HOLD_SECONDS

    def _is_new(self, due: DueTable) -> bool:
        """Return whether a run has served the announced jobs, or has passed over due ones."""
        if _FIRST_JOB in due.jobs and _FIRST_JOB not in self._jobs:
            return True
        before, latest = self._succeeded, due.succeeded
        served = {job for job in latest if latest[job] != before.get(job)}
        return not served.isdisjoint(due.jobs) or served.issuperset(self._jobs)
