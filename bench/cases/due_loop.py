"""The loop of the trigger that announces due tables, in this process, and a simulated week."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from common.measure import Line, Rival, Target, constant
from memwal_airflow.triggers.due import POLL_SECONDS, Announcer
from memwal_airflow.triggers.due_tables import DueTables
from support.airflow.week import DAY, Week

from memwal.catalog import Catalog


async def statements_per_second(
    catalog: Catalog, count: int, are_due: bool, seconds: float
) -> float:
    """Return the statements a second of the trigger's loop, once it has read all tables."""
    tables, announcer, executed = DueTables(catalog=catalog), Announcer(), [0]

    def note(*_: object) -> None:
        executed[0] += 1

    async def turn() -> int:
        found = await tables.poll()
        announcer.announce(found, announcer.wanted_tables(found), active=())
        await tables.record_unstarted(announcer.unstarted_tables())
        await tables.wait(POLL_SECONDS)
        return len(found)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        found = 0
        while found < count:
            due = await turn()
            found = due if are_due else len(catalog.latest_samples())
        executed[0], started = 0, time.monotonic()
        while time.monotonic() - started < seconds:
            await turn()
        return executed[0] / (time.monotonic() - started)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
        tables.close()


def week(folder: Path, arguments: argparse.Namespace) -> Iterator[Line]:
    """Simulate days of runs, and count those that did nothing."""
    found = Week(seed=1).run(arguments.days * DAY)
    yield Line(
        name="airflow week",
        what=f"runs that had work, of {arguments.days:g} simulated days",
        ours=constant(100 - 100 * found.idle_runs / found.runs),
        other=constant(100.0),
        unit="%",
        against="a limit",
        rival=Rival.LIMIT,
        target=Target(1, at_least=True),
        note=f"{found.runs} runs, {found.idle_runs} without; a due table waited for "
        f"{found.longest_wait:.0f} s at most",
    )
