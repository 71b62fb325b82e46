"""Policies by which nothing becomes due, and ones that were written past memwal."""

from sqlalchemy import text

from memwal.catalog import Catalog, Policy

IDLE = Policy(
    merge_at_generations=100,
    merge_at_age_seconds=1e9,
    index_at_age_seconds=1e9,
    snapshot_at_age_seconds=1e9,
    snapshot_at_regions=1000,
    gc_interval_seconds=1e9,
    gc_at_bytes=None,
    compact_min_fragments=None,
    late_seconds=1e9,
)
"""A policy by which nothing becomes due."""


def spoil_policy(catalog: Catalog, table: str, policy: str) -> None:
    """Put a text in the place of the policy of a table, or of the folder at this address."""
    with catalog.database.writing() as session:
        for rows, key in ("managed_tables", "name"), ("table_folders", "uri"):
            session.execute(
                text(f"UPDATE {rows} SET policy = :policy WHERE {key} = :table"),
                {"policy": policy, "table": table},
            )
