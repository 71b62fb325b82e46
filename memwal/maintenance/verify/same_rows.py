"""Which rows of two tables differ, for columns of any type."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

_UNSIGNED = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def differing_rows(left: pa.Table, right: pa.Table) -> npt.NDArray[np.int64]:
    """Numbers of the rows that are not the same, ascending.

    Floats are compared by their bits, so that NaN equals itself. Types have no fast comparison of
    their own beyond "are these arrays equal", so a column that is not is halved until the rows
    are found: as many steps as there are differences, times the logarithm of the rows.

    Parameters
    ----------
    left, right : pyarrow.Table
        With the same columns and the same number of rows.
    """
    differs: npt.NDArray[Any] = np.zeros(left.num_rows, np.bool_)
    for name in left.column_names:
        one, other = (_bits(_array(table.column(name))) for table in (left, right))
        if other.type != one.type:
            other = other.cast(one.type)
        _mark(one, other, differs, 0)
    return np.flatnonzero(differs)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _mark(one: pa.Array, other: pa.Array, differs: npt.NDArray[Any], start: int) -> None:
    if one.equals(other):
        return
    if len(one) == 1:
        differs[start] = True
        return
    middle = len(one) // 2
    _mark(one[:middle], other[:middle], differs, start)
    _mark(one[middle:], other[middle:], differs, start + middle)


def _bits(array: pa.Array) -> pa.Array:
    """The array with unsigned integers in the place of floats, at any depth."""
    data_type = array.type
    if isinstance(data_type, pa.BaseExtensionType):
        return _bits(array.storage)
    if pt.is_floating(data_type):
        return array.view(_UNSIGNED[data_type.bit_width])
    if pt.is_struct(data_type):
        parts = [_bits(part) for part in array.flatten()]
        if not parts:
            return array
        names = [field.name for field in data_type]
        return pa.StructArray.from_arrays(parts, names=names, mask=array.is_null())
    if pt.is_fixed_size_list(data_type):
        values = _bits(array.values.slice(array.offset * data_type.list_size))
        values = values[: len(array) * data_type.list_size]
        return pa.FixedSizeListArray.from_arrays(values, data_type.list_size, mask=array.is_null())
    if pt.is_list(data_type) or pt.is_large_list(data_type):
        kind = pa.ListArray if pt.is_list(data_type) else pa.LargeListArray
        lengths = array.value_lengths().fill_null(0).to_numpy()
        width = np.int32 if pt.is_list(data_type) else np.int64
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(width)
        return kind.from_arrays(pa.array(offsets), _bits(array.flatten()), mask=array.is_null())
    return array
