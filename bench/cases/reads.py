"""Vector and text reads by a writer, which see what was written and is not flushed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import tables
from common.measure import Line, Rival, Target, constant, milliseconds, seconds

import memwal

_BATCH = 1_000
_READS = 50
_WRITTEN_BETWEEN = 10
_FOUND = 10
_LIMIT_MS = 20.0


def reads(folder: Path, rows: int) -> Iterator[Line]:
    """Searches of unflushed rows, each after a few more came that it has to see."""
    table = tables.create_wide(folder / "table", indexed=True)
    random = np.random.default_rng(0)
    queries = random.random((_READS, tables.DIMENSIONS), dtype=np.float32)
    vector: list[float] = []
    text: list[float] = []
    options = memwal.WriterOptions(fsync=False, max_memtable_rows=2 * rows + _BATCH)
    with table.writer(options=options) as writer:
        for start in range(0, rows, _BATCH):
            writer.upsert(tables.wide_rows(min(_BATCH, rows - start), start))
        for number, query in enumerate(queries):
            written = tables.wide_rows(_WRITTEN_BETWEEN, rows + number * _WRITTEN_BETWEEN)
            writer.upsert(written)
            words = written["text"][0].as_py()
            vector.append(seconds(lambda q=query: writer.search(q, k=_FOUND).to_table()))
            text.append(seconds(lambda w=words: writer.search_text(w, k=_FOUND).to_table()))
    for name, samples in (("vector", vector), ("text", text)):
        yield Line(
            name="reads",
            what=f"{name} search of {rows:,} unflushed rows",
            ours=milliseconds(samples),
            other=constant(_LIMIT_MS),
            unit="ms",
            against="limit",
            rival=Rival.LIMIT,
            target=Target(1.0),
            note=f"{_FOUND} found, {_WRITTEN_BETWEEN} rows written before each of {_READS}",
        )
