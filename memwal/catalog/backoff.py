"""Retry backoff for regions that cannot be merged and for jobs that failed.

Every further failure doubles the pause, so what stays broken costs next to nothing, and what
recovers is noticed within minutes. The pauses are a little uneven, so that what failed together is
not retried together for ever.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from memwal.catalog.database import Database, database_time
from memwal.catalog.models import HeldRegionRow, ManagedTableRow, TableStateRow, TroubleRow
from memwal.jobs.job import SkippedRegion

FIRST_PAUSE = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(hours=6)
LOOK = "look"
"""Stands among the jobs for the look at a table."""

Row = TypeVar("Row", HeldRegionRow, TroubleRow)

_UNEVEN = 0.1
_REASON_LENGTH = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecord:
    """A region that merges leave out.

    Attributes
    ----------
    table : str
        Name of the managed table.
    region_id : str
        UUID as text.
    generation : int
        The first one that cannot be merged.
    reason : str
        Why, and what to do.
    since : datetime
        When that generation failed first, in UTC.
    attempts : int
        How often it was tried.
    next_try_at : datetime
        In UTC.
    waiting : bool
        Whether that was still to come when it was looked at.
    """

    table: str
    region_id: str
    generation: int
    reason: str
    since: datetime
    attempts: int
    next_try_at: datetime
    waiting: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A job that failed; the others of its table go on.

    Attributes
    ----------
    table, job : str
        Which job of which managed table. :data:`LOOK` stands for the look at the table, without
        which nothing is done to it.
    reason, since, attempts, next_try_at, waiting
        As of :class:`HeldRecord`.
    """

    table: str
    job: str
    reason: str
    since: datetime
    attempts: int
    next_try_at: datetime
    waiting: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _plain(self)


