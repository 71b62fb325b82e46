"""What a collection by a table's policy would do now."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwal.maintenance.garbage import CollectionResult
    from memwal.maintenance.policy import Policy
    from memwal.table import Table


def would_collect(table: Table, policy: Policy) -> CollectionResult:
    """Decide what goes and what stays, with explanations, and delete nothing.

    Costs some requests to the store for each region.
    """
    age = policy.version_retention_seconds
    return table.collect_garbage(
        dry_run=True,
        explain=True,
        grace=timedelta(seconds=policy.gc_grace_seconds),
        retention=timedelta(seconds=policy.gc_retention_seconds),
        index_age=timedelta(seconds=policy.gc_index_age_seconds),
        base_versions=age is not None,
        version_age=None if age is None else timedelta(seconds=age),
    )
