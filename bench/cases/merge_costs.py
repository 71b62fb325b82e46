"""Cost of small merges, with default options, while something grows that they need not read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

from common.measure import (
    Figure,
    Line,
    Rival,
    Target,
    constant,
    exponent,
    processor_seconds,
    rounds_of,
)

from memwal.jobs.merge.picker import Candidate, MergePicker, RegionSelection
from memwal.jobs.options import MergeOptions

_GROWTH = 16
_ROUNDS = 5
_MIB = 1 << 20
# At the default number of rows.
_ROWS = 2_000_000
_REGIONS = 10_000
_PLAN_SECONDS = 0.1


def cost_lines(folder: Path, rows: int) -> Iterator[Line]:
    """The plan of a merge of many regions."""
    yield _plans(max(_REGIONS * rows // _ROWS, _GROWTH))


def _plans(most: int) -> Line:
    picker = MergePicker(MergeOptions())
    found = {}
    for count in (most // _GROWTH, most):
        regions = [
            RegionSelection(UUID(int=number), (Candidate(1, "folder", _MIB + number),))
            for number in range(count)
        ]
        pick = partial(picker.pick, regions, seed=0)
        found[count] = Figure.of([processor_seconds(pick) for _ in range(rounds_of(_ROUNDS))])
    few, many = found.values()
    return Line(
        name="merge cost",
        what=f"plan of a merge of {most:,} regions",
        ours=many,
        other=constant(_PLAN_SECONDS),
        unit="s of a processor",
        against="limit",
        rival=Rival.LIMIT,
        target=Target(1.0),
        note=(
            f"{few.median:.2g} s for {most // _GROWTH:,} regions: "
            f"exponent {exponent(many, few, _GROWTH):.2f}"
        ),
    )
