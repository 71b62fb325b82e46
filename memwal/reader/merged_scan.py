"""Merging scan: the newest row of each key over all sources of a read, batch by batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.blobs import BlobHandling, blob_names
from memwal.base_table.snapshot import BaseTable
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import ObjectNotFoundError
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.lsm.memtable.indexes import MemTableSnapshot
from memwal.reader.base_indexes import find_index, uncovered_fragments
from memwal.reader.base_rows import (
    cheap_replaced_rows,
    kept_rows,
    note_compared_rows,
    replaced_rows,
    rows_of_keys,
)
from memwal.reader.latest import ROW_ADDRESS, NewestRows
from memwal.reader.row_set import ROW_ID, contains, group_batches, read_rows, without_rows
from memwal.reader.sources.cache import LruCache
from memwal.reader.sources.generation import (
    GenerationSource,
    ReadSources,
    read_in_memory,
    write_in_memory,
)
from memwal.reader.sources.narrow_columns import (
    FragmentLayout,
    filter_uncovered,
    group_generations,
    layout_of,
    passing_together,
    read_together,
    without_key_marks,
)
from memwal.reader.unreadable_indexes import count_rows, scan_batches
from memwal.region.rows import key_column
from memwal.util.arrays import Addresses, Mask, RowIds


def passing_rows(source: GenerationSource, filter: str, base: BaseTable) -> Mask:
    """Evaluate a SQL predicate over the rows of a MemTable; return a mask of shape (rows,)."""
    snapshot = source.snapshot
    if snapshot is None:
        dataset = source.dataset
    else:
        names, view = names_in(filter, base), snapshot.view
        columns = [view.column(name) for name in names]
        schema = pa.schema([view.schema.field(name) for name in names])
        dataset = write_in_memory(without_key_marks(pa.Table.from_arrays(columns, schema=schema)))
    rows = dataset.scanner(columns=[], filter=filter, with_row_address=True).to_table()
    passing = np.zeros(dataset.count_rows(), np.bool_)
    passing[rows.column(ROW_ADDRESS).to_numpy().astype(np.int64)] = True
    return passing


def names_in(filter: str, base: BaseTable) -> list[str]:
    """Return the columns that a predicate names, and perhaps others; at least one."""
    text = filter.casefold().replace("``", "`")
    # A column that the predicate names occurs in its text; one column more does no harm.
    names = [name for name in base.schema.names if name.casefold().replace("``", "`") in text]
    return names or list(base.key_or_column)


def is_filtered_by_index(base: BaseTable, name: str) -> bool:
    """Return whether the base table has an index that answers filters on a column."""
    indexes = base.dataset.describe_indices()
    return find_index(indexes, name, lambda kind: kind.finds_keys) is not None


GENERATION: Final = "_gen"

_EXTRA: Final = {
    GENERATION: pa.field(GENERATION, pa.uint64(), nullable=False),
    ROW_ADDRESS: pa.field(ROW_ADDRESS, pa.uint64()),
}
# Base rows are compared with the fresh keys this many at a time, or as many as there are fresh
# keys: each comparison hashes all fresh keys, and larger pieces share that cost. Wide rows are
# compared sooner, to bound memory.
_COMPARED_ROWS: Final = 65_536
_MAX_COMPARED_ROWS: Final = 1 << 20
_COMPARED_BYTES: Final = 64 << 20
# Lance's default reads two gigabytes ahead, and is no faster.
_READ_AHEAD_BYTES: Final = 64 << 20
# Rows of generations that are in memory anyway, and of few bytes, are in batches of so many.
_BATCH_ROWS: Final = 1 << 15
_ROWS_WITH_BLOBS: Final = 64
# With a small limit, at most this many rows are read ahead of those returned.
_MIN_COMPARED_ROWS: Final = 8_192


def live_rows(
    source: GenerationSource,
    live: Addresses,
    columns: Sequence[str],
    filter: str | None,
    *,
    with_row_address: bool = True,
    **options: object,
) -> Iterator[pa.RecordBatch]:
    """Read the rows at the ascending addresses ``live`` that pass: columns and ``_rowaddr``.

    Without ``with_row_address``, batches may lack that column.
    """
    layout = layout_of(source)
    if not (with_row_address or filter is not None or layout.has_deletions) and columns:
        # Lance need not make the addresses of rows that are told by their place.
        is_live, start = layout.mask(live), 0
        for batch in scan_batches(
            source.dataset, columns=list(columns), filter=None, scan_in_order=True, **options
        ):
            mask = is_live[start : start + batch.num_rows]
            start += batch.num_rows
            yield batch if mask.all() else batch.filter(pa.array(mask))
        return
    # Tombstones are not live. A filter that leaves them out would make Lance read the columns of
    # all other rows in a second step.
    for batch in scan_batches(
        source.dataset, columns=list(columns), filter=filter, with_row_address=True, **options
    ):
        mask = contains(live, batch.column(ROW_ADDRESS).to_numpy())
        yield batch if mask.all() else batch.filter(pa.array(mask))


def without_keys(
    batches: Iterable[pa.RecordBatch],
    primary_key: Sequence[str],
    fresh_keys: Callable[[], pa.Array],
    *,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Drop the base rows whose keys a generation has; ``fresh_keys`` is called for a row only."""
    rest = (batch for batch in batches if batch.num_rows)
    first = list(itertools.islice(rest, 1))
    if not first:
        return
    ahead = itertools.chain(iter(first), rest)
    # The iterator lets go of its list, so the first batch does not stay in memory for all the scan.
    del first
    fresh = fresh_keys()
    if not len(fresh):
        yield from ahead
        return
    rows = min(max(_COMPARED_ROWS, len(fresh)), _MAX_COMPARED_ROWS)
    rows = rows if limit is None else min(rows, max(limit, _MIN_COMPARED_ROWS))
    for piece in group_batches(ahead, rows=rows, max_bytes=_COMPARED_BYTES):
        keys = pa.concat_arrays([key_column(batch, primary_key) for batch in piece])
        mask = pc.invert(pc.is_in(keys, value_set=fresh))
        start = 0
        for batch in piece:
            yield batch.filter(mask.slice(start, batch.num_rows))
            start += batch.num_rows


