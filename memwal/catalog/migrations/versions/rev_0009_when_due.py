"""Runs start when something is due, and tables know how many regions they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

# Until now the default. Tables that have it follow the new default.
_EVERY_MINUTE = 60.0
_WINDOW = "sensor_timeout_seconds"
_WINDOW_DEFAULT = 60.0


def upgrade() -> None:
    """Rename the pause between looks, drop the window of a run, add the number of regions."""
    with op.batch_alter_table("managed_tables") as table:
        table.add_column(sa.Column("regions", sa.Integer(), nullable=True))
    _change_policies(_upgraded)


def downgrade() -> None:
    """Give the policies their earlier keys, and drop the number of regions."""
    _change_policies(_downgraded)
    with op.batch_alter_table("managed_tables") as table:
        table.drop_column("regions")


def _upgraded(policy: dict[str, Any]) -> dict[str, Any]:
    changed = {key: value for key, value in policy.items() if key != _WINDOW}
    if "sensor_poke_seconds" in changed:
        changed["poll_seconds"] = changed.pop("sensor_poke_seconds")
    if changed.get("schedule") == _EVERY_MINUTE:
        changed["schedule"] = "@due"
    return changed


def _downgraded(policy: dict[str, Any]) -> dict[str, Any]:
    changed = dict(policy)
    if "poll_seconds" in changed:
        changed["sensor_poke_seconds"] = changed.pop("poll_seconds")
        changed[_WINDOW] = _WINDOW_DEFAULT
    if changed.get("schedule") == "@due":
        changed["schedule"] = _EVERY_MINUTE
    return changed


def _change_policies(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    tables = sa.table(
        "managed_tables",
        sa.column("id", sa.Integer()),
        sa.column("policy", sa.JSON(none_as_null=True)),
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(tables.c.id, tables.c.policy)).all():
        policy = change(dict(row.policy))
        connection.execute(sa.update(tables).where(tables.c.id == row.id).values(policy=policy))
