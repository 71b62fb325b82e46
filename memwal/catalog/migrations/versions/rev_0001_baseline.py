"""Baseline: all tables of the catalog."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_RUNNING = sa.text("state = 'running'")
_RUN_COUNTS = ("done", "total", "rows", "bytes", "version_before", "version_after", "lease_token")
_SAMPLE_COUNTS = ("generations", "rows", "bytes", "wal_entries")
_OPTIONAL_SAMPLE_COUNTS = (
    "version",
    "base_rows",
    "regions",
    "lag_generations",
    "lag_rows",
    "reclaimable_bytes",
)


def upgrade() -> None:
    """Create the tables."""
    _create_tables()
    _create_runs()
    _create_states()
    _create_failures()
    _create_coordination()


def _create_tables() -> None:
    op.create_table(
        "managed_tables",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("storage_options_ref", sa.Text(), nullable=True),
        _json("policy"),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        _time("created_at"),
        _time("updated_at"),
        sa.Column("regions", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_managed_tables"),
        sa.UniqueConstraint("name", name="uq_managed_tables_name"),
    )


def _create_runs() -> None:
    op.create_table(
        "job_runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        _time("started_at"),
        _time("finished_at", nullable=True),
        _json("result", nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_type", sa.String(32), nullable=True),
        sa.Column("external_id", sa.String(400), nullable=True),
        *(_count(name, nullable=True) for name in _RUN_COUNTS),
        _time("heartbeat_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_job_runs"),
    )
    op.create_index(
        "ix_job_runs_table_name_job_started_at", "job_runs", ["table_name", "job", "started_at"]
    )
    op.create_index(
        "ix_job_runs_running",
        "job_runs",
        ["table_name"],
        sqlite_where=_RUNNING,
        postgresql_where=_RUNNING,
    )


def _create_states() -> None:
    op.create_table(
        "backlog_samples",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("table_name", sa.String(63), nullable=False),
        _time("at"),
        *(_count(name) for name in _SAMPLE_COUNTS),
        *(_count(name, nullable=True) for name in _OPTIONAL_SAMPLE_COUNTS),
        sa.Column("oldest_seconds", sa.Float(53), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_backlog_samples"),
    )
    op.create_index("ix_backlog_samples_table_name_at", "backlog_samples", ["table_name", "at"])
    op.create_table(
        "table_states",
        sa.Column("table_name", sa.String(63), nullable=False),
        _time("at"),
        _json("status"),
        sa.PrimaryKeyConstraint("table_name", name="pk_table_states"),
    )


def _create_failures() -> None:
    op.create_table(
        "skipped_regions",
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("region_id", sa.String(36), nullable=False),
        _count("generation"),
        sa.Column("reason", sa.Text(), nullable=False),
        _time("since"),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _time("next_try_at"),
        sa.PrimaryKeyConstraint("table_name", "region_id", name="pk_skipped_regions"),
    )
    op.create_table(
        "failed_jobs",
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error_type", sa.String(32), nullable=True),
        _time("since"),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _time("next_try_at"),
        sa.PrimaryKeyConstraint("table_name", "job", name="pk_failed_jobs"),
    )
    op.create_table(
        "notified_events",
        sa.Column("channel", sa.String(100), nullable=False),
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("topic", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("mark", sa.String(64), nullable=False),
        _time("since"),
        _time("sent_at"),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint(
            "channel", "table_name", "topic", "subject", name="pk_notified_events"
        ),
    )


def _create_coordination() -> None:
    op.create_table(
        "leases",
        sa.Column("resource", sa.String(500), nullable=False),
        _count("token"),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("ttl_seconds", sa.Float(53), nullable=False),
        _time("acquired_at"),
        _time("expires_at", nullable=True),
        sa.PrimaryKeyConstraint("resource", name="pk_leases"),
    )
    op.create_table(
        "external_objects",
        sa.Column("root", sa.String(500), nullable=False),
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("staged", sa.String(100), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        _time("created_at"),
        sa.PrimaryKeyConstraint("root", "key", name="pk_external_objects"),
        sa.UniqueConstraint("root", "staged", name="uq_external_objects_root"),
    )


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _count(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=nullable)
