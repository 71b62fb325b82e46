"""Baseline: all tables of the catalog.

They follow the mapped classes until the first release, which writes them out here: from then on a
changed class needs a migration of its own.
"""

from __future__ import annotations

from alembic import op

from memwal.catalog.models import Base

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    Base.metadata.create_all(op.get_bind())
