"""Indexes of a table, their segments, and their catch-up: the merged generations that each covers.

``optimize_indices`` without a number of segments joins all that it can. For a scalar index that
rewrites the whole index after each merge. For a vector index it splits and joins partitions: the
index gets other centroids, while the generations keep the old ones. With a number it only adds a
segment over the new rows and joins it with that many of the newest segments; centroids, codebook,
bounds and rotation stay. Index builds therefore always pass a number. Even with a number, Lance
trains a vector index again if none of its rows exist any more: such an index is extended by a part,
as :mod:`memwal.jobs.index.job` builds them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import InvalidInputError
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import MEM_WAL_INDEX_NAME, SYSTEM_INDEX_PREFIX
from memwal.lsm.indexes.kinds import KINDS, kind_of
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription, IndexSegmentDescription


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
            if kind_of(index).lance_maintains and not index.name.startswith(SYSTEM_INDEX_PREFIX)
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
        is_system = index.name.startswith(SYSTEM_INDEX_PREFIX)
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


@dataclass(frozen=True, slots=True)
class CarriedCatchUp:
    """Catch-up of an index before a compaction, and the present places of the rows it covered.

    All rows of these generations that are still the newest are in fragments that the index covers.
    A compaction moves them to new fragments, and Lance moves them in the index. So the index has
    caught up as far if it covers all these fragments: whether it was built anew in the meantime or
    not, and independent of later merges. If one of the fragments is gone, another process has moved
    its rows, and nothing is known of them.
    """

    generations: Mapping[UUID, int]
    fragments: frozenset[int]

    @classmethod
    def of(cls, base: BaseTable) -> dict[str, CarriedCatchUp]:
        """Return that of each maintained index of a version, by name."""
        existing = frozenset(base.dataset.fragment_ids())
        names = set(maintained_index_names(base)) - set(unusable_indexes(base))
        return {
            index.name: cls(found, covered_fragments(index) & existing)
            for index in base.dataset.describe_indices()
            if index.name in names and (found := caught_up(base, index.name))
        }

    def after(self, rewritten: Iterable[tuple[frozenset[int], frozenset[int]]]) -> CarriedCatchUp:
        """Return it after old fragments were rewritten into new ones: pairs of their ids."""
        fragments = self.fragments
        for old, new in rewritten:
            if fragments & old:
                fragments = fragments - old | new
        return replace(self, fragments=fragments)


def covered_fragments(index: IndexDescription) -> frozenset[int]:
    """Return the fragments that the segments of an index cover."""
    return frozenset(number for segment in index.segments for number in segment.fragment_ids)


def with_carried_coverage(base: BaseTable, carried: Mapping[str, CarriedCatchUp]) -> IndexDetails:
    """Return details in which indexes have caught up with the rows they cover, or had before.

    As :func:`with_complete_coverage`, and each other index has its ``carried`` catch-up.
    """
    complete = with_complete_coverage(base)
    existing = frozenset(base.dataset.fragment_ids())
    unusable = unusable_indexes(base)
    kept = {}
    for index in base.dataset.describe_indices():
        before = carried.get(index.name)
        if before is None or index.name in unusable:
            continue
        if before.fragments <= existing & covered_fragments(index):
            recorded = complete.catchup.get(index.name, {})
            kept[index.name] = {
                **recorded,
                **{
                    region: generation
                    for region, generation in before.generations.items()
                    # A merge may have been taken back.
                    if recorded.get(region, 0) < generation <= base.details.merged.get(region, 0)
                },
            }
    return replace(complete, catchup={**complete.catchup, **kept})


@dataclass(frozen=True, slots=True)
class TableIndex:
    """Index over columns of a table."""

    name: str
    """Name of the index."""
    kind: str
    """Lance's name of its kind, such as ``BTree``, ``Inverted`` or ``IVF_PQ``."""
    columns: tuple[str, ...]
    """Columns that it is over."""
    maintained: bool
    """Generations carry it, and stay stored until it covers them."""


