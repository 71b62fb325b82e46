"""Policy keys that set an option of a job have the name of that option."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_RENAMED = {
    "gc_index_age_seconds": "gc_index_grace_seconds",
    "version_retention_seconds": "gc_version_retention_seconds",
}


def upgrade() -> None:
    """Rename keys of the stored policies."""
    _rename(_RENAMED)


def downgrade() -> None:
    """Give the keys their earlier names."""
    _rename({new: old for old, new in _RENAMED.items()})


def _rename(names: dict[str, str]) -> None:
    tables = sa.table(
        "managed_tables",
        sa.column("id", sa.Integer()),
        sa.column("policy", sa.JSON(none_as_null=True)),
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(tables.c.id, tables.c.policy)).all():
        policy = {names.get(key, key): value for key, value in row.policy.items()}
        connection.execute(sa.update(tables).where(tables.c.id == row.id).values(policy=policy))
