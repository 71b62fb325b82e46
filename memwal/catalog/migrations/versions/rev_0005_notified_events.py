"""Sent notifications, so that each is sent once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add a table."""
    op.create_table(
        "notified_events",
        sa.Column("channel", sa.String(100), nullable=False),
        sa.Column("table_name", sa.String(63), nullable=False),
        sa.Column("topic", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("mark", sa.String(64), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint(
            "channel", "table_name", "topic", "subject", name="pk_notified_events"
        ),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("notified_events")
