"""A table with stable row ids whose indexes miss rows once an older client compacted it."""

from __future__ import annotations

from pathlib import Path

import lance
import lancedb
import numpy as np
import pyarrow as pa

import memwal

ROWS = 80
INDEXED = ("id", "n", "at")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("at", pa.timestamp("us")),
        pa.field("vec", pa.list_(pa.float32(), 4)),
    ]
)


def rows(first: int, last: int, *, plus: int = 0) -> pa.Table:
    """Return rows with keys from first to last, and a number that is larger by ``plus``."""
    numbers = np.arange(first, last)
    vectors = np.repeat(numbers, 4).astype(np.float32)
    return pa.table(
        {
            "id": numbers,
            "n": numbers + plus,
            "at": pa.array(numbers, pa.timestamp("us")),
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 4),
        },
        schema=SCHEMA,
    )


def make(path: Path, *, stable_row_ids: bool) -> None:
    """Write four fragments with pylance, and BTREE indexes on the scalar columns."""
    step = ROWS // 4
    for first in range(0, ROWS, step):
        lance.write_dataset(
            rows(first, first + step), path, mode="append", enable_stable_row_ids=stable_row_ids
        )
    dataset = lance.dataset(path)
    names = [f"{column}_idx" for column in INDEXED]
    for column, name in zip(INDEXED, names, strict=True):
        dataset.create_scalar_index(column, "BTREE", name=name)
    memwal.enable(path, region_spec="unsharded", primary_key="id", maintained_indexes=names)


def optimize(path: Path) -> None:
    """Compact with LanceDB, whose Lance is older than that of pylance: indexes become stale."""
    lancedb.connect(path.parent).open_table(path.stem).optimize()
