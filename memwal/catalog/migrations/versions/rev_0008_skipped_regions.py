"""Regions are skipped, jobs fail, results name metrics and warnings, status is a job's name."""

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
    """Rename the tables, the notified condition, and the words in stored values."""
    _rename_table("held_regions", "skipped_regions")
    _rename_table("job_troubles", "failed_jobs")
    _rename_condition("region_held", "region_skipped")
    _rename_job("failed_jobs", "look", "status")
    _rename_in_results(_RESULT, _QUALITY, {"hold": "skip"})
    _rename_in_policies({"hold": "skip"})


def downgrade() -> None:
    """Give them their earlier names."""
    _rename_in_policies({"skip": "hold"})
    _rename_in_results(
        {new: old for old, new in _RESULT.items()},
        {new: old for old, new in _QUALITY.items()},
        {"skip": "hold"},
    )
    _rename_job("failed_jobs", "status", "look")
    _rename_condition("region_skipped", "region_held")
    _rename_table("failed_jobs", "job_troubles")
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


def _rename_job(table: str, old: str, new: str) -> None:
    rows = sa.table(table, sa.column("job", sa.String()))
    op.execute(sa.update(rows).where(rows.c.job == old).values(job=new))


def _rename_in_results(
    names: Mapping[str, str], of_quality: Mapping[str, str], modes: Mapping[str, str]
) -> None:
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
                quality = _renamed(result["quality"], of_quality)
                result["quality"] = _with_mode(quality, modes)
            if result != row.result:
                connection.execute(sa.update(runs).where(runs.c.id == row.id).values(result=result))


def _rename_in_policies(modes: Mapping[str, str]) -> None:
    tables = sa.table(
        "managed_tables", sa.column("name", sa.String()), sa.column("policy", sa.JSON())
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(tables.c.name, tables.c.policy)).all():
        quality = row.policy.get("quality")
        if isinstance(quality, dict) and quality.get("mode") in modes:
            policy = {**row.policy, "quality": _with_mode(quality, modes)}
            connection.execute(
                sa.update(tables).where(tables.c.name == row.name).values(policy=policy)
            )


def _with_mode(quality: Mapping[str, Any], modes: Mapping[str, str]) -> dict[str, Any]:
    mode = str(quality.get("mode"))
    return {**quality, "mode": modes[mode]} if mode in modes else dict(quality)


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in values.items()}
