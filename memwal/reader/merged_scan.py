"""Merging scan: the newest row of each key over all sources of a read, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable, translate_lance_error
from memwal.errors import MemWalError, ObjectNotFoundError
from memwal.format.paths import TOMBSTONE
from memwal.lsm.memtable.indexes import MemTableSnapshot
from memwal.reader.base_rows import replaced_rows, rows_of_keys
from memwal.reader.latest import ROW_ADDRESS, Addresses, NewestRows
from memwal.reader.row_set import ROW_ID, contains, gathered, read_rows, without_rows
from memwal.reader.sources.collect import ReadSources
from memwal.reader.sources.generation import GenerationSource, write_in_memory
from memwal.region.rows import key_column

if TYPE_CHECKING:
    import lance

_KEY_FIELD: Final = b"primary-key"


def passing_rows(
    source: GenerationSource, filter: str, base: BaseTable
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows of a MemTable a predicate lets through.

    The predicate is Lance's to evaluate. What it names is copied for Lance, and nothing else,
    unless the rows have to be brought into another form anyway.

    Parameters
    ----------
    source : GenerationSource
        A MemTable.
    filter : str
        SQL predicate over columns of the table.

    Returns
    -------
    numpy.ndarray of bool, shape (rows,)
    """
    snapshot = source.snapshot
    dataset = source.dataset if snapshot is None else _named_columns(snapshot, filter, base)
    found = dataset.scanner(columns=[], filter=filter, with_row_address=True).to_table()
    passing = np.zeros(dataset.count_rows(), np.bool_)
    passing[found.column(ROW_ADDRESS).to_numpy().astype(np.int64)] = True
    return passing


def _named_columns(snapshot: MemTableSnapshot, filter: str, base: BaseTable) -> lance.LanceDataset:
    text = filter.casefold().replace("``", "`")
    # A column that the predicate names stands in its text; one more does no harm.
    named = [name for name in base.schema.names if name.casefold().replace("``", "`") in text]
    names = named or list(base.primary_key)
    rows = pa.Table.from_arrays(
        [snapshot.view.column(name) for name in names],
        schema=pa.schema([_without_key(snapshot.view.schema.field(name)) for name in names]),
    )
    return write_in_memory(rows)


def _without_key(field: pa.Field) -> pa.Field:
    """The field as one that is no part of a key: some of a key's columns alone are none."""
    kept = {name: value for name, value in (field.metadata or {}).items() if _KEY_FIELD not in name}
    return field.with_nullable(True).with_metadata(kept)


GENERATION: Final = "_gen"

_EXTRA: Final = {
    GENERATION: pa.field(GENERATION, pa.uint64(), nullable=False),
    ROW_ADDRESS: pa.field(ROW_ADDRESS, pa.uint64()),
}
# Filtered base rows are compared with the fresh keys this many at a time, or as many as there are
# fresh keys: each comparison hashes all fresh keys, and larger pieces share that cost. Wide rows
# are compared sooner, to bound memory.
_COMPARED_ROWS = 65_536
_MAX_COMPARED_ROWS = 1 << 20
_COMPARED_BYTES = 64 << 20
# Lance reads two gigabytes ahead unless it is told, and no faster.
_READ_AHEAD_BYTES = 64 << 20
# Where a few rows are wanted, no more than this many are read ahead of what is given out.
_FEW_ROWS = 8_192

Elsewhere = Callable[[pa.Array], Iterator[pa.RecordBatch]]
"""Reads the rows of some keys in the state of now."""


