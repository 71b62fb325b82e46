"""Retry backoff for regions that cannot be merged and for jobs that failed.

Every failure doubles the delay, from a minute up to six hours: a lasting failure costs next to
nothing, and a short one is over within minutes. The delays have jitter, so that regions and jobs
that failed together are not retried together for ever.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from memwal.boundary.public import public
from memwal.catalog.database import Database, database_time
from memwal.catalog.models import (
    DueJobRow,
    FailedJobRow,
    ManagedTableRow,
    SkippedRegionRow,
    TableStateRow,
    record_of,
)
from memwal.catalog.records import ErrorKind, describe_error, error_kind
from memwal.catalog.runs import forget_failure
from memwal.jobs.job import SkippedRegion
from memwal.util.records import JsonRecord

FIRST_DELAY = timedelta(minutes=1)
LONGEST_DELAY = timedelta(hours=6)

Row = TypeVar("Row", SkippedRegionRow, FailedJobRow)

_JITTER = 0.1
_REASON_LENGTH = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRegionRecord(JsonRecord):
    """A region that merges skip until its next try, as stored in the catalog."""

    table: str
    """Name of the managed table."""
    region_id: str
    """UUID as text."""
    generation: int
    """First generation that cannot be merged."""
    reason: str
    """Why it cannot be merged, and what to do."""
    since: datetime
    """When this generation failed first, in UTC."""
    attempts: int
    """Number of attempts."""
    next_try_at: datetime
    """In UTC."""
    waiting: bool
    """Whether ``next_try_at`` was in the future when the record was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedJob(JsonRecord):
    """A job of a table that failed; the other jobs of the table go on."""

    table: str
    """Name of the managed table."""
    job: str
    """The job; ``status`` when the status of the table could not be read, without which no job of
    the table is started; ``log`` when a log lacks an entry, and ``dag`` when Airflow could not
    build its DAG."""
    reason: str
    """As in :class:`SkippedRegionRecord`."""
    error_type: ErrorKind | None
    """Kind of the newest error; None if it is not recorded."""
    since: datetime
    """As in :class:`SkippedRegionRecord`."""
    attempts: int
    """As in :class:`SkippedRegionRecord`."""
    next_try_at: datetime
    """As in :class:`SkippedRegionRecord`."""
    waiting: bool
    """As in :class:`SkippedRegionRecord`."""


