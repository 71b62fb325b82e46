"""Divided merges while something grows: base table, backlog, rows, and commits of others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from common.measure import Figure, Line, Rival, Target, constant, rounds_of
from common.processes import merge_copy

import memwal
from cases.merges import union_of_backlog

_REGIONS = 8
_GROWTH = 4
_ROUNDS = 5
_MIB = 1 << 20
_PIECE_BYTES = 64 * _MIB
_SMALL_BACKLOG = 1_000
# Of the rows of the base table.
_BACKLOG_PART = 50
_FLOATS = 16
_WIDE_FLOATS = 1_536
_BACKLOGS = (1, 8, 64)
# Memory of a task, for each row of the base table.
_BUDGET_PER_ROW = 16
_ROWS_PER_HUGE_ROW = 10_000
_PARTS = {"divide_bytes": 0, "max_tasks": 2}


def growth_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge the same backlog into a table, and into one that is four times as large."""
    backlog = max(rows // _BACKLOG_PART, _REGIONS)
    recent, random = {}, {}  # type: dict[int, list[dict[str, float]]], dict[int, list[dict[str, float]]]
    for times in (1, _GROWTH):
        base = rows * times
        for kind, found in (("recent", recent), ("random", random)):
            table = make_table(folder / f"{kind}-{times}", base, floats=_FLOATS, index=True)
            numbers = np.random.default_rng(1)
            low = base - backlog if kind == "recent" else 0
            updates = numbers.choice(np.arange(low, base), backlog // 2, replace=False)
            write_rows(
                table, np.concatenate([updates, np.arange(base, base + backlog // 2)]), _FLOATS
            )
            found[times] = [
                merge_copy(table.uri, {"do": "ours", **_PARTS}) for _ in range(rounds_of(_ROUNDS))
            ]
            if kind == "recent" and times == 1:
                yield _beside_an_appender(table, found[times])
            shutil.rmtree(table.uri)
    for what, key, unit in (
        ("bytes read by a merge", "bytes_read", "KiB"),
        ("merge", "seconds", "s"),
    ):
        scale = 1 << 10 if key == "bytes_read" else 1
        yield Line(
            name="growth",
            what=f"{what} of recent keys into a table 4 times larger",
            ours=_figure(recent[_GROWTH], key, scale),
            other=_figure(recent[1], key, scale),
            unit=unit,
            against="into the smaller one",
            rival=Rival.OURS,
            target=Target(1.2),
            note=f"{backlog:,} rows into {rows:,} and {rows * _GROWTH:,}, B-tree on the key",
        )
    slower = _figure(random[_GROWTH], "seconds")
    per_million = slower.median / (rows * _GROWTH / 1e6)
    yield Line(
        name="growth",
        what="merge of random keys into a table 4 times larger",
        ours=slower,
        other=_figure(random[1], "seconds"),
        unit="s",
        against="into the smaller one",
        rival=Rival.OURS,
        target=Target(_GROWTH),
        note=f"{per_million:.3g} s for each million keys of the larger",
    )
    yield _small(folder, rows)


def task_memory_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Peak memory of a task while the backlog grows, and of one that merges wide rows."""
    budget = rows * _BUDGET_PER_ROW
    bytes_per_row = 4 * 256
    for times in _BACKLOGS:
        table = make_table(folder / f"backlog-{times}", max(rows // 20, 1), floats=256)
        write_rows(table, np.arange(max(times * budget // bytes_per_row, _REGIONS)), 256)
        sample = merge_copy(table.uri, {"do": "ours", **_PARTS, "commit_bytes": budget})
        shutil.rmtree(table.uri)
        yield _peak(sample, budget, f"peak memory of merge tasks, backlog of {times} tasks")
    table = make_table(folder / "wide", rows // 2, floats=_WIDE_FLOATS)
    write_rows(table, np.arange(0, rows // 2, 5), _WIDE_FLOATS)
    budget = rows * 128
    waiting = table.status().backlog_bytes
    sample = merge_copy(table.uri, {"do": "ours", **_PARTS, "commit_bytes": budget})
    note = f"{rows // 10:,} rows into {rows // 2:,}, tasks of {budget // _MIB} MiB"
    yield Line(
        name="task memory",
        what="commits with rows of 1,536 floats",
        ours=constant(sample["commits"]),
        other=constant(1),
        unit="commits",
        against="limit",
        rival=Rival.LIMIT,
        target=Target(1),
        note=note,
    )
    yield Line(
        name="task memory",
        what="bytes written by a merge of rows of 1,536 floats",
        ours=constant(sample["bytes_written"] / _MIB),
        other=constant(waiting / _MIB),
        unit="MiB",
        against="bytes of its backlog",
        rival=Rival.OURS,
        target=Target(1.1),
        note=note,
    )
    yield _peak(sample, budget, "peak memory of a merge of rows of 1,536 floats")
    shutil.rmtree(table.uri)
    yield _huge(folder, max(rows // _ROWS_PER_HUGE_ROW, _REGIONS))


def _huge(folder: Path, count: int) -> Line:
    """Peak memory of a merge of rows of 1 MiB, with default options."""
    table = make_table(folder / "huge", 1, floats=_MIB // 4)
    write_rows(table, np.arange(count), _MIB // 4)
    samples = [merge_copy(table.uri, {"do": "ours"}) for _ in range(rounds_of(_ROUNDS))]
    shutil.rmtree(table.uri)
    peaks = [(sample["peak"] - sample["baseline"]) / _MIB for sample in samples]
    return Line(
        name="task memory",
        what=f"peak memory of a merge of {count:,} rows of 1 MiB",
        ours=Figure.of(peaks),
        other=constant(count),
        unit="MiB",
        against="bytes of the rows",
        rival=Rival.LIMIT,
        target=Target(1.5),
        note=f"{_REGIONS} regions, default options",
    )


def _peak(sample: Mapping[str, float], budget: int, what: str) -> Line:
    return Line(
        name="task memory",
        what=what,
        ours=constant((sample["peak"] - sample["baseline"]) / _MIB),
        other=constant(budget / _MIB),
        unit="MiB",
        against="`commit_bytes`",
        rival=Rival.LIMIT,
        target=Target(1.5),
        note=f"{sample['tasks']:.0f} tasks, one after another",
    )


def _beside_an_appender(table: memwal.Table, alone: list[dict[str, float]]) -> Line:
    beside = [
        merge_copy(table.uri, {"do": "ours", **_PARTS, "appends": True})
        for _ in range(rounds_of(_ROUNDS))
    ]
    return Line(
        name="growth",
        what="a merge beside a process that appends ten times a second",
        ours=_figure(beside, "seconds"),
        other=_figure(alone, "seconds"),
        unit="s",
        against="alone",
        rival=Rival.OURS,
        target=Target(1.3),
        note="without the import of lance_namespace, 0.8 s once a process after a lost race",
    )


def _small(folder: Path, rows: int) -> Line:
    """A backlog that is not divided."""
    table = make_table(folder / "small", rows, floats=_FLOATS, index=True)
    keys = np.random.default_rng(2).choice(rows, min(_SMALL_BACKLOG, rows) // 2, replace=False)
    write_rows(table, np.concatenate([keys, np.arange(rows, rows + len(keys))]), _FLOATS)
    union, count = union_of_backlog(table, folder)
    native: dict[str, Any] = {"do": "union", "sources": [union], "use_index": True}
    ours = [merge_copy(table.uri, {"do": "ours"}) for _ in range(rounds_of(_ROUNDS))]
    other = [merge_copy(table.uri, native) for _ in range(rounds_of(_ROUNDS))]
    shutil.rmtree(table.uri)
    return Line(
        name="growth",
        what="a small merge",
        ours=_figure(ours, "seconds"),
        other=_figure(other, "seconds"),
        unit="s",
        against="merge_insert of the newest rows, through its index",
        target=Target(1.1),
        note=f"{count:,} rows into {rows:,}",
    )


def _figure(samples: list[dict[str, float]], key: str, scale: float = 1) -> Figure:
    return Figure.of([max(sample[key], 1e-9) / scale for sample in samples])


def make_table(path: Path, rows: int, *, floats: int, index: bool = False) -> memwal.Table:
    """Make a base table of keys from 0 on."""
    piece = max(_PIECE_BYTES // (4 * floats), 1)
    made = (_rows(np.arange(at, min(at + piece, rows)), floats) for at in range(0, rows, piece))
    schema = _rows(np.arange(1), floats).schema
    batches = (batch for part in made for batch in part.to_batches())
    dataset = lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), str(path))
    if index:
        dataset.create_scalar_index("id", "BTREE", name="id_idx")
    return memwal.enable(
        str(path), region_spec=memwal.RegionSpec.bucket("id", _REGIONS), primary_key=["id"]
    )


def write_rows(table: memwal.Table, numbers: np.ndarray, floats: int) -> None:
    """Write rows with these keys, as many generations as their bytes need."""
    piece = max(_PIECE_BYTES // (4 * floats), 1)
    with table.writer() as writer:
        for at in range(0, len(numbers), piece):
            writer.upsert(_rows(numbers[at : at + piece], floats))


def _rows(numbers: np.ndarray, floats: int) -> pa.Table:
    values = np.random.default_rng(0).random(len(numbers) * floats, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), floats)
    key = pa.field("id", pa.int64(), nullable=False)
    return pa.table(
        [pa.array(numbers), pa.array(numbers % 1_000), vectors],
        schema=pa.schema([key, pa.field("n", pa.int64()), pa.field("vector", vectors.type)]),
    )
