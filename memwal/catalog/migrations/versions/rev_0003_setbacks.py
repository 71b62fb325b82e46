"""Regions and jobs that are left alone for a while after a failure."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add two tables."""
    op.create_table(
        "held_regions",
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("region_id", sa.String(36), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("table_name", "region_id", name="pk_held_regions"),
    )
    op.create_table(
        "job_troubles",
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("table_name", "job", name="pk_job_troubles"),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("job_troubles")
    op.drop_table("held_regions")