RereadKeys = Callable[[pa.Array], Iterator[pa.RecordBatch]]
"""Reads the rows of some keys from a new snapshot."""


class MergedScan:
    """Newest row of each key over all sources of a read.

    ``sources`` and ``newest`` are those of :func:`memwal.reader.scan.open_newest`, ``filter`` is in
    parentheses, ``extra`` names ``_gen`` and ``_rowaddr``. With ``keys``, only their rows are read.
    ``reread_keys`` reads the remaining rows of a generation that was collected before all of them
    were read; without it, that is an error.
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
        reread_keys: RereadKeys | None = None,
        blob_handling: BlobHandling | None = None,
    ) -> None:
        self.sources = sources
        self._newest = newest if keys is None else newest.only(keys)
        self._schema = schema
        self._filter = filter
        self._extra = extra
        self._output_schema = with_extra(schema, extra)
        self._keys = keys
        self._reread_keys = reread_keys
        # Blob columns that are read, and the options of Lance's scans of them.
        self._blobs = blob_names(
            pa.schema([f for f in sources.base.schema if f.name in schema.names])
        )
        self._options: dict[str, Any] = {}
        if self._blobs and blob_handling is not None:
            self._options["blob_handling"] = blob_handling
        if self._blobs and blob_handling == "all_binary":
            # Of Lance's own batches, one of 8,192 rows would be in memory as a whole.
            self._options["batch_size"] = _ROWS_WITH_BLOBS

    def batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Read the rows; ``limit``, rows that the caller takes, only bounds the read-ahead."""
        rows = 0
        for batch in self._generations(limit):
            rows += batch.num_rows
            yield batch
        yield from self._base(None if limit is None else max(limit - rows, 0))

    def count(self) -> int:
        """Count the rows."""
        counts: list[int] = []
        if self._filter is None:
            positions = range(len(self.sources.generations))
            counts += [len(self._newest.live_addresses(position)) for position in positions]
        else:
            counts += [batch.num_rows for batch in self._generations(None)]
        if self._filter is None or not len(self._newest.keys):
            counts.append(self._count_base())
            counts.append(-len(replaced_rows(self.sources).rows))
        else:
            counts += [batch.num_rows for batch in self._base(None)]
        return sum(counts)

    def _generations(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Read the generations: together, or one by one if ``limit`` may be reached early."""
        sources = self.sources.generations
        flushed = {
            at: layout_of(source) for at, source in enumerate(sources) if source.snapshot is None
        }
        for group in group_generations(flushed):
            rows = self._together(group) if limit is None and len(group) > 1 else None
            if rows is not None:
                yield from rows
                continue
            for position in group:
                yield from self.generation(position)
        for position, source in enumerate(sources):
            if source.snapshot is not None:
                yield from self.generation(position)

    def _together(self, positions: Sequence[int]) -> Iterator[pa.RecordBatch] | None:
        """Read flushed generations at once; None if a column has to be read as a stream."""
        base = self.sources.base
        sources = [self.sources.generations[position] for position in positions]
        layouts = [layout_of(source) for source in sources]
        if any(layout.has_deletions for layout in layouts):
            return None
        table = read_together(sources, base.schema, self._schema.names or base.key_or_column)
        if table is None:
            return None
        live = self._live_mask(positions, layouts)
        chosen: npt.NDArray[np.int64] | None = None
        if self._filter is not None:
            chosen = passing_together(
                sources,
                base.schema,
                names_in(self._filter, base),
                self._filter,
                is_indexed=partial(is_filtered_by_index, base),
            )
            if chosen is None:
                return None
            chosen = chosen[live[chosen]]

        def choose(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
            return column.filter(pa.array(live)) if chosen is None else column.take(chosen)

        arrays = {name: choose(table.column(name)) for name in self._schema.names}
        if GENERATION in self._extra:
            numbers = np.array([source.generation for source in sources], np.uint64)
            rows = [layout.rows for layout in layouts]
            arrays[GENERATION] = choose(pa.array(np.repeat(numbers, rows)))
        if ROW_ADDRESS in self._extra:
            addresses = np.concatenate([layout.addresses() for layout in layouts])
            arrays[ROW_ADDRESS] = choose(pa.array(addresses))
        if not arrays:
            count = int(np.count_nonzero(live)) if chosen is None else len(chosen)
            # A batch that has rows to count and no columns.
            return iter([pa.record_batch([pa.nulls(count)], names=["none"]).select([])])
        schema = self._output_schema
        rows = pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)
        return (batch for batch in rows.to_batches(_BATCH_ROWS) if batch.num_rows)

    def _live_mask(self, positions: Sequence[int], layouts: Sequence[FragmentLayout]) -> Mask:
        """Mark the rows of flushed generations that are the newest of their keys."""

        def find() -> Mask:
            return np.concatenate(
                [
                    layout.mask(self._newest.live_addresses(position))
                    for position, layout in zip(positions, layouts, strict=True)
                ]
            )

        identities = tuple(source.identity for source in self.sources.generations)
        if None in identities or self._keys is not None:
            return find()
        return _live_masks.get((identities, tuple(positions)), find)

    def generation(self, position: int) -> Iterator[pa.RecordBatch]:
        """Read the newest rows that one generation or MemTable has."""
        source = self.sources.generations[position]
        live = self._newest.live_addresses(position)
        if not len(live):
            return
        if source.snapshot is not None:
            yield from self._unflushed(source, source.snapshot, live)
            return
        emitted = [np.empty(0, np.uint64)]
        is_reread = self._reread_keys is not None
        try:
            for batch in live_rows(
                source,
                live,
                self._schema.names,
                self._filter,
                with_row_address=is_reread or ROW_ADDRESS in self._extra,
                **self._options,
            ):
                if is_reread:
                    emitted.append(batch.column(ROW_ADDRESS).to_numpy())
                yield self._output(batch, source.generation)
        except (OSError, ValueError, ObjectNotFoundError) as error:
            translated = translate_lance_error(error, "reading a generation")
            if not isinstance(translated, ObjectNotFoundError):
                raise
            if self._reread_keys is None:
                table = self.sources.base.location
                raise ObjectNotFoundError(
                    f"generation {source.generation} of region {source.region_id} of {table} is "
                    "gone; if reading again does not help, it was lost before it was merged, and "
                    f"memwal verify {table} --repair --yes may make it again from the log"
                ) from error
            # Merged and collected since: the base table has the remaining rows, unless a newer
            # generation has rows of their keys by now.
            remaining = np.setdiff1d(live, np.concatenate(emitted), assume_unique=True)
            yield from self._reread_keys(self._newest.keys_at(position, remaining))

    def _unflushed(
        self, source: GenerationSource, snapshot: MemTableSnapshot, live: Addresses
    ) -> Iterator[pa.RecordBatch]:
        """Read a MemTable in place; only columns that a filter names are copied for Lance."""
        view = snapshot.view
        passing = np.zeros(view.rows, np.bool_)
        passing[live.astype(np.int64)] = True
        if self._filter is not None:
            passing &= passing_rows(source, self._filter, self.sources.base)
        for number, batch in enumerate(view.batches):
            start = int(view.starts[number])
            mask = passing[start : start + batch.num_rows]
            if not mask.any():
                continue
            rows = np.flatnonzero(mask).astype(np.uint64) + np.uint64(start)
            if not self._schema.names:
                yield self._output(_numbered(batch.select([]), rows), source.generation)
                continue
            batch = batch.select(self._schema.names)
            batch = batch if mask.all() else batch.filter(pa.array(mask))
            if self._blobs:
                batch = read_in_memory(batch, self._options.get("blob_handling"))
            yield self._output(_numbered(batch, rows), source.generation)

    def _base(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        if limit == 0 or not self.sources.base.dataset.fragment_ids():
            return
        if self._keys is not None:
            batches = self._base_of_keys(self._keys)
        elif not len(self._newest.keys):
            batches = self._base_scan(limit=limit)
        elif (self._filter is None and limit is None) or self._is_cheap():
            batches = self._base_unreplaced()
        else:
            # A filter or a limit leaves few rows: their keys are compared as they come.
            primary_key = self.sources.base.primary_key
            scanned = self._compared(self._base_scan(primary_key))
            batches = without_keys(scanned, primary_key, self._fresh_keys, limit=limit)
        for batch in batches:
            yield self._output(batch, 0)

    def _count_base(self) -> int:
        dataset = self.sources.base.dataset
        if self._filter is None:
            return int(dataset.count_rows())
        trusted = not unusable_indexes(self.sources.base)
        outside_index = self._outside_index()
        if outside_index is None:
            return count_rows(dataset, self._filter, use_scalar_index=trusted)
        covered, rows = outside_index
        found = count_rows(dataset, self._filter, use_scalar_index=trusted, fragments=covered)
        outside = sum(batch.num_rows for batch in read_rows(dataset, rows, columns=[]))
        return found + int(outside)

    def _outside_index(self) -> tuple[list[lance.LanceFragment], RowIds] | None:
        """Find the base rows that pass and that no index covers, as :func:`filter_uncovered`."""
        if self._filter is None:
            return None
        base, names = self.sources.base, names_in(self._filter, self.sources.base)
        return filter_uncovered(base, uncovered_fragments(base, names), names, self._filter)

    def _base_scan(self, names: Sequence[str] = (), **options: object) -> Iterator[pa.RecordBatch]:
        """Read the base rows that pass, in order without a filter; uncovered ones from memory."""
        base = self.sources.base
        columns = list(dict.fromkeys([*self._schema.names, *names]))
        with_row_address = ROW_ADDRESS in self._extra or not (columns or options.get("with_row_id"))
        outside_index = self._outside_index()
        if outside_index is not None:
            options = {**options, "fragments": outside_index[0]}
        yield from scan_batches(
            base.dataset,
            columns=columns,
            filter=self._filter,
            with_row_address=with_row_address,
            io_buffer_size=_READ_AHEAD_BYTES,
            # Each further fragment takes as much memory again, and gives no more rows a second.
            fragment_readahead=1,
            use_scalar_index=not unusable_indexes(base),
            **self._options,
            **options,
        )
        if outside_index is not None:
            yield from read_rows(
                base.dataset,
                outside_index[1],
                columns=columns,
                with_row_address=with_row_address,
                **self._options,
            )

    def _base_of_keys(self, keys: pa.Array) -> Iterator[pa.RecordBatch]:
        fresh = pc.is_in(keys, value_set=self._newest.keys)
        rows, _ = rows_of_keys(self.sources.base, keys.filter(pc.invert(fresh)))
        return read_rows(
            self.sources.base.dataset,
            rows,
            columns=self._schema.names,
            filter=self._filter,
            with_row_address=ROW_ADDRESS in self._extra,
            use_scalar_index=not unusable_indexes(self.sources.base),
            **self._options,
        )

    def _compared(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            note_compared_rows(self.sources, batch.num_rows)
            yield batch

    def _fresh_keys(self) -> pa.Array:
        # To compare few rows with them takes as long as to compare as many rows as they are.
        note_compared_rows(self.sources, len(self._newest.keys))
        return self._newest.keys

    def _is_cheap(self) -> bool:
        """Return whether it costs less to find all rows that were replaced than to compare keys."""
        try:
            return cheap_replaced_rows(self.sources) is not None
        except ObjectNotFoundError:
            # A generation was collected during the read, which has its keys.
            return False

    def _base_unreplaced(self) -> Iterator[pa.RecordBatch]:
        """Read base rows except rows that a generation replaced; their ids are cached."""
        try:
            kept = kept_rows(self.sources) if self._filter is None else None
            replaced = replaced_rows(self.sources).rows
        except ObjectNotFoundError:
            # A generation was collected during the read, and no cache has its keys any more, but
            # the read does.
            row_ids, _ = rows_of_keys(self.sources.base, self._newest.keys)
            kept, replaced = None, np.sort(row_ids)
        if kept is None:
            for batch in self._base_scan(with_row_id=True):
                yield without_rows(batch, ROW_ID, replaced)
            return
        # Batches of few bytes take more time for the calls than for the rows.
        is_small = all(pa.types.is_primitive(field.type) for field in self._schema)
        scanned = self._base_scan(batch_size=_BATCH_ROWS) if is_small else self._base_scan()
        start = 0
        for batch in scanned:
            mask = kept.slice(start, batch.num_rows)
            yield batch if mask.true_count == len(mask) else _filtered(batch, mask)
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
            schema=self._output_schema,
        )


def with_extra(schema: pa.Schema, extra: Sequence[str]) -> pa.Schema:
    """Return the schema with the extra columns ``_gen`` and ``_rowaddr`` that are requested."""
    return pa.schema([*schema, *(_EXTRA[name] for name in extra)], schema.metadata)


def project(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema``, in its order and with its metadata."""
    if not schema.names:
        # A batch without columns still has rows to count.
        return batch.select([]).replace_schema_metadata(None)
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def _filtered(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """Filter a batch; a single column by itself, for which Arrow makes no list of rows."""
    if batch.num_columns != 1:
        return batch.filter(mask)
    return pa.RecordBatch.from_arrays([batch.column(0).filter(mask)], schema=batch.schema)


def _numbered(batch: pa.RecordBatch, rows: Addresses) -> pa.RecordBatch:
    """Append the numbers of rows of a MemTable as their addresses."""
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(rows)], names=[*batch.schema.names, ROW_ADDRESS]
    )


# Rows of flushed generations that are the newest of their keys, as all generations of a read say.
_live_masks: LruCache[Mask] = LruCache(64 << 20, lambda mask: mask.nbytes)
