"""Runs and failed jobs have the kind of their error."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_TABLES = ("job_runs", "failed_jobs")


def upgrade() -> None:
    """Add the kind of the error, which is unknown for earlier errors."""
    for name in _TABLES:
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("error_type", sa.String(32), nullable=True))


def downgrade() -> None:
    """Drop the kind of the error."""
    for name in _TABLES:
        with op.batch_alter_table(name) as table:
            table.drop_column("error_type")
