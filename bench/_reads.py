"""Vector and text reads that see what was written and is not flushed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import _tables as tables
from _measure import Line, Target, constant, milliseconds, seconds
from memwal.format.names import TOMBSTONE
from memwal.region.row_schema import stored_schema
from memwal.writer.memtable_indexes import MemTableIndexes, MemTableSnapshot

_BATCH = 1_000
_READS = 50
_WRITTEN_BETWEEN = 10
_FOUND = 10
_LIMIT_MS = 20.0


def reads(folder: Path, rows: int) -> Iterator[Line]:
    """Reads of unflushed rows, each after a few more were written that it has to see."""
    random = np.random.default_rng(0)
    queries = random.random((_READS, tables.DIMENSIONS), dtype=np.float32)
    indexes = MemTableIndexes(stored_schema(tables.WIDE, ["id"]), ["id"], text={"text": {}})
    for start in range(0, rows, _BATCH):
        _append(indexes, tables.wide_rows(min(_BATCH, rows - start), start))
    indexes.catch_up()
    vector: list[float] = []
    text: list[float] = []
    for number in range(_READS):
        written = tables.wide_rows(_WRITTEN_BETWEEN, rows + number * _WRITTEN_BETWEEN)
        _append(indexes, written)
        words = written["text"][0].as_py()
        vector.append(seconds(lambda q=queries[number]: _nearest(indexes.snapshot(), q)))
        text.append(seconds(lambda w=words: _matching(indexes.snapshot(), w)))
    for name, samples in (("vector", vector), ("text", text)):
        yield Line(
            name="reads",
            what=f"{name} read of {rows:,} unflushed rows",
            ours=milliseconds(samples),
            other=constant(_LIMIT_MS),
            unit="ms",
            against="limit",
            target=Target(1.0),
            note=f"{_FOUND} found, {_WRITTEN_BETWEEN} rows written before each of {_READS}",
        )


def _append(indexes: MemTableIndexes, rows: pa.Table) -> None:
    schema = stored_schema(tables.WIDE, ["id"])
    alive = pa.field(TOMBSTONE, pa.bool_(), nullable=False)
    stored = rows.append_column(alive, pa.array(np.zeros(rows.num_rows, dtype=bool)))
    for batch in stored.cast(schema).combine_chunks().to_batches():
        indexes.append(batch)


def _nearest(snapshot: MemTableSnapshot, query: np.ndarray) -> pa.Table:
    return snapshot.take(snapshot.nearest("vector", query, k=_FOUND).rows)


def _matching(snapshot: MemTableSnapshot, words: str) -> pa.Table:
    terms = snapshot.text_terms("text", words)
    return snapshot.take(snapshot.search_text("text", terms, k=_FOUND).rows)