def list_indices(base: BaseTable) -> list[TableIndex]:
    """Return the indexes of a version of the base table, by name."""
    with lance_errors(f"listing the indexes of {base.location}"):
        maintained = set(maintained_index_names(base))
        names = index_names(base)
        described = base.dataset.describe_indices()
    return sorted(
        (
            TableIndex(
                index.name, index.index_type, tuple(index.field_names), index.name in maintained
            )
            for index in described
            if index.name in names
        ),
        key=lambda index: index.name,
    )


@dataclass(frozen=True, slots=True)
class IndexCoverage:
    """Rows of one version of the base table that an index covers, and that it does not."""

    segments: tuple[int, ...]  # rows written to the fragments of each segment, oldest segment first
    # Fragments that no segment covers, ascending, each with the rows written to it.
    uncovered: tuple[tuple[int, int], ...]

    @property
    def uncovered_rows(self) -> int:
        """Number of rows that no segment covers."""
        return sum(rows for _, rows in self.uncovered)

    @property
    def is_void(self) -> bool:
        """Return whether no covered fragment exists any more, while uncovered ones do."""
        return bool(self.uncovered) and not any(self.segments)


def describe_index(base: BaseTable, name: str) -> IndexDescription | None:
    """Return Lance's description of an index; None if there is none of that name."""
    descriptions: list[IndexDescription] = base.dataset.describe_indices()
    return next((description for description in descriptions if description.name == name), None)


def segment_location(base: BaseTable, segment: IndexSegmentDescription) -> TableLocation:
    """Return the table whose folder has the files of a segment: this, or one it is a clone of."""
    if segment.base_id is None:
        return base.location
    return base.location.beside(base.dataset.base_paths()[segment.base_id].path)


def index_coverage(base: BaseTable, description: IndexDescription) -> IndexCoverage:
    """Compute the coverage of an index from the manifest; sends no request."""
    rows = {
        fragment.fragment_id: int(fragment.metadata.physical_rows)
        for fragment in base.dataset.get_fragments()
    }
    covered = [set(segment.fragment_ids) for segment in description.segments]
    uncovered = sorted(set(rows).difference(*covered))
    return IndexCoverage(
        segments=tuple(sum(rows.get(number, 0) for number in numbers) for numbers in covered),
        uncovered=tuple((number, rows[number]) for number in uncovered),
    )


def segment_limit(base: BaseTable, max_segments: int) -> int:
    """Return how many segments an index of this table may have.

    With stable row ids, an updated row is in an older segment as well as in the newest, and Lance
    takes answers from both: a text, bitmap or label index of several segments finds the row by
    values that it no longer has. Only an index of one segment answers correctly then.
    """
    return 1 if base.dataset.has_stable_row_ids else max_segments


def segments_to_join(coverage: IndexCoverage, *, max_segments: int) -> int:
    """Return how many of the newest segments the uncovered rows are to be joined with.

    0 adds a segment, while the index stays within ``max_segments``: nothing is rewritten. Otherwise
    a segment is joined with all newer rows if it is not larger than they are together, so that a
    row is rewritten only about as often as the table doubles. Independent of their sizes, enough
    segments are joined that at most ``max_segments`` remain, even if nothing is uncovered.
    """
    sizes = coverage.segments
    added = 1 if coverage.uncovered else 0
    if len(sizes) + added <= max_segments:
        return 0
    min_joined = len(sizes) + 1 - max_segments
    total, joined = coverage.uncovered_rows, 0
    for rows in reversed(sizes):
        if joined >= min_joined and rows > total:
            break
        total += rows
        joined += 1
    return joined


def group_fragments(
    uncovered: Sequence[tuple[int, int]], *, groups: int
) -> tuple[tuple[int, ...], ...]:
    """Divide fragments into groups with about equal numbers of rows, largest fragment first.

    The fragments of each group are ascending, and no group is empty.
    """
    count = min(groups, len(uncovered))
    members: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for number, rows in sorted(uncovered, key=lambda fragment: -fragment[1]):
        lightest = loads.index(min(loads))
        members[lightest].append(number)
        # Count a fragment without rows as one row, so that every group gets a fragment.
        loads[lightest] += max(rows, 1)
    return tuple(tuple(sorted(group)) for group in members)
