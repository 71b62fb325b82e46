"""The rows that count, of all sources of a read, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.format.names import TOMBSTONE
from memwal.memtable.indexes import MemTableSnapshot
from memwal.reader.generations import GenerationSource, write_in_memory
from memwal.reader.newest import ROW_ADDRESS, NewestRows
from memwal.reader.sources import ReadSources
from memwal.region.newest import key_column
from memwal.table_index.base_table import BaseTable

GENERATION: Final = "_gen"

_EXTRA: Final = {
    GENERATION: pa.field(GENERATION, pa.uint64(), nullable=False),
    ROW_ADDRESS: pa.field(ROW_ADDRESS, pa.uint64()),
}
_KEY_FIELD: Final = b"primary-key"
# Base rows are compared with the fresh keys this many at a time, or as many as there are fresh
# keys: each comparison hashes all fresh keys, and larger pieces share that cost. Wide rows are
# compared sooner, to bound memory.
_COMPARED_ROWS = 65_536
_MAX_COMPARED_ROWS = 1 << 20
_COMPARED_BYTES = 64 << 20

Addresses = np.ndarray[Any, np.dtype[np.uint64]]


class MergedRows:
    """The rows that count, of all sources of one read.

    Parameters
    ----------
    sources, newest
        See :func:`collect_newest`.
    schema : pyarrow.Schema
        Columns of the table to return.
    filter : str or None
        SQL predicate in parentheses.
    extra : sequence of str
        ``_gen``, ``_rowaddr``.
    """

    def __init__(
        self,
        sources: ReadSources,
        newest: NewestRows,
        schema: pa.Schema,
        filter: str | None,
        extra: Sequence[str],
    ) -> None:
        self.sources = sources
        self._newest = newest
        self._schema = schema
        self._filter = filter
        self._extra = extra

    def batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Batches of rows; whoever asks for no more than ``limit`` stops there."""
        wanted = 0
        for position, source in enumerate(self.sources.generations):
            live = self._newest.live_addresses(position)
            if len(live):
                for batch in self._generation(source, live):
                    wanted += batch.num_rows
                    yield batch
        yield from self._base(None if limit is None else max(limit - wanted, 0))

    def count(self) -> int:
        """Number of rows."""
        counts = []
        for position, source in enumerate(self.sources.generations):
            live = self._newest.live_addresses(position)
            if len(live) and self._filter is None:
                counts.append(len(live))
            elif len(live):
                counts += [batch.num_rows for batch in self._generation(source, live)]
        if len(self._newest.keys):
            counts += [batch.num_rows for batch in self._base(None)]
        else:
            counts.append(int(self.sources.base.dataset.count_rows(self._filter)))
        return sum(counts)

    def _generation(self, source: GenerationSource, live: Addresses) -> Iterator[pa.RecordBatch]:
        if source.snapshot is not None:
            yield from self._unflushed(source, source.snapshot, live)
            return
        alive = f"not {TOMBSTONE}"
        scanner = source.dataset.scanner(
            columns=self._schema.names,
            filter=f"{self._filter} and {alive}" if self._filter else alive,
            with_row_address=True,
        )
        for batch in scanner.to_batches():
            addresses = batch.column(ROW_ADDRESS).to_numpy()
            at = np.minimum(np.searchsorted(live, addresses), len(live) - 1)
            kept = live[at] == addresses
            yield self._output(
                batch if kept.all() else batch.filter(pa.array(kept)), source.generation
            )

    def _unflushed(
        self, source: GenerationSource, snapshot: MemTableSnapshot, live: Addresses
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a MemTable where they lie; only what a filter names is copied for Lance."""
        view = snapshot.view
        kept = np.zeros(view.rows, np.bool_)
        kept[live.astype(np.int64)] = True
        if self._filter is not None:
            passing = np.zeros(view.rows, np.bool_)
            passing[_passing(snapshot, self._filter, self.sources.base)] = True
            kept &= passing
        for number, batch in enumerate(view.batches):
            start = int(view.starts[number])
            mine = kept[start : start + batch.num_rows]
            if not mine.any():
                continue
            rows = np.flatnonzero(mine).astype(np.uint64) + np.uint64(start)
            if not self._schema.names:
                yield self._output(_numbered(batch.select([]), rows), source.generation)
                continue
            batch = batch.select(self._schema.names)
            batch = batch if mine.all() else batch.filter(pa.array(mine))
            yield self._output(_numbered(batch, rows), source.generation)

    def _base(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        base, newest = self.sources.base, self._newest
        if limit == 0:
            return
        addressed = ROW_ADDRESS in self._extra
        if not len(newest.keys):
            scanner = base.dataset.scanner(
                columns=self._schema.names,
                filter=self._filter,
                limit=limit,
                with_row_address=addressed or not self._schema.names,
            )
            for batch in scanner.to_batches():
                yield self._output(batch, 0)
            return
        names = self._schema.names
        names = [*names, *(key for key in base.primary_key if key not in names)]
        rows = min(max(_COMPARED_ROWS, len(newest.keys)), _MAX_COMPARED_ROWS)
        scanner = base.dataset.scanner(
            columns=names, filter=self._filter, with_row_address=addressed
        )
        for piece in _gathered(scanner.to_batches(), rows):
            outdated = pc.is_in(key_column(piece, base.primary_key), value_set=newest.keys)
            for batch in piece.filter(pc.invert(outdated)).to_batches():
                yield self._output(batch, 0)

    def _output(self, batch: pa.RecordBatch, generation: int) -> pa.RecordBatch:
        if not self._extra:
            return project(batch, self._schema)
        values = {
            GENERATION: lambda: pa.repeat(pa.scalar(generation, pa.uint64()), batch.num_rows),
            ROW_ADDRESS: lambda: batch.column(ROW_ADDRESS),
        }
        return pa.RecordBatch.from_arrays(
            [batch.column(name) for name in self._schema.names]
            + [values[name]() for name in self._extra],
            schema=with_extra(self._schema, self._extra),
        )


def with_extra(schema: pa.Schema, extra: Sequence[str]) -> pa.Schema:
    """A schema with ``_gen`` and ``_rowaddr`` as far as they are asked for."""
    return pa.schema([*schema, *(_EXTRA[name] for name in extra)], schema.metadata)


def project(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, in its order, with its metadata."""
    if not schema.names:
        # A batch without columns still has rows to count.
        return batch.select([]).replace_schema_metadata(None)
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def _passing(snapshot: MemTableSnapshot, filter: str, base: BaseTable) -> np.ndarray[Any, Any]:
    """Numbers of the rows that a predicate lets through."""
    text = filter.casefold().replace("``", "`")
    # A column that the predicate names stands in its text; one more does no harm.
    named = [name for name in base.schema.names if name.casefold().replace("``", "`") in text]
    names = named or list(base.primary_key)
    rows = pa.Table.from_arrays(
        [snapshot.view.column(name) for name in names],
        schema=pa.schema([_without_key(snapshot.view.schema.field(name)) for name in names]),
    )
    dataset = write_in_memory(rows)
    found = dataset.scanner(columns=[], filter=filter, with_row_address=True).to_table()
    return np.asarray(found.column(ROW_ADDRESS).to_numpy().astype(np.int64))


def _without_key(field: pa.Field) -> pa.Field:
    """The field as one that is no part of a key: some of a key's columns alone are none."""
    kept = {name: value for name, value in (field.metadata or {}).items() if _KEY_FIELD not in name}
    return field.with_nullable(True).with_metadata(kept)


def _numbered(batch: pa.RecordBatch, rows: Addresses) -> pa.RecordBatch:
    """Values of some rows of a MemTable, with their numbers as addresses."""
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(rows)], names=[*batch.schema.names, ROW_ADDRESS]
    )


def _gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Batches joined until they have so many rows, or :data:`_COMPARED_BYTES`, together."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= rows or size >= _COMPARED_BYTES:
            yield pa.Table.from_batches(held)
            held, count, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)
