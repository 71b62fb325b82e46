"""Decoded narrow columns of flushed generations, kept in memory.

A generation never changes, and a scanner over it takes longer to start than to read a few thousand
numbers. So the columns that reads return and filter by are decoded once, if their values are small,
and all generations of a read are then read together: one mask, and one filter over one data set in
memory, however many generations there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.reader.sources.cache import LruCache
from memwal.reader.sources.generation import GenerationSource, write_in_memory
from memwal.reader.sources.snapshot import fragments_of
from memwal.util.arrays import Addresses, Mask, Positions, RowIds
from memwal.util.concurrency import run_all

# A column of a generation that takes more is read from its files each time, as a stream.
_MAX_COLUMN_BYTES: Final = 8 << 20
TAKEN_ROWS: Final = 1_000
"""Lance takes that many rows by their numbers in half the time in which it starts a scan."""
# A generation with larger files is always read as a stream.
_MAX_FILE_BYTES: Final = 64 << 20
_KEY_FIELD: Final = b"primary-key"
_ROW_ADDRESS: Final = "_rowaddr"
_ROW_ID: Final = "_rowid"
# The numbers of more rows take too much memory to be kept.
_SHARED_NUMBERS: Final = 1 << 18

# Rows of generations that are read together, which bounds the memory of a scan.
_GROUP_ROWS: Final = 1 << 20
# The columns of a generation are read when rows are taken for the third time.
_TAKES_BEFORE: Final = 2
# An index takes as long as some thirty filters over all rows, and each filter a fifth from then on.
_USES_BEFORE_INDEX: Final = 8


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """Fragments of the data set of a generation, with their rows."""

    fragments: tuple[tuple[int, int], ...]  # Number and rows of each, in the order of a scan.
    rows: int  # Of all fragments.
    has_deletions: bool  # Whether rows were deleted from it, as no MemWAL writer does.
    file_bytes: float  # Size of its data files; infinite if it is not recorded.

    def addresses(self) -> Addresses:
        """Return the address of each row."""
        if [number for number, _ in self.fragments] == [0]:
            return row_numbers(self.rows)
        parts = [row_numbers(rows) + np.uint64(number << 32) for number, rows in self.fragments]
        return np.concatenate([np.empty(0, np.uint64), *parts])

    def addresses_at(self, positions: Positions) -> Addresses:
        """Return the addresses of the rows at some positions in the order of a scan."""
        addresses = np.empty(len(positions), np.uint64)
        start = 0
        for number, rows in self.fragments:
            inside = positions >= start
            addresses[inside] = (positions[inside] - start + (number << 32)).view(np.uint64)
            start += rows
        return addresses

    def positions(self, addresses: Addresses) -> npt.NDArray[np.int64]:
        """Return the position of each row in the order of a scan, by its address."""
        positions = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
        inside = addresses >> np.uint64(32)
        start = 0
        for number, rows in self.fragments:
            positions[inside == number] += start
            start += rows
        return positions

    def mask(self, live: Addresses) -> Mask:
        """Mark the rows that have one of some addresses, which are ascending."""
        if len(live) == self.rows:
            return np.ones(self.rows, np.bool_)
        mask = np.zeros(self.rows, np.bool_)
        start = 0
        for number, rows in self.fragments:
            bounds = np.array([number, number + 1], np.uint64) << np.uint64(32)
            first, last = np.searchsorted(live, bounds)
            offsets = live[first:last] - bounds[0]
            mask[start + offsets.view(np.int64)] = True
            start += rows
        return mask


def row_numbers(count: int) -> Addresses:
    """Return the numbers of rows from 0 on, for reading only: generations share their memory."""
    if count > _SHARED_NUMBERS:
        return np.arange(count, dtype=np.uint64)
    return _numbers(1 << max(count - 1, 0).bit_length())[:count]


@cache  # A power of two up to the limit: four megabytes in all.
def _numbers(count: int) -> Addresses:
    numbers = np.arange(count, dtype=np.uint64)
    numbers.flags.writeable = False
    return numbers


def layout_of(source: GenerationSource) -> FragmentLayout:
    """Return the layout of a flushed generation, which never changes."""

    def read() -> FragmentLayout:
        fragments = source.dataset.get_fragments()
        return FragmentLayout(
            tuple((int(part.fragment_id), int(part.physical_rows)) for part in fragments),
            sum(int(part.physical_rows) for part in fragments),
            any(part.metadata.deletion_file for part in fragments),
            sum(
                file.file_size_bytes or math.inf for part in fragments for file in part.data_files()
            ),
        )

    return _layouts.get(source.identity, read)


def read_columns(source: GenerationSource, names: Sequence[str]) -> pa.Table:
    """Read columns of a flushed generation, in the order of its rows."""
    layout = layout_of(source)
    with lance_errors(f"reading {source.identity}"):
        if layout.rows <= TAKEN_ROWS and not layout.has_deletions:
            return source.dataset.take(range(layout.rows), columns=list(names))
        return source.dataset.scanner(columns=list(names), scan_in_order=True).to_table()


def group_generations(layouts: Mapping[int, FragmentLayout]) -> Iterator[list[int]]:
    """Group flushed generations, by their positions, into lists with a bounded number of rows."""
    group: list[int] = []
    count = 0
    for position, layout in layouts.items():
        rows = layout.rows
        if group and count + rows > _GROUP_ROWS:
            yield group
            group, count = [], 0
        group.append(position)
        count += rows
    if group:
        yield group


def read_together(
    sources: Sequence[GenerationSource], schema: pa.Schema, names: Sequence[str]
) -> pa.Table | None:
    """Return columns of flushed generations, by address; None if they have to be scanned."""
    if not all(is_narrow(schema.field(name).type) for name in names):
        return None
    identities = tuple(source.identity for source in sources)
    if None in identities:
        return None
    key = (identities, tuple(names))
    together = _together.use(key)
    if together is None:
        tables = run_all([partial(_columns_of, source, names) for source in sources])
        if any(table is None for table in tables):
            return None
        together = pa.concat_tables(tables).combine_chunks()
        _together.put(key, together)
    return together


def read_ahead(
    source: GenerationSource, names: Sequence[str], others: Sequence[str]
) -> pa.Table | None:
    """Return columns of a generation, and keep other narrow ones of the same pass in memory.

    None if the columns have to be scanned: they are large, or rows were deleted.
    """
    schema = source.dataset.schema
    every = list(dict.fromkeys([*names, *others]))
    is_kept = all(is_narrow(schema.field(name).type) for name in every)
    if source.identity is None or not is_kept or layout_of(source).has_deletions:
        return None
    # If another column is too large to be kept, these are in memory nevertheless.
    _columns_of(source, every)
    return _columns_of(source, names)


def take_stored(
    source: GenerationSource, schema: pa.Schema, names: Sequence[str], addresses: Addresses
) -> pa.Table:
    """Read rows of a flushed generation; narrow columns of ``schema`` from memory if kept there."""
    kinds = {field.name: field.type for field in schema}
    narrow = [name for name in names if name in kinds and is_narrow(kinds[name])]
    rows = _take_from_memory(source, narrow, addresses) if narrow else None
    others = list(names) if rows is None else [name for name in names if name not in narrow]
    if rows is None or others:
        read = source.dataset._take_rows(addresses.tolist(), columns=others)
        if rows is None:
            return read
        for name in others:
            rows = rows.append_column(name, read.column(name))
    return rows.select(list(names))


def _take_from_memory(
    source: GenerationSource, names: Sequence[str], addresses: Addresses
) -> pa.Table | None:
    def is_due() -> bool:
        takes = _takes.get((source.identity, tuple(names)), itertools.count)
        return next(takes) >= _TAKES_BEFORE

    if source.identity is None:
        return None
    layout = layout_of(source)
    if layout.has_deletions:
        return None
    columns = _columns_of(source, names, may_read=is_due)
    return None if columns is None else columns.take(pa.array(layout.positions(addresses)))


def passing_together(
    sources: Sequence[GenerationSource],
    schema: pa.Schema,
    names: Sequence[str],
    filter: str,
    *,
    is_indexed: Callable[[str], bool],
) -> npt.NDArray[np.int64] | None:
    """Return positions of the rows of :func:`read_together` that pass, ascending; None as there."""
    key = (tuple(source.identity for source in sources), tuple(names))
    cached = _filtered.use(key)
    if cached is None:
        rows = read_together(sources, schema, names)
        if rows is None:
            return None
        cached = _Filtered(write_in_memory(without_key_marks(rows)), rows.nbytes)
        _filtered.put(key, cached)
    if next(cached.uses) == _USES_BEFORE_INDEX:
        cached = cached.indexed([name for name in names if is_indexed(name)])
        _filtered.put(key, cached)
    found = cached.dataset.scanner(columns=[], filter=filter, with_row_address=True).to_table()
    return np.sort(found.column(_ROW_ADDRESS).to_numpy().view(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class _Filtered:
    """Columns that reads filter by, as a data set in memory."""

    dataset: lance.LanceDataset
    nbytes: int
    uses: Iterator[int] = field(default_factory=itertools.count)

    def indexed(self, names: Sequence[str]) -> _Filtered:
        """Return a copy with an index on each of ``names``: another thread may read this one."""
        if not names:
            return self
        copy = write_in_memory(self.dataset.to_table())
        for name in names:
            copy.create_scalar_index(name, "BTREE")
        return _Filtered(copy, (1 + 2 * len(names)) * self.nbytes, self.uses)


def without_key_marks(rows: pa.Table) -> pa.Table:
    """Return rows without the marks of key columns: some of the key columns are not a key."""
    fields = []
    for column in rows.schema:
        metadata = {k: value for k, value in (column.metadata or {}).items() if _KEY_FIELD not in k}
        fields.append(column.with_nullable(True).with_metadata(metadata))
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))


def is_narrow(kind: pa.DataType) -> bool:
    return (pt.is_primitive(kind) or pt.is_string(kind) or pt.is_binary(kind)) and not isinstance(
        kind, pa.BaseExtensionType
    )


def _columns_of(
    source: GenerationSource, names: Sequence[str], *, may_read: Callable[[], bool] = lambda: True
) -> pa.Table | None:
    """Return columns of a generation; None if one of them is not in memory and is not read.

    It is not read if it is too large to be kept, or if it ``may_read`` not.
    """
    columns = {name: _columns.use((source.identity, name)) for name in names}
    missing = [name for name, cached in columns.items() if cached is None]
    # To find out how large a column of long texts is, all of it would have to be read.
    if missing and (layout_of(source).file_bytes > _MAX_FILE_BYTES or not may_read()):
        return None
    if missing:
        read = read_columns(source, missing)
        for name in missing:
            column = read.column(name).combine_chunks()
            kept = (column if column.nbytes <= _MAX_COLUMN_BYTES else None,)
            _columns.put((source.identity, name), kept)
            columns[name] = kept
    arrays = [cached[0] for cached in columns.values() if cached is not None]
    if any(array is None for array in arrays):
        return None
    return pa.table(arrays, names=list(columns))


_layouts: LruCache[FragmentLayout] = LruCache(1 << 16)
_takes: LruCache[Iterator[int]] = LruCache(10_000)
_columns: LruCache[tuple[pa.ChunkedArray | None]] = LruCache(
    256 << 20, lambda column: 0 if column[0] is None else int(column[0].nbytes)
)
_together: LruCache[pa.Table] = LruCache(256 << 20, lambda rows: rows.nbytes)
_filtered: LruCache[_Filtered] = LruCache(128 << 20, lambda cached: cached.nbytes)


# Fewer rows are filtered as quickly by Lance; more take too much memory.
_FEWEST_ROWS: Final = 20_000
_MOST_ROWS: Final = 4_000_000
# The columns of a fragment are kept from the second filter on.
_FILTERS_BEFORE: Final = 1
# If a larger share of the rows passes, they are scanned.
_FEW_OF: Final = 8


def filter_uncovered(
    base: BaseTable, fragments: Sequence[int], names: Sequence[str], filter: str
) -> tuple[list[lance.LanceFragment], RowIds] | None:
    """Find rows of fragments without an index that pass, in memory; None if Lance is to scan.

    Between a merge and the next index build, Lance reads the filter's columns of all rows that the
    index does not have, again for each scan. The rows of a file never change: if they are filtered
    repeatedly, the columns are kept in memory, for all versions with the file, and a scan reads
    only the rows that pass.

    ``names`` are the columns that the filter names. Returns the other fragments, which are scanned
    by their indexes, and the ids of the rows that pass, ascending; deleted rows may be among them.
    """
    if not fragments or not all(is_narrow(base.schema.field(name).type) for name in names):
        return None
    parts = {number: base.dataset.get_fragment(number) for number in fragments}
    if not _FEWEST_ROWS <= sum(part.physical_rows for part in parts.values()) <= _MOST_ROWS:
        return None
    states, ids = fragments_of(base).states, base.field_ids()
    columns = tuple((name, ids[name], str(base.schema.field(name).type)) for name in names)
    keys = {}
    for number in fragments:
        state = states[number]
        # With stable row ids, only rows that are not deleted have theirs.
        live = state.deletions if base.dataset.has_stable_row_ids else None
        keys[number] = (base.location.uri, columns, number, state.files, live)
    key = tuple(keys.values())
    kept = _uncovered.use(key)
    if kept is None:
        rows = {number: _fragment_rows.use(keys[number]) for number in fragments}
        missing = [parts[number] for number in fragments if rows[number] is None]
        if (
            len(missing) == len(parts)
            and next(_filters.get(key, itertools.count)) < _FILTERS_BEFORE
        ):
            return None
        for number, read in _read_fragments(base, missing, names).items():
            _fragment_rows.put(keys[number], read)
            rows[number] = read
        together = pa.concat_tables([rows[number] for number in fragments])
        dataset = write_in_memory(without_key_marks(together.select(list(names))))
        kept = dataset, together.column(_ROW_ID).to_numpy(), int(together.nbytes)
        _uncovered.put(key, kept)
    dataset, row_ids, _ = kept
    found = dataset.scanner(columns=[], filter=filter, with_row_address=True).to_table()
    if found.num_rows * _FEW_OF > len(row_ids):
        return None
    at = found.column(_ROW_ADDRESS).to_numpy().view(np.int64)
    covered = [part for part in base.dataset.get_fragments() if part.fragment_id not in parts]
    return covered, np.sort(row_ids[at])


def _read_fragments(
    base: BaseTable, parts: Sequence[lance.LanceFragment], names: Sequence[str]
) -> dict[int, pa.Table]:
    """Read columns of fragments with the ids of their rows; deleted rows too if they have ids."""
    if not parts:
        return {}
    rows = base.dataset.scanner(
        columns=list(names),
        with_row_id=True,
        fragments=list(parts),
        scan_in_order=True,
        include_deleted_rows=True,
    ).to_table()
    found, start = {}, 0
    for part in parts:
        own = rows.slice(start, part.physical_rows)
        start += part.physical_rows
        if base.dataset.has_stable_row_ids:
            own = own.filter(own.column(_ROW_ID).is_valid())
        else:
            first = np.uint64(part.fragment_id << 32)
            numbers = pa.array(np.arange(len(own), dtype=np.uint64) + first)
            own = own.set_column(own.schema.get_field_index(_ROW_ID), _ROW_ID, numbers)
        found[int(part.fragment_id)] = own.combine_chunks()
    return found


# Columns of fragments and the ids of their rows.
_fragment_rows: LruCache[pa.Table] = LruCache(128 << 20, lambda rows: rows.nbytes)
# Columns in memory, the row id of each of their rows, and their size.
_uncovered: LruCache[tuple[lance.LanceDataset, RowIds, int]] = LruCache(
    128 << 20, lambda kept: kept[2]
)
_filters: LruCache[Iterator[int]] = LruCache(1_000)
