"""An index of the runs that go on: a handful among all that ever were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_RUNNING = sa.text("state = 'running'")


def upgrade() -> None:
    """Add it."""
    op.create_index(
        "ix_job_runs_running",
        "job_runs",
        ["table_name"],
        sqlite_where=_RUNNING,
        postgresql_where=_RUNNING,
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_job_runs_running", "job_runs")
