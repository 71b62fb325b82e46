"""Catch-up progress: the merged generations that each maintained index covers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import MEM_WAL_INDEX_NAME
from memwal.lsm.indexes.kinds import KINDS, kind_of
from memwal.lsm.indexes.segments import index_coverage
from memwal.lsm.indexes.unusable import unusable_indexes

_SYSTEM_PREFIX = "__lance_"


def maintained_index_names(base: BaseTable) -> tuple[str, ...]:
    """Return the names of the maintained indexes, in their order.

    Where all are maintained, these are the indexes of the kinds that Lance's own writer maintains:
    it leaves the others out.
    """
    if not base.details.maintain_all_indexes:
        return base.details.maintained_indexes
    return tuple(
        sorted(
            index.name
            for index in base.dataset.describe_indices()
            if kind_of(index).lance_maintains and not index.name.startswith(_SYSTEM_PREFIX)
        )
    )


def unmaintained_index_names(base: BaseTable) -> tuple[str, ...]:
    """Return the names of the other indexes that an index build extends, in alphabetic order.

    Left out are kinds that cannot be built here, and vector indexes without a model.
    """
    maintained = set(maintained_index_names(base))
    names = []
    for index in base.dataset.describe_indices():
        kind = kind_of(index)
        is_trained = not kind.is_vector or any(segment.fragment_ids for segment in index.segments)
        is_system = index.name.startswith(_SYSTEM_PREFIX)
        if index.name not in maintained and not is_system and is_trained and kind.refusal is None:
            names.append(index.name)
    return tuple(sorted(names))


def unmaintainable_index_names(base: BaseTable) -> tuple[str, ...]:
    """Return the indexes that the details name although Lance's own writer cannot maintain them."""
    kinds = {index.name: kind_of(index) for index in base.dataset.describe_indices()}
    return tuple(
        name
        for name in base.details.maintained_indexes
        if name in kinds and not kinds[name].lance_maintains
    )


def check_maintainable(base: BaseTable, names: Collection[str]) -> None:
    """Raise InvalidInputError if Lance's own writer cannot maintain one of the named indexes.

    Names of indexes that do not exist are ignored.
    """
    for index in base.dataset.describe_indices():
        kind = kind_of(index)
        if index.name in names and not kind.lance_maintains:
            supported = ", ".join(other.lance_name for other in KINDS if other.lance_maintains)
            raise InvalidInputError(
                f"index {index.name} of {base.location} is of kind {kind.lance_name}; Lance and "
                f"LanceDB could not write to the table if it were maintained ({supported} can be); "
                "leave it out: index builds extend it anyway"
            )


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


def with_complete_coverage(base: BaseTable) -> IndexDetails:
    """Return details in which each maintained index that covers all rows has caught up.

    All merged rows of a version are in its fragments, so an index that covers every fragment covers
    all merged generations. Indexes that are not believed are left out.
    """
    if not base.details.merged:
        return base.details
    maintained = set(maintained_index_names(base)) - set(unusable_indexes(base))
    complete = {
        index.name: dict(base.details.merged)
        for index in base.dataset.describe_indices()
        if index.name in maintained and not index_coverage(base, index).uncovered
    }
    return replace(base.details, catchup={**base.details.catchup, **complete})
