"""Where in the base table given keys are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.reader.base_indexes import covered_fragments, find_index
from memwal.reader.batches import ROW_ID, gathered
from memwal.reader.row_set import RowIds
from memwal.region.newest import key_column
from memwal.table_index.base_table import BaseTable

if TYPE_CHECKING:
    import lance

Positions = npt.NDArray[np.int64]

# Asking the index for a key takes as long as comparing so many keys of the table (measured on
# integers: 2 us and 20 ns).
_ROWS_PER_KEY = 100
_KEYS_AT_ONCE = 5_000
# Each comparison hashes all wanted keys, and larger pieces share that cost.
_COMPARED_ROWS = 1 << 20
_COMPARED_BYTES = 32 << 20


def rows_of_keys(base: BaseTable, keys: pa.Array) -> tuple[RowIds, Positions]:
    """Find the rows of many keys: by the table's index on the key, or by one pass over all keys.

    The index is asked where that is quicker: for few keys of a large table.

    Parameters
    ----------
    keys : pyarrow.Array
        Distinct keys as :func:`memwal.region.newest.key_column` gives them.

    Returns
    -------
    tuple of numpy.ndarray of uint64 and numpy.ndarray of int64
        Row ids in no promised order, and the position of the key of each among ``keys``.
    """
    fragments = base.dataset.get_fragments()
    if not fragments or not len(keys):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    indexed = _indexed(base, fragments)
    rows = sum(fragment.physical_rows for fragment in indexed)
    if len(keys) * _ROWS_PER_KEY > rows:
        return _passed_over(base, keys, fragments)
    asked = _asked_of_index(base, keys, indexed)
    known = {fragment.fragment_id for fragment in indexed}
    others = [fragment for fragment in fragments if fragment.fragment_id not in known]
    if not others:
        return asked
    passed = _passed_over(base, keys, others)
    return np.concatenate([asked[0], passed[0]]), np.concatenate([asked[1], passed[1]])


def key_predicate(keys: pa.Table) -> str:
    """A predicate for the rows of some keys.

    Of a composite key it lets through every combination of the columns' values.

    Raises
    ------
    InvalidInputError
        A column has a type that SQL has no values of.
    """
    return " and ".join(
        f"{_quoted(name)} in ({', '.join(_literals(column))})"
        for name, column in zip(keys.column_names, keys.columns, strict=True)
    )


def _indexed(
    base: BaseTable, fragments: Sequence[lance.LanceFragment]
) -> list[lance.LanceFragment]:
    """Fragments whose rows an index finds by key."""
    if len(base.primary_key) != 1:
        return []
    index = find_index(
        base.dataset.describe_indices(), base.primary_key[0], lambda kind: kind.upper() == "BTREE"
    )
    if index is None:
        return []
    covered = covered_fragments(index)
    return [fragment for fragment in fragments if fragment.fragment_id in covered]


def _asked_of_index(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment]
) -> tuple[RowIds, Positions]:
    (name,) = base.primary_key
    # Neighbours share the pages of the index.
    order = pc.array_sort_indices(keys)
    row_ids, positions = [], []
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        asked = keys.take(order.slice(start, _KEYS_AT_ONCE))
        rows = base.dataset.scanner(
            columns=[name],
            filter=key_predicate(pa.table({name: asked})),
            with_row_id=True,
            fragments=list(fragments),
        ).to_table()
        at = pc.index_in(key_column(rows, base.primary_key), value_set=asked)
        row_ids.append(rows.column(ROW_ID).to_numpy())
        positions.append(order.to_numpy()[start + at.to_numpy()].astype(np.int64))
    return np.concatenate(row_ids), np.concatenate(positions)


def _passed_over(
    base: BaseTable, keys: pa.Array, fragments: Sequence[lance.LanceFragment]
) -> tuple[RowIds, Positions]:
    row_ids, positions = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    scanner = base.dataset.scanner(
        columns=list(base.primary_key), with_row_id=True, fragments=list(fragments)
    )
    for batches in gathered(scanner.to_batches(), rows=_COMPARED_ROWS, max_bytes=_COMPARED_BYTES):
        piece = pa.Table.from_batches(batches)
        at = pc.index_in(key_column(piece, base.primary_key), value_set=keys)
        row_ids.append(piece.column(ROW_ID).filter(at.is_valid()).to_numpy())
        positions.append(at.drop_null().to_numpy().astype(np.int64))
    return np.concatenate(row_ids), np.concatenate(positions)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literals(column: pa.ChunkedArray) -> list[str]:
    kind = column.type
    if pt.is_boolean(kind):
        return ["true" if value else "false" for value in column.to_pylist()]
    if pt.is_integer(kind):
        # The parser takes the digits of the smallest one for a float.
        smallest = -(1 << 63)
        return [
            f"cast('{value}' as bigint)" if value == smallest else str(value)
            for value in column.to_pylist()
        ]
    if pt.is_string(kind) or pt.is_large_string(kind):
        return ["'" + value.replace("'", "''") + "'" for value in column.to_pylist()]
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return ["X'" + value.hex() + "'" for value in column.to_pylist()]
    raise InvalidInputError(f"a key of type {kind} cannot be looked up")
