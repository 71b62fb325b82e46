"""Catch-up progress: the merged generations that each maintained index covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import MEM_WAL_INDEX_NAME


def maintained_index_names(base: BaseTable) -> tuple[str, ...]:
    """Return the names of the maintained indexes, in their order."""
    if base.details.maintain_all_indexes:
        return tuple(sorted(index_names(base)))
    return base.details.maintained_indexes


def index_names(base: BaseTable) -> set[str]:
    """Return the names of the base table's indexes over columns."""
    return {index.name for index in base.dataset.describe_indices()} - {MEM_WAL_INDEX_NAME}


def caught_up(base: BaseTable, index: str) -> Mapping[UUID, int]:
    """Return the newest merged generation that an index covers, for each region it covers."""
    return base.details.catchup.get(index, {})


def covers(base: BaseTable, index: str, target: Mapping[UUID, int]) -> bool:
    """Return whether an index covers these generations."""
    covered = caught_up(base, index)
    return all(covered.get(region_id, 0) >= generation for region_id, generation in target.items())


def with_empty_coverage(base: BaseTable, index: str) -> IndexDetails:
    """Return details in which an index covers everything merged, if there are no rows to cover."""
    if base.dataset.count_rows():
        return base.details
    return replace(base.details, catchup={**base.details.catchup, index: dict(base.details.merged)})
