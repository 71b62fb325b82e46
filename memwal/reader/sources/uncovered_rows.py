"""Rows of the base table that no scalar index covers, and which of them pass a filter.

Between a merge and the next index build, Lance reads the filter's columns of all rows that the
index does not have, again for each scan. These rows never change in a version. So if a version is
filtered repeatedly, the columns are kept in memory, and a scan reads only the rows that pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import lance
import numpy as np
import pyarrow as pa

from memwal.base_table.snapshot import BaseTable
from memwal.reader.cache.keys import version_key
from memwal.reader.cache.lru import LruCache
from memwal.reader.sources.generation import write_in_memory
from memwal.reader.sources.narrow_columns import is_narrow, without_key_mark
from memwal.util.arrays import RowIds

_ROW_ID: Final = "_rowid"
_ROW_ADDRESS: Final = "_rowaddr"
_KEPT_BYTES: Final = 128 << 20
# Fewer rows are filtered as quickly by Lance; more take too much memory.
_FEWEST_ROWS: Final = 20_000
_MOST_ROWS: Final = 4_000_000
# The columns of a version are kept from the third filter on.
_FILTERS_BEFORE: Final = 2
_KNOWN_VERSIONS: Final = 1_000
# If a larger share of the rows passes, they are scanned.
_FEW_OF: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class FilteredRows:
    """Rows that pass a filter, and the fragments that are still to be scanned for others."""

    covered: list[lance.LanceFragment]  # Fragments that are scanned by their indexes.
    passing: RowIds  # Row ids of all others that pass, ascending.


@dataclass(frozen=True, slots=True, eq=False)
class _Uncovered:
    """The filter's columns of the rows that an index does not cover, in memory."""

    columns: lance.LanceDataset
    row_ids: RowIds  # Of each row of ``columns``.
    nbytes: int


def filter_uncovered(
    base: BaseTable, fragments: Sequence[int], names: Sequence[str], filter: str
) -> FilteredRows | None:
    """Find the rows of the fragments without an index that pass a filter, in memory.

    ``names`` are the columns that the filter names. Returns None if there are no such rows, or they
    are best filtered by Lance's own scan.
    """
    if not fragments or not all(is_narrow(base.schema.field(name).type) for name in names):
        return None
    rows = sum(base.dataset.get_fragment(number).physical_rows for number in fragments)
    if not _FEWEST_ROWS <= rows <= _MOST_ROWS:
        return None
    key = (version_key(base), tuple(names), tuple(fragments))
    kept = _kept.use(key)
    if kept is None:
        if next(_filters.get(key, itertools.count)) < _FILTERS_BEFORE:
            return None
        kept = _read(base, names, fragments)
        _kept.put(key, kept)
    found = kept.columns.scanner(columns=[], filter=filter, with_row_address=True).to_table()
    if found.num_rows * _FEW_OF > len(kept.row_ids):
        return None
    at = found.column(_ROW_ADDRESS).to_numpy().view(np.int64)
    covered = [part for part in base.dataset.get_fragments() if part.fragment_id not in fragments]
    return FilteredRows(covered, np.sort(kept.row_ids[at]))


def _read(base: BaseTable, names: Sequence[str], fragments: Sequence[int]) -> _Uncovered:
    rows = base.dataset.scanner(
        columns=list(names),
        with_row_id=True,
        fragments=[base.dataset.get_fragment(number) for number in fragments],
    ).to_table()
    fields = [without_key_mark(rows.schema.field(name)) for name in names]
    columns = pa.Table.from_arrays([rows.column(name) for name in names], schema=pa.schema(fields))
    row_ids = rows.column(_ROW_ID).to_numpy()
    return _Uncovered(write_in_memory(columns), row_ids, int(columns.nbytes + row_ids.nbytes))


_kept: LruCache[_Uncovered] = LruCache(_KEPT_BYTES, lambda kept: kept.nbytes)
_filters: LruCache[Iterator[int]] = LruCache(_KNOWN_VERSIONS)
