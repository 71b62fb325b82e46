"""What was done to the tables of a catalog, and how their backlog went."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import CursorResult, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from memwal.catalog.latest import LatestHistory, as_sample
from memwal.catalog.models import BacklogSampleRow, JobRunRow, ManagedTableRow, TableStateRow
from memwal.catalog.records import BacklogSample, Pruned, RunState, TableState
from memwal.maintenance.status import TableStatus


class History(LatestHistory):
    """Job runs and backlog samples: what was, beside what is registered."""

    def record_backlog(self, table: str, status: TableStatus) -> BacklogSample:
        """Keep the sums of a status as a sample of now, and the whole of it until the next.

        Parameters
        ----------
        table : str
            Name of the managed table.
        status : TableStatus
            Of all its regions.
        """
        row = BacklogSampleRow(
            table_name=table,
            at=datetime.now(UTC),
            generations=status.backlog_generations,
            rows=status.backlog_rows,
            bytes=status.backlog_bytes,
            wal_entries=status.unflushed_wal_entries,
            version=status.version,
            base_rows=status.base_rows,
            regions=len(status.regions),
            oldest_seconds=status.oldest_backlog_seconds,
            lag_generations=max((index.generations for index in status.indexes), default=None),
            lag_rows=max((index.rows or 0 for index in status.indexes), default=None),
            reclaimable_bytes=status.reclaimable_bytes,
        )
        with self._database.writing() as session:
            session.add(row)
            self._keep_state(session, table, row.at, status.to_dict())
            session.flush()
            return as_sample(row)

    def _keep_state(
        self, session: Session, table: str, at: datetime, status: dict[str, Any]
    ) -> None:
        """Replace the status of a table by a later one."""
        replaced = session.execute(
            update(TableStateRow)
            .where(TableStateRow.table_name == table)
            .values(at=at, status=status)
        )
        if not _count(replaced):
            # Somebody else may just have made it, with a status that is as new.
            with contextlib.suppress(IntegrityError), session.begin_nested():
                session.add(TableStateRow(table_name=table, at=at, status=status))

    def states(self, *, table: str | None = None) -> list[TableState]:
        """Return the latest status of every table that was ever looked at, by name.

        Parameters
        ----------
        table : str, optional
            Only this one.
        """
        query = select(TableStateRow).order_by(TableStateRow.table_name)
        if table is not None:
            query = query.where(TableStateRow.table_name == table)
        with self._database.reading() as session:
            return [
                TableState(
                    table=row.table_name, at=row.at, status=TableStatus.from_dict(row.status)
                )
                for row in session.scalars(query)
            ]

    def backlog_history(
        self, table: str, *, since: datetime | None = None, limit: int = 10_000
    ) -> list[BacklogSample]:
        """Return the latest samples, oldest first.

        Parameters
        ----------
        table : str
            Name of the table; it need not be registered any more.
        since : datetime, optional
            Aware; only samples from then on.
        limit : int, default 10,000
            Most samples to return; the newest are kept.
        """
        query = select(BacklogSampleRow).where(BacklogSampleRow.table_name == table)
        if since is not None:
            query = query.where(BacklogSampleRow.at >= since)
        query = query.order_by(BacklogSampleRow.at.desc(), BacklogSampleRow.id.desc()).limit(limit)
        with self._database.reading() as session:
            return [as_sample(row) for row in session.scalars(query)][::-1]

    def prune_history(
        self, table: str, *, runs_before: datetime, samples_before: datetime
    ) -> Pruned:
        """Forget old runs and samples of a table.

        The latest run that succeeded of each job stays: it tells when the job is due. So does the
        latest sample of a table that is registered: a backlog is not gone because nobody looks.

        Parameters
        ----------
        table : str
            Name of the table; it need not be registered any more.
        runs_before : datetime
            Aware; runs that ended before, or have said nothing since.
        samples_before : datetime
            Aware.
        """
        latest = (
            select(func.max(JobRunRow.id))
            .where(JobRunRow.table_name == table, JobRunRow.state == RunState.SUCCEEDED.value)
            .group_by(JobRunRow.job)
        )
        last_word = func.coalesce(
            JobRunRow.finished_at, JobRunRow.heartbeat_at, JobRunRow.started_at
        )
        with self._database.writing() as session:
            kept = list(session.scalars(latest))
            runs = session.execute(
                delete(JobRunRow)
                .where(JobRunRow.table_name == table, last_word < runs_before)
                .where(JobRunRow.id.not_in(kept))
            )
            newest = session.scalar(
                select(BacklogSampleRow.id)
                .join(ManagedTableRow, ManagedTableRow.name == BacklogSampleRow.table_name)
                .where(BacklogSampleRow.table_name == table)
                .order_by(BacklogSampleRow.at.desc(), BacklogSampleRow.id.desc())
                .limit(1)
            )
            old = delete(BacklogSampleRow).where(
                BacklogSampleRow.table_name == table, BacklogSampleRow.at < samples_before
            )
            if newest is not None:
                old = old.where(BacklogSampleRow.id != newest)
            samples = session.execute(old)
            return Pruned(runs=_count(runs), samples=_count(samples))


def _count(result: Any) -> int:
    return result.rowcount if isinstance(result, CursorResult) else 0
