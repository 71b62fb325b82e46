"""Managed tables, job runs and backlog samples."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the three tables."""
    op.create_table(
        "managed_tables",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("storage_options_ref", sa.Text(), nullable=True),
        sa.Column("policy", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_managed_tables"),
        sa.UniqueConstraint("name", name="uq_managed_tables_name"),
    )
    op.create_table(
        "job_runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("external_id", sa.String(400), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_job_runs"),
    )
    op.create_index(
        "ix_job_runs_table_name_job_started_at", "job_runs", ["table_name", "job", "started_at"]
    )
    op.create_table(
        "backlog_samples",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("generations", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("wal_entries", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_backlog_samples"),
    )
    op.create_index("ix_backlog_samples_table_name_at", "backlog_samples", ["table_name", "at"])


def downgrade() -> None:
    """Drop them."""
    op.drop_table("backlog_samples")
    op.drop_table("job_runs")
    op.drop_table("managed_tables")
