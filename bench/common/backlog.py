"""The tables of the readers' benchmark: a backlog of flushed generations, and the same rows merged.

Making them takes minutes at full size, so that they can be kept between runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import memwal
from common import tables

REGIONS = 8
GENERATIONS = 4
SCHEMA = pa.schema(
    [
        *tables.WIDE,
        pa.field("kind", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("day", pa.date32()),
    ]
)

# Of the rows of the base table, for each generation.
_PART = 80
_PIECE = 50_000
_KINDS = 20
_DAYS = 365
A_DAY = "date '1970-03-01'"
"""One day of column ``day``, which has an index; one row in 365 has it."""

# Of the base table beside which the memory of scans is measured.
_SMALLER = 2


@dataclass(frozen=True, slots=True)
class Backlog:
    """Tables in one state, and its rows in other forms.

    Attributes
    ----------
    rows : int
        In the base table.
    table : memwal.Table
        Eight regions with four generations each, of an eightieth of the base table's rows; half of
        them are updates.
    merged : lance.LanceDataset
        Its rows in a plain table.
    smaller : memwal.Table
        The same backlog over half of the base table.
    """

    rows: int
    table: memwal.Table
    merged: lance.LanceDataset
    smaller: memwal.Table


def backlog(folder: Path, rows: int) -> Backlog:
    """The tables in a folder, which are made where they are not there yet."""
    for name, base_rows in (("table", rows), ("smaller", rows // _SMALLER)):
        if not (folder / name).exists():
            made = folder / f"{name}.part"
            shutil.rmtree(made, ignore_errors=True)
            _write(str(made), base_rows, fresh=fresh_rows(rows))
            made.rename(folder / name)
    table = memwal.open(str(folder / "table"))
    if not (folder / "merged").exists():
        made = folder / "merged.part"
        shutil.rmtree(made, ignore_errors=True)
        reader = table.scan().to_reader()
        merged = lance.write_dataset(reader, str(made), schema=reader.schema)
        _index(merged)
        made.rename(folder / "merged")
    return Backlog(
        rows=rows,
        table=table,
        merged=lance.dataset(str(folder / "merged")),
        smaller=memwal.open(str(folder / "smaller")),
    )


def fresh_rows(rows: int) -> int:
    """Rows of one generation beside so many in the base table."""
    return max(rows // _PART, 1)


def read_rows(count: int, start: int) -> pa.Table:
    """Rows with consecutive keys."""
    numbers = np.arange(start, start + count)
    kinds = pa.array([f"kind {kind}" for kind in range(_KINDS)])
    wide = tables.wide_rows(count, start)
    return pa.table(
        [
            *wide.columns,
            kinds.take(pa.array(numbers % _KINDS)),
            pa.array(np.random.default_rng(start).random(count)),
            pa.array((numbers % _DAYS).astype(np.int32)).cast(pa.date32()),
        ],
        schema=SCHEMA,
    )


def _write(uri: str, rows: int, *, fresh: int) -> None:
    starts = range(0, rows, _PIECE)
    made = (read_rows(min(_PIECE, rows - start), start) for start in starts)
    base = lance.write_dataset(_batches(made), uri, schema=SCHEMA)
    _index(base)
    table = memwal.enable(
        uri,
        region_spec=memwal.RegionSpec.bucket("id", REGIONS),
        primary_key=["id"],
        maintained_indexes=["id_idx", "day_idx"],
    )
    write_generations(table, rows, fresh=fresh)


def _index(dataset: lance.LanceDataset) -> None:
    for column in ("id", "day"):
        dataset.create_scalar_index(column, "BTREE", name=f"{column}_idx")


def write_generations(table: memwal.Table, rows: int, *, fresh: int) -> None:
    """Flush four generations of each region, half updates of the base table and half new rows."""
    options = memwal.WriterOptions(max_memtable_rows=1 << 24, max_memtable_bytes=1 << 32)
    random = np.random.default_rng(1)
    count = fresh * REGIONS
    with table.writer(options=options) as writer:
        for number in range(GENERATIONS):
            data = read_rows(count, rows + number * count)
            ids = data["id"].to_numpy().copy()
            ids[: count // 2] = random.choice(rows, min(count // 2, rows), replace=False)
            writer.upsert(data.set_column(0, SCHEMA.field("id"), pa.array(ids)))
            writer.flush()


def _batches(made: Iterator[pa.Table]) -> pa.RecordBatchReader:
    batches = (batch for rows in made for batch in rows.to_batches())
    return pa.RecordBatchReader.from_batches(SCHEMA, batches)