class Setbacks:
    """The setbacks of a catalog. Every call can raise ``StoreUnavailableError``.

    Parameters
    ----------
    database : Database
        Where they are kept; of a catalog, :attr:`memwal.catalog.Catalog.setbacks`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def held(self, table: str | None = None) -> list[HeldRecord]:
        """Return the regions that are held, of one table or of all.

        Parameters
        ----------
        table : str, optional
            Name of a managed table; all by default.
        """
        query = select(HeldRegionRow).order_by(HeldRegionRow.table_name, HeldRegionRow.region_id)
        if table is not None:
            query = query.where(HeldRegionRow.table_name == table)
        with self._database.reading() as session:
            now = database_time(session)
            return [_held(row, now) for row in session.scalars(query)]

    def hold(self, table: str, regions: Iterable[SkippedRegion]) -> None:
        """Leave regions out until a time that is later the more often they were tried.

        A region that is held at another generation than before starts anew.
        """
        with self._database.writing() as session:
            now = database_time(session)
            # In one order, so that two of these never wait for each other.
            for region in sorted(regions, key=lambda region: region.region_id):
                new = HeldRegionRow(
                    table_name=table, region_id=region.region_id, generation=region.generation
                )
                row = _locked(session, new, (table, region.region_id), now)
                if row.generation != region.generation:
                    row.generation, row.since, row.attempts = region.generation, now, 0
                _again(row, region.reason, now)

    def release(self, table: str, regions: Collection[str]) -> None:
        """Forget that regions are held: they were merged, or are gone."""
        with self._database.writing() as session:
            session.execute(
                delete(HeldRegionRow)
                .where(HeldRegionRow.table_name == table)
                .where(HeldRegionRow.region_id.in_(regions))
            )

    def retry(self, table: str, regions: Collection[str] | None = None) -> list[HeldRecord]:
        """Make the next try of held regions due now, and return them; by default of all.

        Parameters
        ----------
        table : str
            Name of the managed table.
        regions : collection of str, optional
            UUIDs of regions; all that are held by default.
        """
        query = select(HeldRegionRow).where(HeldRegionRow.table_name == table)
        if regions is not None:
            query = query.where(HeldRegionRow.region_id.in_(regions))
        with self._database.writing() as session:
            now = database_time(session)
            rows = list(session.scalars(query))
            for row in rows:
                row.next_try_at = min(row.next_try_at, now)
            return [_held(row, now) for row in rows]

    def troubles(self) -> list[Trouble]:
        """Return the jobs in trouble, of all tables."""
        with self._database.reading() as session:
            now = database_time(session)
            query = select(TroubleRow).order_by(TroubleRow.table_name, TroubleRow.job)
            rows = session.scalars(query)
            return [_trouble(row, now) for row in rows]

    def failed(self, table: str, job: str, reason: str) -> Trouble:
        """Leave a job of a table alone until a time that is later the more often it failed.

        One that rests already, since somebody else met the same failure, does not rest longer.

        Parameters
        ----------
        table : str
            Name of the managed table.
        job : str
            A job, or ``look`` for the look at the table.
        reason : str
            What went wrong, in one line without secrets.
        """
        with self._database.writing() as session:
            now = database_time(session)
            row = _locked(session, TroubleRow(table_name=table, job=job), (table, job), now)
            if row.next_try_at <= now:
                _again(row, reason, now)
            return _trouble(row, now)

    def recovered(self, table: str, job: str) -> None:
        """Forget the trouble of a job.

        Parameters
        ----------
        table : str
            Name of the managed table.
        job : str
            A job, or ``look``.
        """
        with self._database.writing() as session:
            session.execute(
                delete(TroubleRow).where(TroubleRow.table_name == table, TroubleRow.job == job)
            )

    def prune(self) -> None:
        """Forget what concerns tables that are not registered any more."""
        names = select(ManagedTableRow.name)
        with self._database.writing() as session:
            session.execute(delete(HeldRegionRow).where(HeldRegionRow.table_name.not_in(names)))
            session.execute(delete(TroubleRow).where(TroubleRow.table_name.not_in(names)))
            session.execute(delete(TableStateRow).where(TableStateRow.table_name.not_in(names)))


def pause(attempts: int) -> timedelta:
    """How long to leave alone what failed so often: a minute, doubling up to six hours."""
    doubled: timedelta = FIRST_PAUSE * 2 ** min(max(attempts - 1, 0), 20)
    return min(doubled, LONGEST_PAUSE) * random.uniform(1 - _UNEVEN, 1)  # noqa: S311


def _locked(session: Session, new: Row, key: tuple[str, str], now: datetime) -> Row:
    """The row with a key, made if there is none; nobody else changes it meanwhile."""
    kind = type(new)
    row = session.get(kind, key, with_for_update=True)
    if row is None:
        new.reason, new.since, new.attempts, new.next_try_at = "", now, 0, now
        # Somebody else may just have made it.
        with contextlib.suppress(IntegrityError), session.begin_nested():
            session.add(new)
        row = session.get_one(kind, key, with_for_update=True, populate_existing=True)
    return row


def _again(row: HeldRegionRow | TroubleRow, reason: str, now: datetime) -> None:
    row.attempts += 1
    row.reason = reason[:_REASON_LENGTH]
    row.next_try_at = now + pause(row.attempts)


def _held(row: HeldRegionRow, now: datetime) -> HeldRecord:
    return HeldRecord(
        table=row.table_name,
        region_id=row.region_id,
        generation=row.generation,
        reason=row.reason,
        since=row.since,
        attempts=row.attempts,
        next_try_at=row.next_try_at,
        waiting=row.next_try_at > now,
    )


def _trouble(row: TroubleRow, now: datetime) -> Trouble:
    return Trouble(
        table=row.table_name,
        job=row.job,
        reason=row.reason,
        since=row.since,
        attempts=row.attempts,
        next_try_at=row.next_try_at,
        waiting=row.next_try_at > now,
    )


def _plain(record: HeldRecord | Trouble) -> dict[str, Any]:
    return {
        **asdict(record),
        "since": record.since.isoformat(),
        "next_try_at": record.next_try_at.isoformat(),
    }
