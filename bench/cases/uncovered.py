"""Filters on merged rows that the base table's index does not cover yet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from common import tables
from common.measure import Line, Rival, Target, constant
from common.processes import run_child

import memwal

_REGIONS = 8
# Of the rows of the base table: 200,000 by default.
_MERGED_PART = 10
_DAYS = 10_000
_COUNTS = 4
_KIB = 1 << 10


def uncovered_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Counts with a filter by an index, before and after it covers a large merge."""
    merged = max(rows // _MERGED_PART, _REGIONS)
    uri = str(folder / "behind")
    schema = _rows(np.arange(1), 0).schema
    dataset = tables.write_in_pieces(uri, schema, rows, _rows, piece=rows)
    for column in ("id", "day"):
        dataset.create_scalar_index(column, "BTREE", name=f"{column}_idx")
    table = memwal.enable(
        uri,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", _REGIONS),
        maintained_indexes=["id_idx", "day_idx"],
    )
    tables.flush_generations(table, rows, 1, merged, _rows)
    table.merge()
    behind = _kib(uri)
    table.build_indexes()
    caught_up = _kib(uri)
    for what, number in (("first", 0), ("second", 1), (f"{_COUNTS}th", _COUNTS - 1)):
        yield Line(
            name="scan-lag",
            what=f"bytes of the {what} count of a day, index behind by {merged:,} merged rows",
            ours=constant(behind[number]),
            other=constant(caught_up[number]),
            unit="KiB",
            against="index caught up",
            rival=Rival.OURS,
            target=Target(3.0) if number == _COUNTS - 1 else None,
            note="by one process, beyond what a count without a filter reads; at least 1",
        )
    shutil.rmtree(folder)


def _kib(uri: str) -> list[float]:
    task = {"do": "filtered-counts", "uri": uri, "filter": "day = 77", "counts": _COUNTS}
    return [max(count / _KIB, 1.0) for count in run_child("reading", task)["bytes"]]


def _rows(ids: np.ndarray, seed: int) -> pa.Table:
    days = np.random.default_rng(seed).integers(0, _DAYS, len(ids))
    key = pa.field("id", pa.int64(), nullable=False)
    return pa.table([ids, days], schema=pa.schema([key, pa.field("day", pa.int64())]))
