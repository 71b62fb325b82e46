"""What became of runs since somebody looked last, for those who count them."""

from __future__ import annotations

from sqlalchemy import func, or_, select

from memwal.catalog.database import Database, database_time
from memwal.catalog.models import JobRunRow
from memwal.catalog.records import JobRun, RunState
from memwal.catalog.run_history import as_run

# Runs that were still going on at the first look are found among so many of the latest.
_LOOK_BACK = 10_000
_ENDED = (RunState.SUCCEEDED.value, RunState.FAILED.value, RunState.ABANDONED.value)


class RunFeed:
    """Tells of every run that ended since the last look, once.

    A look reads by number of the run, so that it costs the same however long the history is. What
    ended before the first look is not told of.

    Parameters
    ----------
    database : Database
        Of a catalog, :attr:`memwal.catalog.Catalog.database`.
    late : int, default 200
        How many of the latest runs every look reads again. Numbers are given before they are seen:
        a run may turn up after others with higher ones.
    """

    def __init__(self, database: Database, *, late: int = 200) -> None:
        self._database = database
        self._late = late
        self._newest: int | None = None
        self._open: set[int] = set()
        self._told: set[int] = set()

    def ended(self) -> list[JobRun]:
        """Return the runs that ended since the last call; nothing at the first one.

        Raises
        ------
        StoreUnavailableError
            The database does not answer. Nothing is lost: the next call tells of it.
        """
        with self._database.reading() as session:
            first = self._newest is None
            newest = session.scalar(select(func.max(JobRunRow.id))) or 0
            start = newest - _LOOK_BACK if self._newest is None else self._newest - self._late
            found = session.execute(
                select(JobRunRow.id, JobRunRow.state).where(
                    or_(JobRunRow.id > start, JobRunRow.id.in_(self._open))
                )
            ).all()
            ended = {number for number, state in found if state in _ENDED}
            new = set() if first else ended - self._told
            rows = session.scalars(select(JobRunRow).where(JobRunRow.id.in_(new)))
            now = database_time(session)
            runs = sorted((as_run(row, now) for row in rows), key=lambda run: run.run_id)
        self._newest = max([newest, *(number for number, _ in found)])
        # A run that was pruned meanwhile is forgotten.
        self._open = {number for number, _ in found} - ended
        self._told = {n for n in self._told | ended if n > self._newest - self._late}
        return runs
