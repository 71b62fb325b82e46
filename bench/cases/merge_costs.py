"""Cost of small merges, with default options, while something grows that they need not read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import numpy as np
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
from common.processes import merge_copy

from cases.merge_growth import make_table, write_rows
from memwal.jobs.merge.picker import Candidate, MergePicker, RegionSelection
from memwal.jobs.options import MergeOptions

_GROWTH = 16
_ROUNDS = 5
_MIB = 1 << 20
# At the default number of rows.
_ROWS = 2_000_000
_REGIONS = 10_000
_PLAN_SECONDS = 0.1
_MERGES = 3
# Of the rows.
_BACKLOG_PART = 80


def cost_lines(folder: Path, rows: int) -> Iterator[Line]:
    """The plan of a merge of many regions; merges of recent keys into ever larger base tables."""
    yield _plans(max(_REGIONS * rows // _ROWS, _GROWTH))
    count, base = max(rows // _BACKLOG_PART, 2), rows // 2
    for index in (True, False):
        yield from _merges(folder, base, count, index=index)


def _merges(folder: Path, rows: int, count: int, *, index: bool) -> Iterator[Line]:
    found: dict[int, list[dict[str, float]]] = {}
    for base in (rows, rows * _GROWTH):
        table = make_table(folder / "table", base, floats=1, index=index)
        random = np.random.default_rng(1)
        updates = base - 1 - random.choice(min(count, base), count // 2, replace=False)
        write_rows(table, np.concatenate([updates, np.arange(base, base + count // 2)]), 1)
        found[base] = [merge_copy(table.uri, {"do": "ours"}) for _ in range(rounds_of(_MERGES))]
        shutil.rmtree(table.uri)
    keys = "a B-tree on the key" if index else "no index on the key"
    for key, what, unit, scale in (
        ("bytes_read", "bytes read by a merge", "MB", 1e6),
        ("processor", "a merge", "s of a processor", 1),
    ):
        few, many = (
            Figure.of([max(sample[key] / scale, 1e-9) for sample in own]) for own in found.values()
        )
        yield Line(
            name="merge cost",
            what=f"{what} of recent keys into a base table 16 times larger, {keys}",
            ours=many,
            other=few,
            unit=unit,
            against="into the smaller one",
            rival=Rival.OURS,
            target=Target(1.2),
            note=(
                f"{count:,} rows into {rows:,} and {rows * _GROWTH:,}, default options: "
                f"exponent {exponent(many, few, _GROWTH):.2f}"
            ),
        )


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
