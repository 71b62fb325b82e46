"""Merges in parts: beside ``merge_insert`` on one core, by more workers, and by many tasks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from common.measure import Figure, Line, Rival, Target, constant, rounds_of
from common.processes import merge_copy, run_child

import memwal
from cases.merges import union_of_backlog

_REGIONS = 8
_GENERATIONS = 2
_FLOATS = 16
# Of the rows of the base table: beside merge_insert, and where work is divided.
_BACKLOG_PART = 25
_LARGE_BACKLOG_PART = 5
# Of a table whose merge is divided, to that beside merge_insert.
_GROWTH = 2
_PIECE = 250_000
_FRAGMENT_ROWS = 1_000_000
_ROUNDS = 3
_TASKS = 64
_KINDS = {"integer keys": Target(1.0), "text keys of 32 characters": Target(1.2)}


def divided_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge a 25th of a base table of so many rows into it."""
    for kind, target in _KINDS.items():
        place = folder / kind.split()[0]
        place.mkdir()
        table = _table(place / "table", rows, text=kind != "integer keys")
        union, count = union_of_backlog(table, place)
        ours: dict[str, Any] = {"do": "ours", "divide_bytes": 0, "max_tasks": 2}
        native = {"do": "union", "sources": [union], "use_index": False}
        found: dict[str, list[dict[str, float]]] = {"ours": [], "native": []}
        for round_ in range(rounds_of(_ROUNDS)):
            sides = {"ours": ours, "native": native}
            for name in sides if round_ % 2 else reversed(sides):
                with _one_core():
                    found[name].append(merge_copy(table.uri, sides[name]))
        yield Line(
            name="divided",
            what=f"processor time of a merge in parts, {kind}",
            ours=Figure.of([sample["processor"] for sample in found["ours"]]),
            other=Figure.of([sample["processor"] for sample in found["native"]]),
            unit="s",
            against="merge_insert of the newest rows, one core each",
            target=target,
            note=f"{count:,} rows into {rows:,}",
        )
        shutil.rmtree(place)


def scaling_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge a fifth of a base table of twice as many rows into it, by more and more workers."""
    rows *= _GROWTH
    table = _table(folder / "table", rows, text=False, part=_LARGE_BACKLOG_PART)
    status = table.status()
    note = f"{status.backlog_rows:,} rows into {rows:,}"
    parts = {"do": "ours", "divide_bytes": 0, "max_tasks": 2}
    workers: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for round_ in range(rounds_of(_ROUNDS)):
        for number in workers if round_ % 2 else reversed(workers):
            workers[number].append(merge_copy(table.uri, {**parts, "workers": number}))
    yield Line(
        name="scaling",
        what="merge in parts by two workers",
        ours=Figure.of([sample["seconds"] for sample in workers[1]]),
        other=Figure.of([sample["seconds"] for sample in workers[2]]),
        unit="s by one",
        against="by two, a core each",
        rival=Rival.OURS,
        target=Target(1.7, at_least=True),
        note=f"{note}: by one {_stages(workers[1][0])}",
    )
    tasks = {"commit_bytes": -(-status.backlog_bytes // _TASKS), "max_tasks": _TASKS}
    many = merge_copy(table.uri, {**parts, **tasks})
    yield Line(
        name="scaling",
        what="all tasks of a merge in 64 parts, one after another",
        ours=constant(many["all_tasks"]),
        other=constant(many["critical_path"]),
        unit="s",
        against="the longest tasks and the driver",
        rival=Rival.OURS,
        target=Target(32, at_least=True),
        note=f"{many['tasks']:.0f} tasks: {_stages(many)}",
    )
    spark = {"uri": table.uri, "scratch": str(folder), "divided": True}
    found = run_child("spark_merging", {**spark, "rounds": rounds_of(_ROUNDS)})
    yield Line(
        name="scaling",
        what="merge in parts by two warm Spark workers",
        ours=Figure.of(found["one"]["seconds"]),
        other=Figure.of(found["two"]["seconds"]),
        unit="s by one",
        against="by two at once, a core each",
        rival=Rival.OURS,
        target=Target(1.6, at_least=True),
        note=found["two"]["what"],
    )


def _stages(sample: Mapping[str, Any]) -> str:
    rewrite, match = sample["stages"][:2]
    return f"{rewrite:.3g} s rewrite, {match:.3g} s match"


@contextmanager
def _one_core() -> Iterator[None]:
    """Let children have one core: Lance starts as many threads as there are."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _table(path: Path, rows: int, *, text: bool, part: int = _BACKLOG_PART) -> memwal.Table:
    """A base table, and a backlog of which half are updates and half are new rows."""
    schema = _rows(np.arange(1), text=text).schema
    starts = range(0, rows, _PIECE)
    made = (_rows(np.arange(s, min(s + _PIECE, rows)), text=text) for s in starts)
    batches = (batch for piece in made for batch in piece.to_batches())
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    lance.write_dataset(reader, str(path), schema=schema, max_rows_per_file=_FRAGMENT_ROWS)
    table = memwal.enable(
        str(path), region_spec=memwal.RegionSpec.bucket("id", _REGIONS), primary_key=["id"]
    )
    options = memwal.WriterOptions(max_memtable_rows=1 << 24, max_memtable_bytes=1 << 32)
    count = max(rows // part // _GENERATIONS, _REGIONS)
    random = np.random.default_rng(1)
    with table.writer(options=options) as writer:
        for number in range(_GENERATIONS):
            new = np.arange(rows + number * count, rows + number * count + count // 2)
            updates = random.choice(rows, min(count - len(new), rows), replace=False)
            writer.upsert(_rows(np.concatenate([updates, new]), text=text))
            writer.flush()
    return table


def _rows(numbers: np.ndarray, *, text: bool) -> pa.Table:
    keys = pa.array([f"{number:032x}" for number in numbers]) if text else pa.array(numbers)
    floats = np.random.default_rng(0).random(len(numbers) * _FLOATS, dtype=np.float32)
    key = pa.field("id", keys.type, nullable=False)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(floats), _FLOATS)
    return pa.table(
        [keys, pa.array(numbers % 1_000), vectors],
        schema=pa.schema([key, pa.field("n", pa.int64()), pa.field("vector", vectors.type)]),
    )
