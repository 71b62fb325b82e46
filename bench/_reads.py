"""Vector and text reads that see what was written and is not flushed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _tables as tables
import numpy as np
import pyarrow as pa
from _measure import Line, Target, constant, milliseconds, seconds

import memwal
from memwal.memtable.indexes import MemTableSnapshot

_BATCH = 1_000
_READS = 50
_WRITTEN_BETWEEN = 10
_FOUND = 10
_LIMIT_MS = 20.0


def reads(folder: Path, rows: int) -> Iterator[Line]:
    """Reads of unflushed rows, each after a few more were written that it has to see."""
    table = tables.create_wide(folder / "table", indexed=True)
    random = np.random.default_rng(0)
    queries = random.random((_READS, tables.DIMENSIONS), dtype=np.float32)
    options = memwal.WriterOptions(
        max_memtable_rows=rows + _READS * _WRITTEN_BETWEEN + 1, max_memtable_bytes=1 << 40
    )
    vector: list[float] = []
    text: list[float] = []
    with tables.open_ours(table, options) as writer:
        for start in range(0, rows, _BATCH):
            writer.upsert(tables.wide_rows(min(_BATCH, rows - start), start))
        # The first reads index what was written so far.
        _nearest(writer, queries[0])
        _matching(writer, "word0")
        for number, query in enumerate(queries):
            written = tables.wide_rows(_WRITTEN_BETWEEN, rows + number * _WRITTEN_BETWEEN)
            writer.upsert(written)
            words = written["text"][0].as_py()
            vector.append(seconds(lambda q=query: _nearest(writer, q)))
            text.append(seconds(lambda w=words: _matching(writer, w)))
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


def _nearest(writer: Any, query: np.ndarray) -> pa.Table:
    snapshot = _snapshot(writer)
    return snapshot.take(snapshot.nearest("vector", query, k=_FOUND).rows)


def _matching(writer: Any, words: str) -> pa.Table:
    snapshot = _snapshot(writer)
    terms = snapshot.text_terms("text", words)
    return snapshot.take(snapshot.search_text("text", terms, k=_FOUND).rows)


def _snapshot(writer: Any) -> MemTableSnapshot:
    ((unflushed,),) = writer.memtables().values()
    snapshot: MemTableSnapshot = unflushed.snapshot
    return snapshot
