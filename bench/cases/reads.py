"""Vector and text reads that see what was written and is not flushed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from common import tables
from common.measure import Line, Rival, Target, constant, milliseconds, seconds

from memwal.format.paths import TOMBSTONE
from memwal.lsm.memtable.indexes import MemTableSnapshot
from memwal.lsm.memtable.text_index import Tokenizer
from memwal.lsm.memtable.vector_index import nearest_rows
from memwal.lsm.row_schema import RowSchema
from memwal.search.text.column import TextColumn
from memwal.search.text.documents import TokenizedDocuments
from memwal.search.text.matching import leaf_hits
from memwal.search.text.query import MatchQuery
from memwal.writer.region_writer.memtables import MemTable

_BATCH = 1_000
_READS = 50
_WRITTEN_BETWEEN = 10
_FOUND = 10
_LIMIT_MS = 20.0


def reads(folder: Path, rows: int) -> Iterator[Line]:
    """Reads of a MemTable's rows, each after a few more came that it has to see."""
    table = tables.create_wide(folder / "table", indexed=True)
    row_schema = RowSchema(table.base().identified_schema, table.primary_key)
    memtable = MemTable(row_schema, 1, text={"text": {}})
    random = np.random.default_rng(0)
    queries = random.random((_READS, tables.DIMENSIONS), dtype=np.float32)
    vector: list[float] = []
    text: list[float] = []
    for start in range(0, rows, _BATCH):
        _add(memtable, tables.wide_rows(min(_BATCH, rows - start), start))
    memtable.catch_up()
    for number, query in enumerate(queries):
        written = tables.wide_rows(_WRITTEN_BETWEEN, rows + number * _WRITTEN_BETWEEN)
        _add(memtable, written)
        words = written["text"][0].as_py()
        vector.append(seconds(lambda q=query: _nearest(memtable.unflushed().snapshot, q)))
        text.append(seconds(lambda w=words: _matching(memtable.unflushed().snapshot, w)))
    for name, samples in (("vector", vector), ("text", text)):
        yield Line(
            name="reads",
            what=f"{name} read of {rows:,} unflushed rows",
            ours=milliseconds(samples),
            other=constant(_LIMIT_MS),
            unit="ms",
            against="limit",
            rival=Rival.LIMIT,
            target=Target(1.0),
            note=f"{_FOUND} found, {_WRITTEN_BETWEEN} rows written before each of {_READS}",
        )


def _add(memtable: MemTable, rows: pa.Table) -> None:
    batches = memtable.row_schema.convert_upserts(rows)
    memtable.add(batches, position=memtable.last_position + 1)


def _nearest(snapshot: MemTableSnapshot, query: np.ndarray) -> pa.Table:
    near = nearest_rows(snapshot.view, "vector", query, k=_FOUND, allowed=_live_rows(snapshot))
    return snapshot.view.take(near.rows)


def _matching(snapshot: MemTableSnapshot, words: str) -> pa.Table:
    view, tokenizer = snapshot.view, Tokenizer()
    rows = np.arange(view.rows, dtype=np.uint64)
    live = _live_rows(snapshot)
    documents = TokenizedDocuments(0, snapshot.text["text"], view, rows, live, tokenizer)
    column = TextColumn.of(tokenizer, [documents], None)
    hits = leaf_hits(MatchQuery(words, "text"), column, k=_FOUND).best(_FOUND, smallest=False)
    return view.take(hits.rows.astype(np.int64))


def _live_rows(snapshot: MemTableSnapshot) -> np.ndarray:
    return snapshot.newest() & ~snapshot.view.column(TOMBSTONE).to_numpy()
