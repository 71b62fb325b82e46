"""Regions that merges leave out are skipped regions; results name metrics and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_RESULT = {"figures": "metrics", "problems": "warnings", "held": "skipped_regions"}
_QUALITY = {"held": "skipped_regions"}

_PAGE = 1_000


def upgrade() -> None:
    """Rename the table, the notified condition, and the keys of stored results."""
    _rename_table("held_regions", "skipped_regions")
    _rename_condition("region_held", "region_skipped")
    _rename_keys(_RESULT, _QUALITY)


def downgrade() -> None:
    """Give them their earlier names."""
    _rename_keys(
        {new: old for old, new in _RESULT.items()}, {new: old for old, new in _QUALITY.items()}
    )
    _rename_condition("region_skipped", "region_held")
    _rename_table("skipped_regions", "held_regions")


def _rename_table(old: str, new: str) -> None:
    # Renamed, not copied: in PostgreSQL the new name keeps the privileges of the old one.
    op.rename_table(old, new)
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {new} RENAME CONSTRAINT pk_{old} TO pk_{new}")


def _rename_condition(old: str, new: str) -> None:
    events = sa.table(
        "notified_events", sa.column("kind", sa.String()), sa.column("mark", sa.String())
    )
    # The mark begins with the kind.
    op.execute(
        sa.update(events)
        .where(events.c.kind == old)
        .values(kind=new, mark=sa.func.replace(events.c.mark, old, new))
    )


def _rename_keys(names: Mapping[str, str], of_quality: Mapping[str, str]) -> None:
    runs = sa.table(
        "job_runs",
        sa.column("id", sa.Integer()),
        sa.column("result", sa.JSON(none_as_null=True)),
    )
    connection = op.get_bind()
    # In pages: a catalog keeps many runs.
    page = sa.select(runs.c.id, runs.c.result).order_by(runs.c.id).limit(_PAGE)
    last = 0
    while rows := connection.execute(page.where(runs.c.id > last)).all():
        last = rows[-1].id
        for row in rows:
            if row.result is None:
                continue
            result = _renamed(row.result, names)
            if isinstance(result.get("quality"), dict):
                result["quality"] = _renamed(result["quality"], of_quality)
            if result != row.result:
                connection.execute(sa.update(runs).where(runs.c.id == row.id).values(result=result))


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in values.items()}
