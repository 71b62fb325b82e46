"""The latest status of every table, and what charts and alerts need of the earlier ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

COUNTS = ("version", "base_rows", "regions", "lag_generations", "lag_rows", "reclaimable_bytes")


def upgrade() -> None:
    """Add a table, and columns to the samples."""
    op.create_table(
        "table_states",
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("table_name", name="pk_table_states"),
    )
    with op.batch_alter_table("backlog_samples") as samples:
        for name in COUNTS:
            samples.add_column(sa.Column(name, sa.BigInteger(), nullable=True))
        samples.add_column(sa.Column("oldest_seconds", sa.Float(53), nullable=True))


def downgrade() -> None:
    """Drop them."""
    with op.batch_alter_table("backlog_samples") as samples:
        for name in (*COUNTS, "oldest_seconds"):
            samples.drop_column(name)
    op.drop_table("table_states")
