"""Mapped classes of the catalog's database tables, private to this package."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from memwal.util.records import JsonObject

# Newest migration. Kept here so that opening a catalog does not load Alembic. A later one is called
# by its schema and the schema of the oldest program that may use it, such as "0003_0002": a program
# reads from the catalog alone whether it may use a schema that it does not know. A migration leaves
# its schema usable by programs of the schema before: it adds tables, and columns that are nullable
# or have a default of the server, and drops only tables and columns that the programs of the schema
# before no longer name. A dropped name is never reused with another meaning, and a program writes
# no value into a column that programs of the schema before cannot read.
HEAD_REVISION = "0001"

Record = TypeVar("Record")


class UtcDateTime(sa.TypeDecorator[datetime]):
    """Aware datetimes in UTC, on databases with and without time zones."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Convert to UTC, since SQLite drops the time zone."""
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: object, dialect: sa.Dialect) -> datetime | None:
        """Add the time zone that SQLite dropped."""
        if not isinstance(value, datetime):
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class MessageText(sa.TypeDecorator[str]):
    """Text of a message, which can hold any file name and so characters that databases refuse."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Replace zero bytes and lone surrogates."""
        if value is None:
            return None
        return value.replace("\0", "?").encode(errors="replace").decode()


class Base(DeclarativeBase):
    """Base of the mapped classes."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        datetime: UtcDateTime,
        JsonObject: sa.JSON(none_as_null=True),
    }


def record_of(kind: type[Record], row: Base, **computed: object) -> Record:
    """Build a dataclass from the columns that have the names of its fields, and ``computed``."""
    names = {field.name for field in fields(kind)} - computed.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(row, name) for name in names}, **computed)


class ManagedTableRow(Base):
    """A managed table."""

    __tablename__ = "managed_tables"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(63), unique=True)
    uri: Mapped[str] = mapped_column(sa.Text)
    storage_options_ref: Mapped[str | None] = mapped_column(sa.Text)
    policy: Mapped[JsonObject]
    owner: Mapped[str] = mapped_column(sa.String(200))
    enabled: Mapped[bool]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    mem_wal: Mapped[bool]
    regions: Mapped[int | None]


class TableFolderRow(Base):
    """A folder whose tables are registered."""

    __tablename__ = "table_folders"

    uri: Mapped[str] = mapped_column(sa.String(500), primary_key=True)
    storage_options_ref: Mapped[str | None] = mapped_column(sa.Text)
    policy: Mapped[JsonObject]
    owner: Mapped[str] = mapped_column(sa.String(200))
    enabled: Mapped[bool]


class JobRunRow(Base):
    """A run of a job. It names its table without a foreign key: runs outlast a registration."""

    __tablename__ = "job_runs"
    __table_args__ = (
        sa.Index(None, "table_name", "job", "started_at"),
        # Partial index: few runs are running, and every start of a run queries those of its table.
        sa.Index(
            "ix_job_runs_running",
            "table_name",
            sqlite_where=sa.text("state = 'running'"),
            postgresql_where=sa.text("state = 'running'"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    table: Mapped[str] = mapped_column("table_name", sa.String(63))
    job: Mapped[str] = mapped_column(sa.String(32))
    state: Mapped[str] = mapped_column(sa.String(16))
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    result: Mapped[JsonObject | None]
    error: Mapped[str | None] = mapped_column(MessageText)
    error_type: Mapped[str | None] = mapped_column(sa.String(32))
    external_id: Mapped[str | None] = mapped_column(sa.String(400))
    done: Mapped[int | None] = mapped_column(sa.BigInteger)
    total: Mapped[int | None] = mapped_column(sa.BigInteger)
    rows: Mapped[int | None] = mapped_column(sa.BigInteger)
    bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    version_before: Mapped[int | None] = mapped_column(sa.BigInteger)
    version_after: Mapped[int | None] = mapped_column(sa.BigInteger)
    lease_token: Mapped[int | None] = mapped_column(sa.BigInteger)
    heartbeat_at: Mapped[datetime | None]


class BacklogSampleRow(Base):
    """The backlog of a table at one moment."""

    __tablename__ = "backlog_samples"
    __table_args__ = (sa.Index(None, "table_name", "at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    table: Mapped[str] = mapped_column("table_name", sa.String(63))
    at: Mapped[datetime]
    generations: Mapped[int] = mapped_column(sa.BigInteger)
    rows: Mapped[int] = mapped_column(sa.BigInteger)
    bytes: Mapped[int] = mapped_column(sa.BigInteger)
    wal_entries: Mapped[int] = mapped_column(sa.BigInteger)
    version: Mapped[int | None] = mapped_column(sa.BigInteger)
    base_rows: Mapped[int | None] = mapped_column(sa.BigInteger)
    regions: Mapped[int | None] = mapped_column(sa.BigInteger)
    oldest_seconds: Mapped[float | None] = mapped_column(sa.Float(53))
    lag_generations: Mapped[int | None] = mapped_column(sa.BigInteger)
    lag_rows: Mapped[int | None] = mapped_column(sa.BigInteger)
    reclaimable_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    seen_at: Mapped[datetime | None]


class TableStateRow(Base):
    """The latest status of a table, with its regions and indexes."""

    __tablename__ = "table_states"

    table: Mapped[str] = mapped_column("table_name", sa.String(63), primary_key=True)
    at: Mapped[datetime]
    status: Mapped[JsonObject]
    probe: Mapped[JsonObject | None]


class LeaseRow(Base):
    """A lease. The row stays after the lease is released, so that its token never repeats."""

    __tablename__ = "leases"

    resource: Mapped[str] = mapped_column(sa.String(500), primary_key=True)
    token: Mapped[int] = mapped_column(sa.BigInteger)
    holder: Mapped[str] = mapped_column(sa.String(200))
    ttl_seconds: Mapped[float] = mapped_column(sa.Float(53))
    acquired_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]


class SkippedRegionRow(Base):
    """A region that merges skip until its next try."""

    __tablename__ = "skipped_regions"

    table: Mapped[str] = mapped_column("table_name", sa.String(63), primary_key=True)
    region_id: Mapped[str] = mapped_column(sa.String(36), primary_key=True)
    generation: Mapped[int] = mapped_column(sa.BigInteger)
    reason: Mapped[str] = mapped_column(MessageText)
    since: Mapped[datetime]
    attempts: Mapped[int]
    next_try_at: Mapped[datetime]


class FailedJobRow(Base):
    """A failed job of a table, or a failure to read its status, with the time of the next try."""

    __tablename__ = "failed_jobs"

    table: Mapped[str] = mapped_column("table_name", sa.String(63), primary_key=True)
    job: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    reason: Mapped[str] = mapped_column(MessageText)
    error_type: Mapped[str | None] = mapped_column(sa.String(32))
    since: Mapped[datetime]
    attempts: Mapped[int]
    next_try_at: Mapped[datetime]


class DueJobRow(Base):
    """A job of a table that is due, as the process that watches the table reported it."""

    __tablename__ = "due_jobs"

    table: Mapped[str] = mapped_column("table_name", sa.String(63), primary_key=True)
    job: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    since: Mapped[datetime]
    reason: Mapped[str] = mapped_column(MessageText)


class AirflowReportRow(Base):
    """The latest report of Airflow's API server: one row."""

    __tablename__ = "airflow_reports"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    report: Mapped[JsonObject]


class NotifiedEventRow(Base):
    """Latest notification sent to a channel about one subject of a table."""

    __tablename__ = "notified_events"

    channel: Mapped[str] = mapped_column(sa.String(100), primary_key=True)
    table: Mapped[str] = mapped_column("table_name", sa.String(63), primary_key=True)
    topic: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    subject: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(32))
    mark: Mapped[str] = mapped_column(sa.String(64))
    since: Mapped[datetime]
    sent_at: Mapped[datetime]
    open: Mapped[bool]


class ExternalObjectRow(Base):
    """An object whose creation this row decided. A staged object belongs to one row only."""

    __tablename__ = "external_objects"
    __table_args__ = (sa.UniqueConstraint("root", "staged"),)

    root: Mapped[str] = mapped_column(sa.String(500), primary_key=True)
    key: Mapped[str] = mapped_column(sa.String(300), primary_key=True)
    staged: Mapped[str] = mapped_column(sa.String(100))
    final: Mapped[bool]
    created_at: Mapped[datetime]
