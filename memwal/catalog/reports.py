"""Reports of running processes: the due jobs of tables, and the problems of Airflow.

The process that watches a table reports which of its jobs are due, when that changes. Airflow's API
server reports every few seconds the state that only Airflow's own database has. The page, the
command line, the metrics and the events read both here, so that all of them show the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from datetime import datetime

import sqlalchemy as sa

from memwal.boundary.public import public
from memwal.catalog.database import Database, database_time
from memwal.catalog.models import AirflowReportRow, DueJobRow, record_of
from memwal.catalog.records import AirflowProblem, AirflowReport, DueJob

_ONLY_ROW = 1


@public
class Reports:
    """Reports in the ``database`` of a catalog. Every call can raise ``StoreUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def due_jobs(self, table: str | None = None) -> list[DueJob]:
        """Return the due jobs of ``table``, or of all tables, by table and job."""
        query = sa.select(DueJobRow).order_by(DueJobRow.table, DueJobRow.job)
        if table is not None:
            query = query.where(DueJobRow.table == table)
        with self._database.reading() as session:
            return [record_of(DueJob, row) for row in session.scalars(query)]

    def record_due(self, table: str, due: Mapping[str, str]) -> None:
        """Replace the due jobs of ``table``: the limit that each has reached, by job."""
        of_table = DueJobRow.table == table
        with self._database.writing() as session:
            now = database_time(session)
            session.execute(sa.delete(DueJobRow).where(of_table, DueJobRow.job.not_in(list(due))))
            known = set(session.scalars(sa.select(DueJobRow.job).where(of_table)))
            for job, reason in due.items():
                if job in known:
                    continue
                # Another process that watches the table may have inserted it just now.
                with contextlib.suppress(sa.exc.IntegrityError), session.begin_nested():
                    session.add(DueJobRow(table=table, job=job, since=now, reason=reason))

    def airflow(self) -> AirflowReport | None:
        """Return the latest report of Airflow; None if there never was one."""
        with self._database.reading() as session:
            row = session.get(AirflowReportRow, _ONLY_ROW)
            if row is None:
                return None
            problems = tuple(
                AirflowProblem(**{**values, "since": datetime.fromisoformat(values["since"])})
                for values in row.report["problems"]
            )
            return AirflowReport(at=row.at, problems=problems)

    def record_airflow(self, problems: Collection[AirflowProblem]) -> None:
        """Replace the report of Airflow. Several API servers may do so: the last one counts."""
        content = {"problems": [problem.to_dict() for problem in problems]}
        with self._database.writing() as session:
            new = AirflowReportRow(id=_ONLY_ROW, at=database_time(session), report=content)
            # Another API server may have inserted it just now.
            with contextlib.suppress(sa.exc.IntegrityError), session.begin_nested():
                session.merge(new)
