"""Cost of small merges, with default options, while something grows that they need not read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
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
from common.processes import merge_copy, run_child

import memwal
from cases.merge_growth import make_table, write_rows
from cases.merges import union_of_backlog
from memwal.jobs.merge.picker import Candidate, MergePicker, RegionSelection
from memwal.jobs.options import MergeOptions

_GROWTH = 16
_ROUNDS = 5
_MIB = 1 << 20
# At the default number of rows.
_ROWS = 2_000_000
_REGIONS = 10_000
_PLAN_SECONDS = 0.1
# Of the rows.
_BACKLOG_PART = 80
_FEW = (1, 100, 10_000, 100_000)


def cost_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Plans of many regions; merges of recent keys into ever larger tables, and of few rows."""
    yield _plans(max(_REGIONS * rows // _ROWS, _GROWTH))
    count, base = max(rows // _BACKLOG_PART, 2), rows // 2
    for index in (True, False):
        yield from _merges(folder, base, count, index=index)
        for few in _FEW:
            yield _beside_native(folder, base, min(few, base), index=index)


def _beside_native(folder: Path, rows: int, count: int, *, index: bool) -> Line:
    table = make_table(folder / "few", rows, floats=1, index=index)
    _write_recent(table, rows, count)
    union, _ = union_of_backlog(table, folder)
    native: dict[str, Any] = {"do": "union", "sources": [union], "use_index": True}
    tasks = {"ours": {"do": "ours"}, "native": native}
    # In turns, since the machine is not always as fast.
    samples = [
        {name: merge_copy(table.uri, task)["processor"] for name, task in tasks.items()}
        for _ in range(rounds_of(_ROUNDS))
    ]
    shutil.rmtree(table.uri)
    shutil.rmtree(union)
    ours, other = (Figure.of([sample[name] for sample in samples]) for name in tasks)
    return Line(
        name="merge cost",
        what=f"merge of {count:,} recent rows, {_keys(index)}",
        ours=ours,
        other=other,
        unit="s of a processor",
        against="merge_insert of the newest rows",
        target=Target(1.2),
        note=f"into {rows:,}, {_options(index)}",
    )


def _merges(folder: Path, rows: int, count: int, *, index: bool) -> Iterator[Line]:
    tables = {}
    for base in (rows, rows * _GROWTH):
        tables[base] = table = make_table(folder / str(base), base, floats=1, index=index)
        _write_recent(table, base, count)
        if not index:
            # It reads all keys, and stores their bounds.
            run_child("merging", {"do": "ours", "uri": table.uri})
            _write_recent(table, base + count // 2, count)
    # In turns, since the machine is not always as fast.
    samples = [
        {base: merge_copy(table.uri, {"do": "ours"}) for base, table in tables.items()}
        for _ in range(rounds_of(_ROUNDS))
    ]
    found = {base: [sample[base] for sample in samples] for base in tables}
    for table in tables.values():
        shutil.rmtree(table.uri)
    keys = _keys(index) if index else f"{_keys(index)}, after a first merge"
    for key, what, unit, scale in (
        ("bytes_read", "bytes read by a merge", "MB", 1e6),
        ("processor", "merge", "s of a processor", 1),
    ):
        few, many = (
            Figure.of([max(sample[key] / scale, 1e-9) for sample in own]) for own in found.values()
        )
        yield Line(
            name="merge cost",
            what=f"{what} of recent keys into a table 16 times larger, {keys}",
            ours=many,
            other=few,
            unit=unit,
            against="into the smaller one",
            rival=Rival.OURS,
            target=Target(1.2),
            note=(
                f"{count:,} rows into {rows:,} and {rows * _GROWTH:,}, {_options(index)}: "
                f"exponent {exponent(many, few, _GROWTH):.2f}"
            ),
        )


def _keys(index: bool) -> str:
    return "indexed key" if index else "unindexed key"


def _options(index: bool) -> str:
    return "default options, B-tree" if index else "default options"


def _write_recent(table: memwal.Table, rows: int, count: int) -> None:
    """Write rows: half of them replace recent ones, the others are new."""
    random = np.random.default_rng(1)
    new = -(-count // 2)
    updates = rows - 1 - random.choice(min(count, rows), count - new, replace=False)
    write_rows(table, np.concatenate([updates, np.arange(rows, rows + new)]), 1)


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
