"""Maintained indexes, and how far each has caught up with the merge progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import MEM_WAL_INDEX_NAME


def maintained_index_names(base: BaseTable) -> tuple[str, ...]:
    """Indexes that are to be kept up with merges."""
    if base.details.maintain_all_indexes:
        return tuple(sorted(index_names(base)))
    return base.details.maintained_indexes


def index_names(base: BaseTable) -> set[str]:
    """Names of the base table's indexes over columns."""
    return {index.name for index in base.dataset.describe_indices()} - {MEM_WAL_INDEX_NAME}


def caught_up(base: BaseTable, index: str) -> Mapping[UUID, int]:
    """Newest merged generation that an index covers, by region. No entry is no coverage."""
    return base.details.catchup.get(index, {})


def covers(base: BaseTable, index: str, target: Mapping[UUID, int]) -> bool:
    """Whether an index covers these generations."""
    covered = caught_up(base, index)
    return all(covered.get(region_id, 0) >= generation for region_id, generation in target.items())


def covers_nothing(base: BaseTable, index: str) -> IndexDetails:
    """Details that say that an index covers everything merged, if there are no rows to cover."""
    if base.dataset.count_rows():
        return base.details
    return replace(base.details, catchup={**base.details.catchup, index: dict(base.details.merged)})
