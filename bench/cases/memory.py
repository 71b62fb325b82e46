"""Peak memory beside the budget, while writing and while replaying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import tables
from common.measure import Line, Rival, Target, constant
from common.processes import run_child

import memwal
from memwal.writer.region_writer.options import WriterSettings

_BATCH = 1_000
# A default MemTable at the default size of the benchmarks, and smaller ones in a smoke test.
_MEMTABLE_BYTES_PER_ROW = (64 << 20) / 100_000
_LEAST_MEMTABLE_BYTES = 1 << 20
_BUDGETS_WRITTEN = 4
_BYTES_PER_WIDE_ROW = 600
_REPLAYED_PER_ROW = 10
_PADDING = 200
_MIB = 1 << 20


def writing(folder: Path, rows: int) -> Iterator[Line]:
    """Peak memory of a process that writes several times what its MemTables may hold."""
    options = _options(max(int(rows * _MEMTABLE_BYTES_PER_ROW), _LEAST_MEMTABLE_BYTES))
    written = _BUDGETS_WRITTEN * _budget(options) // _BYTES_PER_WIDE_ROW
    for indexed in (False, True):
        name = "with indexes" if indexed else "without indexes"
        table = tables.create_wide(folder / name.replace(" ", "-"), indexed=indexed)
        batch = min(_BATCH, written)
        task = {"do": "write", "rows": written, "batch": batch, "options": options}
        result = run_child("writing", {**task, "uri": table.uri})
        yield _line(
            "memory",
            f"peak memory of writes {name}",
            options,
            result,
            f"{written:,} rows of {tables.DIMENSIONS} floats in {result['seconds']:.1f} s",
        )


def replaying(folder: Path, rows: int) -> Iterator[Line]:
    """Time and peak memory of a claim that finds many unflushed rows in the log."""
    count = rows * _REPLAYED_PER_ROW
    table = tables.create_narrow(folder / "table")
    unbounded = memwal.WriterOptions(
        max_memtable_rows=count + 1, max_memtable_batches=count + 1, max_memtable_bytes=1 << 40
    )
    writer = tables.open_ours(table, unbounded)
    for start in range(0, count, _BATCH):
        writer.upsert(tables.narrow_rows(min(_BATCH, count - start), start, padding=_PADDING))
    writer.abort()
    stored = count * (_PADDING + 30)
    options = _options(max(stored // 12, _LEAST_MEMTABLE_BYTES))
    result = run_child("writing", {"do": "replay", "uri": table.uri, "options": options})
    yield _line(
        "replay",
        f"peak memory of a replay of {count:,} rows",
        options,
        result,
        f"{stored / _MIB:,.0f} MiB in {result['seconds']:.2f} s, "
        f"{count / result['seconds']:,.0f} rows/s",
    )


def _options(memtable_bytes: int) -> dict[str, int]:
    return {"max_memtable_bytes": memtable_bytes, "max_memtable_rows": 1 << 40}


def _budget(options: Mapping[str, Any]) -> int:
    chosen = WriterSettings.of(memwal.WriterOptions(**options), {})
    return (chosen.max_sealed_memtables + 1) * chosen.max_memtable_bytes


def _line(
    name: str, what: str, options: Mapping[str, Any], result: Mapping[str, Any], note: str
) -> Line:
    return Line(
        name=name,
        what=what,
        ours=constant((result["peak"] - result["baseline"]) / _MIB),
        other=constant(_budget(options) / _MIB),
        unit="MiB",
        against="budget of the MemTables",
        rival=Rival.LIMIT,
        target=Target(2.5),
        note=f"{note}; {result['baseline'] / _MIB:.0f} MiB before",
    )