@public
class Backoffs:
    """Skipped regions and failed jobs in the ``database`` of a catalog.

    Every call can raise ``StoreUnavailableError``.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def skipped_regions(self, table: str | None = None) -> list[SkippedRegionRecord]:
        """Return the skipped regions of ``table``, or of all tables."""
        with self._database.reading() as session:
            tables = None if table is None else [table]
            return read_skipped_regions(session, tables, database_time(session))

    def skip_regions(self, table: str, regions: Collection[SkippedRegion]) -> None:
        """Skip regions until a next try, which every further failure delays.

        A region that is skipped at another generation than before starts with the first delay.
        """
        with self._database.writing() as session:
            now = database_time(session)
            # All callers lock the rows in one order, so that two of them cannot deadlock.
            for region in sorted(regions, key=lambda region: region.region_id):
                new = SkippedRegionRow(
                    table=table, region_id=region.region_id, generation=region.generation
                )
                row = _lock_row(session, new, (table, region.region_id), now)
                if row.generation != region.generation:
                    row.generation, row.since, row.attempts = region.generation, now, 0
                _record_attempt(row, region.reason, now)

    def clear_regions(self, table: str, regions: Collection[str]) -> None:
        """Delete the records of regions that were merged, or that no longer exist."""
        with self._database.writing() as session:
            session.execute(
                delete(SkippedRegionRow)
                .where(SkippedRegionRow.table == table)
                .where(SkippedRegionRow.region_id.in_(regions))
            )

    def retry_regions(
        self, table: str, regions: Collection[str] | None = None
    ) -> list[SkippedRegionRecord]:
        """Make skipped regions of ``table`` due for a try now, and return them.

        ``regions`` are UUIDs; all skipped regions by default.
        """
        query = select(SkippedRegionRow).where(SkippedRegionRow.table == table)
        if regions is not None:
            query = query.where(SkippedRegionRow.region_id.in_(regions))
        with self._database.writing() as session:
            now = database_time(session)
            rows = list(session.scalars(query))
            for row in rows:
                row.next_try_at = min(row.next_try_at, now)
            return [_region_record(row, now) for row in rows]

    def failed_jobs(self) -> list[FailedJob]:
        """Return the failed jobs of all tables."""
        with self._database.reading() as session:
            now = database_time(session)
            query = select(FailedJobRow).order_by(FailedJobRow.table, FailedJobRow.job)
            rows = session.scalars(query)
            return [_failed_job(row, now) for row in rows]

    def record_failure(self, table: str, job: str, error: BaseException | str) -> FailedJob:
        """Record a failure of a ``job`` of ``table``, and delay its next try.

        ``job`` is as of :class:`FailedJob`, ``error`` an error or one line without secrets; the
        newest is kept. While the next try is still in the future, a further failure, reported by
        another process, neither counts nor delays it.
        """
        with self._database.writing() as session:
            now = database_time(session)
            row = _lock_row(session, FailedJobRow(table=table, job=job), (table, job), now)
            reason, kind = describe_error(error)
            row.reason = reason[:_REASON_LENGTH]
            row.error_type = kind
            if row.next_try_at <= now:
                _record_attempt(row, reason, now)
            return _failed_job(row, now)

    def clear_failure(self, table: str, job: str) -> None:
        """Delete the failure record of a ``job`` of ``table``."""
        with self._database.writing() as session:
            forget_failure(session, table, job)

    def prune(self) -> None:
        """Delete the records and reports of tables that are no longer registered."""
        names = select(ManagedTableRow.name)
        with self._database.writing() as session:
            for row in (SkippedRegionRow, FailedJobRow, DueJobRow, TableStateRow):
                session.execute(delete(row).where(row.table.not_in(names)))


def read_skipped_regions(
    session: Session, tables: Collection[str] | None, now: datetime
) -> list[SkippedRegionRecord]:
    """Read the skipped regions of some tables, or of all, by table and region."""
    query = select(SkippedRegionRow).order_by(SkippedRegionRow.table, SkippedRegionRow.region_id)
    if tables is not None:
        query = query.where(SkippedRegionRow.table.in_(tables))
    return [_region_record(row, now) for row in session.scalars(query)]


def try_failed_jobs_now(session: Session, table: str) -> None:
    """Make the failed jobs of a table due for a try now."""
    now = database_time(session)
    session.execute(
        update(FailedJobRow)
        .where(FailedJobRow.table == table, FailedJobRow.next_try_at > now)
        .values(next_try_at=now)
    )


def retry_delay(attempts: int) -> timedelta:
    """Return the delay after this many failures: a minute, doubled up to six hours, with jitter."""
    doubled: timedelta = FIRST_DELAY * 2 ** min(max(attempts - 1, 0), 20)
    return min(doubled, LONGEST_DELAY) * random.uniform(1 - _JITTER, 1)  # noqa: S311


def _lock_row(session: Session, new: Row, key: tuple[str, str], now: datetime) -> Row:
    """Lock and return the row with a key until the end of the transaction; insert it if absent."""
    kind = type(new)
    # Another process may insert the row just before, and delete it again before it is locked.
    while (row := session.get(kind, key, with_for_update=True, populate_existing=True)) is None:
        new.reason, new.since, new.attempts, new.next_try_at = "", now, 0, now
        with contextlib.suppress(IntegrityError), session.begin_nested():
            session.add(new)
    return row


def _region_record(row: SkippedRegionRow, now: datetime) -> SkippedRegionRecord:
    return record_of(SkippedRegionRecord, row, waiting=row.next_try_at > now)


def _failed_job(row: FailedJobRow, now: datetime) -> FailedJob:
    waiting = row.next_try_at > now
    return record_of(FailedJob, row, waiting=waiting, error_type=error_kind(row.error_type))


def _record_attempt(row: SkippedRegionRow | FailedJobRow, reason: str, now: datetime) -> None:
    row.attempts += 1
    row.reason = reason[:_REASON_LENGTH]
    row.next_try_at = now + retry_delay(row.attempts)
