"""Bytes that the tasks of a load of Spark read, beside the table's own scan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from common import tables
from common.measure import Line, Rival, Target, constant
from common.processes import run_child

import memwal

_REGIONS = 4
_GENERATIONS = 2
# Of the rows of the base table: in the backlog, and of those at most that are made at a time.
_FRESH_PART, _PIECE = 20, 100_000
_QUERY = {"columns": "id,n", "filter": "n < 10"}
_WAYS = {
    "options columns and filter": _QUERY,
    "option filter": {"filter": _QUERY["filter"]},
    "no option": {},
}


def load_lines(folder: Path, rows: int) -> Iterator[Line]:
    """A hundredth of the rows, two of three columns; Spark alone selects what options do not."""
    uri = str(folder / "loaded")
    tables.write_in_pieces(uri, _rows(np.arange(1), 0).schema, rows, _rows, piece=_PIECE)
    table = memwal.enable(
        uri, primary_key=["id"], region_spec=memwal.RegionSpec.bucket("id", _REGIONS)
    )
    tables.flush_generations(table, rows, _GENERATIONS, rows // _FRESH_PART, _rows)
    scanned = run_child("reading", {"do": "narrow-scan", "uri": uri, **_QUERY})
    for what, options in _WAYS.items():
        loaded = run_child("reading", {"do": "load", "uri": uri, "options": options})
        yield Line(
            name="spark-loads",
            what=f"bytes of a load by Spark, {what}",
            ours=constant(loaded["bytes"] / 1024),
            other=constant(scanned["bytes"] / 1024),
            unit="KiB",
            against="scan of these columns and rows",
            rival=Rival.OURS,
            target=Target(1.3) if options == _QUERY else None,
            note="plan and tasks in one process, without Spark",
        )


def _rows(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows of some keys, with bytes that do not compress."""
    width = 256
    content = np.random.default_rng(seed).bytes(len(ids) * width)
    payload = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(ids), [None, pa.py_buffer(content)]
    )
    return pa.table({"id": ids, "n": ids % 1_000, "payload": payload})
