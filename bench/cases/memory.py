"""Peak memory beside the budget, while writing and while replaying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import tables
from common.measure import Line, Rival, Target, constant, exponent
from common.processes import run_child

import memwal
from memwal.writer.region_writer.options import WriterSettings

_BATCH = 1_000
# A default MemTable at the default size of the benchmarks, and smaller ones in a smoke test.
_MEMTABLE_BYTES_PER_ROW = (64 << 20) / 100_000
_LEAST_MEMTABLE_BYTES = 1 << 20
_BUDGETS_WRITTEN = 4
_BATCHES_PER_BUDGET = 10
_BYTES_PER_WIDE_ROW = 600
_REPLAYED_PER_ROW = 10
_PADDING = 200
_MIB = 1 << 20
# Rows of 1 MiB at the default size of the benchmarks.
_WIDE_BYTES_PER_ROW = _MIB / 100_000
_GROWTH = 16


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
    yield _wide(folder, options, max(int(rows * _WIDE_BYTES_PER_ROW), _GROWTH))


def _wide(folder: Path, options: dict[str, int], width: int) -> Line:
    """Peak memory of writes of wide rows, and of as many bytes in rows of a sixteenth."""
    peaks = {}
    written = _BUDGETS_WRITTEN * _budget(options) // width
    for rows, padding in ((written * _GROWTH, width // _GROWTH), (written, width)):
        table = tables.create_narrow(folder / f"padded-{padding}")
        batch = max(rows // (_BUDGETS_WRITTEN * _BATCHES_PER_BUDGET), 1)
        task = {"do": "write", "rows": rows, "batch": batch, "padding": padding}
        peaks[padding] = run_child("writing", {**task, "options": options, "uri": table.uri})
    narrow, wide = (
        constant((peaks[padding]["peak"] - peaks[padding]["baseline"]) / _MIB)
        for padding in (width // _GROWTH, width)
    )
    return _line(
        "memory",
        f"peak memory of writes of rows of {width:,} bytes",
        options,
        peaks[width],
        f"{written:,} rows; from rows of a sixteenth on it grows with the exponent "
        f"{exponent(wide, narrow, _GROWTH):.2f}",
        bound=2,
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
    name: str,
    what: str,
    options: Mapping[str, Any],
    result: Mapping[str, Any],
    note: str,
    *,
    bound: float = 2.5,
) -> Line:
    return Line(
        name=name,
        what=what,
        ours=constant((result["peak"] - result["baseline"]) / _MIB),
        other=constant(_budget(options) / _MIB),
        unit="MiB",
        against="budget of the MemTables",
        rival=Rival.LIMIT,
        target=Target(bound),
        note=f"{note}; {result['baseline'] / _MIB:.0f} MiB before",
    )
