"""The trigger that tells when a consumer of a table has changes to read."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from memwal.errors import MemWalError
from memwal.util.records import JsonObject

if TYPE_CHECKING:
    from memwal.table import Table

# Every process that parses a DAG with such an asset imports this module: reads import the rest.

POLL_SECONDS = 30.0
"""Pause between two polls of the consumer's token and of the table."""

REPEAT_SECONDS = 600.0
"""Pause after which changes are told again that the consumer has not committed."""

REPEAT_EXPIRED_SECONDS = 86_400.0
"""Pause after which the expiry of a consumer is told again: each time, a run fails."""


class TableChangedTrigger(BaseEventTrigger):
    """Fires when a table has changes that a consumer has not committed.

    The event has the tokens ``after`` and ``until`` of the feed, its number of ``rows``, and
    ``expired``. One event follows each commit, and more every :data:`REPEAT_SECONDS`: Airflow can
    lose an event, while a DAG is paused or no triggerer runs. A consumer that was not opened yet
    has the whole table to read; one that was dropped has nothing. Of one that expired, ``expired``
    is true, ``until`` and ``rows`` are None: the run that follows fails when it reads, with the
    error that says how to begin again.

    To count the rows, the triggerer reads the keys of all changes before each event, and no other
    column: some 0.2 s of a processor and 90 MB for a million changed rows that are not merged.
    Between events, a poll costs a read of the consumer's state, and a feed without changes if
    everything is committed.

    It holds no lease, claims nothing and stores nothing. A triggerer that wakes from a pause may
    tell the same changes as its successor: the second run of a DAG reads the remaining changes, or
    nothing.

    Parameters
    ----------
    table : str
        Name of the managed table.
    consumer : str
        Name of the consumer.
    """

    def __init__(self, *, table: str, consumer: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table
        self.consumer = consumer

    def serialize(self) -> tuple[str, JsonObject]:
        """Return the class path and the arguments that build an equal trigger elsewhere."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"table": self.table, "consumer": self.consumer}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each feed that is not empty. Never ends and never raises."""
        from memwal_airflow.triggers.readings import TableSource, open_table_async
        from memwal_airflow.version_compat import AirflowException

        told: tuple[str | None, ...] = ()  # The token after which changes were told.
        repeat_at = math.inf
        while True:
            if time.monotonic() >= repeat_at:
                told = ()
            try:
                table = await open_table_async(TableSource(table=self.table))
                found = await asyncio.to_thread(find_changes, table, self.consumer, told=told)
            except (MemWalError, OSError, AirflowException) as error:
                self.log.warning("Changes of %s are not known: %s", self.table, error)
                found = None
            if found is not None:
                pause = REPEAT_EXPIRED_SECONDS if found["expired"] else REPEAT_SECONDS
                told, repeat_at = (found["after"],), time.monotonic() + pause
                yield TriggerEvent(found)  # type: ignore[no-untyped-call]
            await asyncio.sleep(POLL_SECONDS)


def find_changes(
    table: Table, consumer: str, *, told: Collection[str | None] = ()
) -> JsonObject | None:
    """Return the tokens and the number of rows that a consumer has to read.

    None if there are none, or if its committed token is in ``told``. The keys of all changes are
    read to count them, but of a consumer that expired there is nothing to count. Raises
    MemWalError if the table cannot be read.
    """
    from memwal.feed.consumer_state import Phase, read_state

    state = read_state(table.location.store, consumer)
    if state is not None and state.phase is Phase.DROPPED:
        return None
    after = None if state is None else state.token
    if after in told:
        return None
    if state is not None and state.phase is Phase.EXPIRED:
        return {"after": after, "until": None, "rows": None, "expired": True}
    feed = table.changes(after, columns=list(table.primary_key))
    if feed.token == after:
        return None
    rows = sum(batch.num_rows for batch in feed.to_batches())
    if not rows:
        return None
    return {"after": after, "until": feed.token, "rows": rows, "expired": False}