class MergedRows:
    """The rows that count, of all sources of one read.

    Parameters
    ----------
    sources, newest
        See :func:`memwal.reader.scan.collect_newest`.
    schema : pyarrow.Schema
        Columns of the table to return.
    filter : str or None
        SQL predicate in parentheses.
    extra : sequence of str
        ``_gen``, ``_rowaddr``.
    keys : pyarrow.Array, optional
        The only keys whose rows are read; all by default.
    elsewhere : callable, optional
        Where the rows of a generation come from that was collected before all of them were read.
        By default that is a failure.
    """

    def __init__(
        self,
        sources: ReadSources,
        newest: NewestRows,
        schema: pa.Schema,
        filter: str | None,
        extra: Sequence[str],
        *,
        keys: pa.Array | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.sources = sources
        self._newest = newest if keys is None else newest.only(keys)
        self._schema = schema
        self._filter = filter
        self._extra = extra
        self._keys = keys
        self._elsewhere = elsewhere

    def batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Batches of rows; whoever asks for no more than ``limit`` stops there.

        Raises
        ------
        ObjectNotFoundError
            The version of the base table was cleaned up.
        """
        given = 0
        for position in range(len(self.sources.generations)):
            for batch in self._generation(position):
                given += batch.num_rows
                yield batch
        yield from self._base(None if limit is None else max(limit - given, 0))

    def count(self) -> int:
        """Number of rows."""
        counts: list[int] = []
        for position in range(len(self.sources.generations)):
            if self._filter is None:
                counts.append(len(self._newest.live_addresses(position)))
            else:
                counts += [batch.num_rows for batch in self._generation(position)]
        if self._filter is None or not len(self._newest.keys):
            counts.append(self.sources.base.dataset.count_rows(self._filter))
            counts.append(-len(replaced_rows(self.sources).rows))
        else:
            counts += [batch.num_rows for batch in self._base(None)]
        return sum(counts)

    def _generation(self, position: int) -> Iterator[pa.RecordBatch]:
        source = self.sources.generations[position]
        live = self._newest.live_addresses(position)
        if not len(live):
            return
        if source.snapshot is not None:
            yield from self._unflushed(source, source.snapshot, live)
            return
        given = [np.empty(0, np.uint64)]
        try:
            for batch in self._flushed(source, live):
                given.append(batch.column(ROW_ADDRESS).to_numpy())
                yield self._output(batch, source.generation)
        except (OSError, ValueError) as error:
            if not _is_gone(error):
                raise
            if self._elsewhere is None:
                raise ObjectNotFoundError(
                    f"generation {source.generation} of region {source.region_id} of "
                    f"{self.sources.base.location} is gone; if reading again does not help, it "
                    "was lost before it was merged, and memwal verify --repair may make it again "
                    "from the log"
                ) from error
            # Merged and collected since: the base table has what is left, unless something newer
            # has it by now.
            left = np.setdiff1d(live, np.concatenate(given))
            yield from self._elsewhere(self._newest.keys_at(position, left))

    def _flushed(self, source: GenerationSource, live: Addresses) -> Iterator[pa.RecordBatch]:
        alive = f"not {TOMBSTONE}"
        scanner = source.dataset.scanner(
            columns=self._schema.names,
            filter=f"{self._filter} and {alive}" if self._filter else alive,
            with_row_address=True,
        )
        for batch in scanner.to_batches():
            kept = contains(live, batch.column(ROW_ADDRESS).to_numpy())
            yield batch if kept.all() else batch.filter(pa.array(kept))

    def _unflushed(
        self, source: GenerationSource, snapshot: MemTableSnapshot, live: Addresses
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a MemTable where they lie; only what a filter names is copied for Lance."""
        view = snapshot.view
        kept = np.zeros(view.rows, np.bool_)
        kept[live.astype(np.int64)] = True
        if self._filter is not None:
            kept &= passing_rows(source, self._filter, self.sources.base)
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
        if limit == 0 or not self.sources.base.dataset.fragment_ids():
            return
        if self._keys is not None:
            found = self._base_of_keys(self._keys)
        elif not len(self._newest.keys):
            found = self._base_scan(limit=limit)
        elif self._filter is None and limit is None:
            found = self._base_unreplaced()
        else:
            found = self._base_compared(limit)
        for batch in found:
            yield self._output(batch, 0)

    def _base_scan(self, names: Sequence[str] = (), **options: object) -> Iterator[pa.RecordBatch]:
        addressed = ROW_ADDRESS in self._extra
        wanted = [*self._schema.names, *(name for name in names if name not in self._schema.names)]
        scanner = self.sources.base.dataset.scanner(
            columns=wanted,
            filter=self._filter,
            with_row_address=addressed or not (wanted or options.get("with_row_id")),
            io_buffer_size=_READ_AHEAD_BYTES,
            # Each more that is read at once is that much more memory, and no more rows a second.
            fragment_readahead=1,
            **options,
        )
        found: Iterator[pa.RecordBatch] = scanner.to_batches()
        return found

    def _base_of_keys(self, keys: pa.Array) -> Iterator[pa.RecordBatch]:
        fresh = pc.is_in(keys, value_set=self._newest.keys)
        rows, _ = rows_of_keys(self.sources.base, keys.filter(pc.invert(fresh)))
        return read_rows(
            self.sources.base.dataset,
            rows,
            columns=self._schema.names,
            filter=self._filter,
            with_row_address=ROW_ADDRESS in self._extra,
        )

    def _base_unreplaced(self) -> Iterator[pa.RecordBatch]:
        """All rows but those that a generation replaced: which these are is known for a while."""
        try:
            replaced = replaced_rows(self.sources).rows
        except ObjectNotFoundError:
            # A generation was collected under way, and its keys are not kept any more, except here.
            found, _ = rows_of_keys(self.sources.base, self._newest.keys)
            replaced = np.sort(found)
        for batch in self._base_scan(with_row_id=True):
            yield without_rows(batch, ROW_ID, replaced)

    def _base_compared(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Rows that a filter leaves, or the first ones: their keys are compared as they come."""
        primary_key = self.sources.base.primary_key
        fresh = self._newest.keys
        rows = min(max(_COMPARED_ROWS, len(fresh)), _MAX_COMPARED_ROWS)
        rows = rows if limit is None else min(rows, max(limit, _FEW_ROWS))
        batches = self._base_scan(primary_key)
        for piece in gathered(batches, rows=rows, max_bytes=_COMPARED_BYTES):
            keys = pa.concat_arrays([key_column(batch, primary_key) for batch in piece])
            kept = pc.invert(pc.is_in(keys, value_set=fresh))
            start = 0
            for batch in piece:
                yield batch.filter(kept.slice(start, batch.num_rows))
                start += batch.num_rows

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


def _is_gone(error: Exception) -> bool:
    if not isinstance(error, MemWalError):
        error = translate_lance_error(error, "reading a generation")
    return isinstance(error, ObjectNotFoundError)


def _numbered(batch: pa.RecordBatch, rows: Addresses) -> pa.RecordBatch:
    """Values of some rows of a MemTable, with their numbers as addresses."""
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(rows)], names=[*batch.schema.names, ROW_ADDRESS]
    )
