"""Policies that were written past memwal."""

from __future__ import annotations

from sqlalchemy import text

from memwal.catalog import Catalog


def spoil_policy(catalog: Catalog, table: str, policy: str) -> None:
    """Put a text in the place of the policy of a table."""
    with catalog.database.writing() as session:
        session.execute(
            text("UPDATE managed_tables SET policy = :policy WHERE name = :table"),
            {"policy": policy, "table": table},
        )
