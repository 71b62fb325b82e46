"""Rows whose columns are stored as dictionaries with narrow indices.

In memory such a column has plain values: see :func:`memwal.format.lance_manifest.plain_manifest`.
Log entries and data files have the dictionaries that the table's manifest promises, so that Lance's
own clients read and write the table as before. Lance joins the dictionaries of one file, and writes
indices that no reader can decode if the values are too many for their type: a file therefore gets
only as many values as its indices can number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.format.wal_layout import has_dictionaries
from memwal.inputs.casts import CAST_ERRORS, plan_cast


def to_dictionaries(rows: pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return rows with the types of ``schema``, in as few batches as the indices allow."""
    columns = []
    for field, column in zip(schema, rows.columns, strict=True):
        cast = plan_cast(column.type, field.type)
        if cast is None:
            raise InvalidInputError(f"column {field.name}: {column.type} is not {field.type}")
        try:
            columns.append(cast(column))
        except CAST_ERRORS as error:
            if rows.num_rows == 1:
                raise InvalidInputError(
                    f"column {field.name}: the row has more values than {field.type} can number"
                ) from error
            middle = rows.num_rows // 2
            return [
                part
                for half in (rows.slice(0, middle), rows.slice(middle))
                for part in to_dictionaries(half, schema)
            ]
    return [pa.RecordBatch.from_arrays(columns, schema=schema)]


def divide_by_values(
    rows: pa.RecordBatchReader, schema: pa.Schema
) -> Iterator[pa.RecordBatchReader]:
    """Yield the rows of each file to write, with the types of ``schema``.

    One reader with all rows unless their dictionaries have too many values for one file. Each is to
    be read to its end before the next one.
    """
    if not has_dictionaries(schema):
        yield rows
        return
    parts = (part for batch in rows for part in to_dictionaries(batch, schema))
    following = next(parts, None)

    def rows_of_file(first: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        nonlocal following
        known = _narrow_values(first)
        yield first
        for part in parts:
            joined = [
                pc.unique(pa.concat_arrays(pair))
                for pair in zip(known, _narrow_values(part), strict=True)
            ]
            if any(len(values) > limit for values, limit in zip(joined, limits, strict=True)):
                following = part
                return
            known = joined
            yield part
        following = None

    while following is not None:
        limits = [*chain.from_iterable(map(_limits, following.columns))]
        yield pa.RecordBatchReader.from_batches(schema, rows_of_file(following))


def _narrow_values(rows: pa.RecordBatch) -> list[pa.Array]:
    """Return the values of each dictionary in some columns, or within them."""
    return [array.dictionary for column in rows.columns for array in _dictionaries(column)]


def _limits(column: pa.Array) -> Iterable[int]:
    # A null takes a number in file version 2.0.
    for array in _dictionaries(column):
        kind = array.type.index_type
        yield (1 << kind.bit_width - pt.is_signed_integer(kind)) - 1


def _dictionaries(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    if pt.is_dictionary(array.type):
        yield array
    elif pt.is_struct(array.type):
        for number in range(array.type.num_fields):
            yield from _dictionaries(array.field(number))
    elif pt.is_map(array.type):
        yield from _dictionaries(array.keys)
        yield from _dictionaries(array.items)
    elif pt.is_nested(array.type):
        yield from _dictionaries(array.values)
