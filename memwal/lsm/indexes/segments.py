"""Segments of an index: coverage, and the choice of segments to join.

``optimize_indices`` without a number joins everything it may. For a scalar index that rewrites the
whole index for each merge. For a vector index it splits and joins partitions: the index gets other
centroids, while the generations keep the old ones. With a number it only adds a segment over the
new rows and joins it with so many of the newest segments; centroids, codebook, bounds and rotation
stay. A number is therefore always given. Even with a number, a vector index of which no row is left
is trained again: such an index is extended by a part, as :mod:`memwal.jobs.index.parallel` builds
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memwal.base_table.snapshot import BaseTable

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription


@dataclass(frozen=True, slots=True)
class IndexCoverage:
    """Which rows of one version of the base table an index covers.

    Attributes
    ----------
    segments : tuple of int
        Rows that were written to the fragments of each segment, oldest segment first.
    uncovered : tuple of (int, int)
        Fragments that no segment covers, ascending, each with the rows written to it.
    """

    segments: tuple[int, ...]
    uncovered: tuple[tuple[int, int], ...]

    @property
    def uncovered_rows(self) -> int:
        """Rows that no segment covers."""
        return sum(rows for _, rows in self.uncovered)

    @property
    def is_void(self) -> bool:
        """Whether no fragment is left that a segment covers, while there are others."""
        return bool(self.uncovered) and not any(self.segments)


def describe_index(base: BaseTable, name: str) -> IndexDescription | None:
    """What Lance tells about an index; None when there is none of that name."""
    found: list[IndexDescription] = base.dataset.describe_indices()
    return next((description for description in found if description.name == name), None)


def index_coverage(base: BaseTable, description: IndexDescription) -> IndexCoverage:
    """Read off the manifest what an index covers; no request is sent."""
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
    """How many segments an index of this table may have.

    Where rows keep their ids when they change, a row that changed stands in an older segment as
    well as in the newest, and Lance lets both answer: a text, bitmap or label index of several
    segments finds it by what it no longer holds. There, one segment is all that is right.
    """
    return 1 if base.dataset.has_stable_row_ids else max_segments


def segments_to_join(coverage: IndexCoverage, *, max_segments: int) -> int:
    """How many of the newest segments the uncovered rows are to be joined with.

    As long as there is room, none: what was written stays. Then a segment is joined with all newer
    ones together if it is not larger than they are, so that a row is written again only about as
    often as the table doubles; and however large they are, at least so many that no more than
    ``max_segments`` are left.

    Returns
    -------
    int
        0 adds a segment. More joins the newest ones, also when nothing is uncovered.
    """
    sizes = coverage.segments
    added = 1 if coverage.uncovered else 0
    if len(sizes) + added <= max_segments:
        return 0
    least = len(sizes) + 1 - max_segments
    total, joined = coverage.uncovered_rows, 0
    for rows in reversed(sizes):
        if joined >= least and rows > total:
            break
        total += rows
        joined += 1
    return joined


def group_fragments(
    uncovered: Sequence[tuple[int, int]], *, groups: int
) -> tuple[tuple[int, ...], ...]:
    """Divide fragments into groups with about the same number of rows, the largest first.

    Returns
    -------
    tuple of tuple of int
        Fragments of each group, ascending; no group is empty.
    """
    count = min(groups, len(uncovered))
    members: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for number, rows in sorted(uncovered, key=lambda fragment: -fragment[1]):
        lightest = loads.index(min(loads))
        members[lightest].append(number)
        # A fragment without rows counts too, so that every group gets one.
        loads[lightest] += max(rows, 1)
    return tuple(tuple(sorted(group)) for group in members)
