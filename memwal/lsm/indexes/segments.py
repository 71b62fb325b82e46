"""Segments of an index: coverage, and the choice of segments to join.

``optimize_indices`` without a number of segments joins all that it can. For a scalar index that
rewrites the whole index after each merge. For a vector index it splits and joins partitions: the
index gets other centroids, while the generations keep the old ones. With a number it only adds a
segment over the new rows and joins it with that many of the newest segments; centroids, codebook,
bounds and rotation stay. Index builds therefore always pass a number. Even with a number, Lance
trains a vector index again if none of its rows exist any more: such an index is extended by a part,
as :mod:`memwal.jobs.index.job` builds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memwal.base_table.snapshot import BaseTable
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription, IndexSegmentDescription


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
    row is rewritten only about as often as the table doubles. Whatever their sizes, enough are
    joined that no more than ``max_segments`` remain, even if nothing is uncovered.
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
