"""Leases, progress of runs, objects that are created through the catalog, longer policies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_RENAMED = {"merge_max_bytes": "merge_commit_bytes"}
_OLD_POLICY_KEYS = frozenset(
    {
        "merge_at_generations",
        "merge_at_age_seconds",
        "merge_max_bytes",
        "schedule",
        "sensor_poke_seconds",
        "sensor_timeout_seconds",
        "gc_grace_seconds",
        "gc_retention_seconds",
        "tags",
        "priority",
    }
)
_RUN_COLUMNS = ("done", "total", "rows", "bytes", "version_before", "version_after", "lease_token")


def upgrade() -> None:
    """Add two tables and the columns of progress, and rename the keys of the stored policies."""
    op.create_table(
        "leases",
        sa.Column("resource", sa.String(500), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("ttl_seconds", sa.Float(53), nullable=False),
        sa.Column("acquired_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("resource", name="pk_leases"),
    )
    op.create_table(
        "external_objects",
        sa.Column("root", sa.String(500), nullable=False),
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("staged", sa.String(100), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("root", "key", name="pk_external_objects"),
        sa.UniqueConstraint("root", "staged", name="uq_external_objects_root"),
    )
    for name in _RUN_COLUMNS:
        op.add_column("job_runs", sa.Column(name, sa.BigInteger(), nullable=True))
    op.add_column("job_runs", sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True))
    _rename(_RENAMED)


def downgrade() -> None:
    """Drop what was added; what old policies do not know is forgotten."""
    _rename({new: old for old, new in _RENAMED.items()}, known=_OLD_POLICY_KEYS)
    for name in ("heartbeat_at", *_RUN_COLUMNS[::-1]):
        op.drop_column("job_runs", name)
    op.drop_table("external_objects")
    op.drop_table("leases")


def _rename(names: dict[str, str], *, known: frozenset[str] | None = None) -> None:
    tables = sa.table(
        "managed_tables",
        sa.column("id", sa.Integer()),
        sa.column("policy", sa.JSON(none_as_null=True)),
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(tables.c.id, tables.c.policy)).all():
        policy = {names.get(key, key): value for key, value in row.policy.items()}
        if known is not None:
            policy = {key: value for key, value in policy.items() if key in known}
        connection.execute(sa.update(tables).where(tables.c.id == row.id).values(policy=policy))
