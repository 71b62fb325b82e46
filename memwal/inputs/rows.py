"""Rows and keys as callers have them: Arrow data, data frames, models, and objects of Python.

No library of data frames or models is imported: its objects are known by Arrow's C interface, by
the module that the caller has imported already, or by their ``model_dump``. Columns of Python
values first get the type that their values have, and are then cast to the table's type as any other
column: Arrow's conversion of Python values straight to a type drops parts of values that do not
fit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from itertools import chain
from operator import methodcaller
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import ArgumentTypeError, InvalidInputError, MemWalError
from memwal.format.values import ArrowStream, contains_type
from memwal.inputs.casts import CAST_ERRORS, first_failure, show


class Model(Protocol):
    """Object of a model class of pydantic, such as LanceDB's ``LanceModel``."""

    def model_dump(self) -> dict[str, Any]: ...


Rows: TypeAlias = ArrowStream | Model | Mapping[str, Any] | Sequence[Any]
"""Rows: Arrow data, a data frame, a dict of columns, a list of dicts or models, or one of them."""

Keys: TypeAlias = Rows | pa.Array | npt.NDArray[Any] | str | int
"""Keys: rows with the key columns, or the values of the only key column, or one of them."""

ArrowData: TypeAlias = pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray

_TEXTS: Final = (str, bytes, bytearray, memoryview)
_SINGLE: Final = (*_TEXTS, int, float, np.generic, pa.Scalar)
_ACCEPTED: Final = (
    "pass a pyarrow table, batch or reader, a data frame, a dict of columns, or a list of dicts"
)
# Columns in the example of a row that a message shows.
_MAX_EXAMPLE: Final = 4
Columns: TypeAlias = list[tuple[str, Any]]
Result = TypeVar("Result")


def import_data(data: Any) -> Any:
    """Return data that Arrow can import as that of pyarrow, streams read; others as they are."""
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return data
    if isinstance(data, (pa.Array, pa.ChunkedArray)):
        return _columns_of(data)
    if isinstance(data, pa.RecordBatchReader):
        return _call_foreign(data, data.read_all)
    column = _import_column(data)
    return data if column is None else _columns_of(column)


def to_rows(data: object, schema: pa.Schema, primary_key: Sequence[str]) -> pa.Table:
    """Return rows as an Arrow table or batch, with the columns that were given."""
    rows = import_data(data)
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        return rows
    if isinstance(rows, (pa.Array, pa.ChunkedArray)):
        raise ArgumentTypeError(
            f"a single column of {rows.type} has no names of columns; pass a table or a data frame"
        )
    if _is_list(rows) and not len(rows):
        return schema.empty_table()
    columns = _named_columns(rows, primary_key)
    if columns is None:
        raise ArgumentTypeError(f"{_describe_nameless(data, schema)}; {_ACCEPTED}")
    return _to_table(columns, schema)


def to_keys(data: object, schema: pa.Schema, primary_key: Sequence[str]) -> pa.Table:
    """Return keys as Arrow data; of a single key column, bare values are accepted."""
    keys = import_data(data)
    if isinstance(keys, (pa.Table, pa.RecordBatch)):
        return keys
    if _is_list(keys) and not len(keys):
        return schema.empty_table()
    if not isinstance(keys, (pa.Array, pa.ChunkedArray)):
        columns = _named_columns(keys, primary_key)
        if columns is not None:
            return _to_table(columns, schema)
        if not (_is_values(keys) or isinstance(keys, _SINGLE)):
            raise ArgumentTypeError(
                f"keys of type {type(data).__name__} are not known; {_ACCEPTED}, or the values of "
                "the only key column as an array, a list or one value"
            )
    if len(primary_key) != 1:
        raise InvalidInputError(
            f"the key has the columns {', '.join(primary_key)}, so keys must name them; {_ACCEPTED}"
        )
    (name,) = primary_key
    if not isinstance(keys, (pa.Array, pa.ChunkedArray)):
        values = keys if _is_values(keys) else [keys]
        keys = _to_arrow(name, values, _type_of(schema, name))
    if isinstance(keys, pa.Array):
        return pa.RecordBatch.from_arrays([keys], [name])
    return pa.Table.from_arrays([keys], [name])


def _to_table(columns: Columns, schema: pa.Schema) -> pa.Table:
    arrays = [_to_arrow(name, values, _type_of(schema, name)) for name, values in columns]
    names = [name for name, _ in columns]
    if len({len(array) for array in arrays}) > 1:
        lengths = ", ".join(f"{n} {len(a)}" for n, a in zip(names, arrays, strict=True))
        raise InvalidInputError(f"columns have different numbers of values: {lengths}")
    return pa.Table.from_arrays(arrays, names=names)


def _named_columns(data: object, primary_key: Sequence[str]) -> Columns | None:
    """Return the columns of Python objects by name; None if they have no names."""
    if _is_pandas(data):
        return _pandas_columns(data)
    if _is_model(data):
        return _columns_of_rows([data])
    if isinstance(data, Mapping):
        keys = [data[name] for name in primary_key if name in data]
        if all(map(_is_values, keys or data.values())):
            return list(data.items())
        return _columns_of_rows([data])
    if _is_list(data) and all(map(_is_row, data)):
        return _columns_of_rows(data)
    return None


def _describe_nameless(data: object, schema: pa.Schema) -> str:
    """Describe rows whose columns have no names, for a message."""
    if not _is_list(data):
        return f"rows of type {type(data).__name__} are not known"
    number, row = next((n, row) for n, row in enumerate(data) if not _is_row(row))
    example = ", ".join(f"{name!r}: ..." for name in schema.names[:_MAX_EXAMPLE])
    return (
        f"row {number} of the list (the first is 0), {show(row)}, is of type {type(row).__name__}, "
        f"which does not name its columns: make it a dict, {{{example}}}"
    )


def _columns_of_rows(rows: Sequence[Any]) -> Columns:
    """Return the columns of dicts or models, which all have the same names."""
    dicts = [row if isinstance(row, Mapping) else _dump(row) for row in rows]
    names = dicts[0].keys()
    for number, row in enumerate(dicts):
        if row.keys() != names:
            differs = ", ".join(sorted(map(repr, row.keys() ^ names)))
            raise InvalidInputError(
                f"row {number} (the first is 0) and row 0 differ in their columns: {differs}; give "
                "the same ones in every row, with None where there is no value"
            )
    return [(name, [row[name] for row in dicts]) for name in names]


def _dump(model: Any) -> Mapping[str, Any]:
    dumped = _call_foreign(model, model.model_dump)
    if not isinstance(dumped, Mapping):
        raise ArgumentTypeError(f"model_dump of a {type(model).__name__} returns no dict")
    return dumped


def _pandas_columns(data: Any) -> Columns | None:
    """Return the columns of a data frame, and the levels of its index that have a name.

    An index without names only numbers the rows, or did before some of them were taken.
    """
    if not _is_frame(data):
        return None
    levels = [
        (name, data.index.get_level_values(number))
        for number, name in enumerate(data.index.names)
        if name is not None
    ]
    return [*levels, *data.items()]


def _to_arrow(name: Any, values: Any, target: pa.DataType | None) -> pa.Array:
    """Return the values of a column with the type that they have themselves."""
    if not isinstance(name, str):
        raise InvalidInputError(
            f"a column is called {name!r}, of type {type(name).__name__}; names must be text"
        )
    if not _is_values(values):
        raise InvalidInputError(
            f"column {name} is of type {type(values).__name__}; give a list of values, or a single "
            "value in every column for one row"
        )
    if target is not None and not pt.is_floating(target) and _has_no_values(values):
        return pa.nulls(len(values))
    column = _import_column(values)
    if column is not None:
        return column
    is_map = target is not None and pt.is_map(target)

    def read(values: Any) -> pa.Array:
        return _read_values(_pairs(values) if is_map else values)

    try:
        return read(values)
    except CAST_ERRORS as error:
        listed = list(values)
        # With all values before it: Arrow infers one type for all.
        row = first_failure(len(listed), lambda _start, end: read(listed[:end]))
        expected = "" if target is None else f", in a column of type {target}"
        raise InvalidInputError(
            f"column {name}, row {row} (the first is 0): {show(listed[row])}, of type "
            f"{type(listed[row]).__name__}, is no value that Arrow knows, or of another kind than "
            f"those before it{expected}; correct it, or leave the row out"
        ) from error


def _read_values(values: Any) -> pa.Array:
    """Return values of Python, numpy or pandas as an array of the type that Arrow infers."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        if values.ndim > 2 or not values.shape[1]:
            return _read_values(values.tolist())
        return pa.FixedSizeListArray.from_arrays(_read_values(values.ravel()), values.shape[1])
    as_pandas = False
    try:
        array = pa.array(values)
    except OverflowError:
        # Integers above 2**63.
        return pa.array(values, pa.decimal128(38, 0))
    except CAST_ERRORS:
        if any(isinstance(value, lance.Blob) for value in values):
            return lance.blob_array(values)
        # NaN, NaT and NA among values of another type are nulls of pandas.
        array = pa.array(values, from_pandas=True)
        as_pandas = True
    if not (isinstance(values, Sequence) or values.dtype.kind == "O"):
        return array
    if contains_type(array.type, pt.is_date) and any(map(_has_nat, values)):
        # Arrow takes NaT for the date 0001-01-01, unless for a null of pandas.
        array = pa.array(values, from_pandas=True)
        as_pandas = True
    exact = _with_exact_times(array.type, values)
    if exact == array.type:
        return array
    if pt.is_date(array.type):
        as_pandas = True
        values = [
            datetime.combine(value, time())
            if isinstance(value, date) and not isinstance(value, datetime)
            else value
            for value in values
        ]
    # Arrow refuses dates here that are within lists or structs.
    return pa.array(values, exact, from_pandas=as_pandas)


def _has_nat(value: Any) -> bool:
    """Return whether a value is NaT of pandas, or has it in a list or a dict."""
    if isinstance(value, Mapping):
        return any(map(_has_nat, value.values()))
    if _is_values(value):
        return any(map(_has_nat, value))
    return isinstance(value, datetime) and value != value


def _with_exact_times(kind: pa.DataType, values: Iterable[Any]) -> pa.DataType:
    """Return the type of values, where the timestamps have the unit and the zone that these need.

    ``kind`` is inferred by Arrow, which drops nanoseconds, and times and zones of mixed values.
    """
    if pt.is_list(kind):
        lists = (v for v in values if isinstance(v, Iterable) and not isinstance(v, pa.Scalar))
        return pa.list_(_with_exact_times(kind.value_type, chain.from_iterable(lists)))
    if pt.is_struct(kind):
        rows = [value for value in values if isinstance(value, dict)]
        parts = [map(methodcaller("get", field.name), rows) for field in kind]
        exact = map(_with_exact_times, [field.type for field in kind], parts)
        return pa.struct([field.with_type(k) for field, k in zip(kind, exact, strict=True)])
    if not (pt.is_date(kind) or pt.is_timestamp(kind)):
        return kind
    times = [value for value in values if isinstance(value, datetime) and value == value]
    if not times:
        return kind
    unit = "ns" if any(getattr(value, "nanosecond", 0) for value in times) else "us"
    has_zone = any(value.tzinfo is not None for value in times)
    return pa.timestamp(unit, "UTC" if has_zone else None)


def _pairs(values: Iterable[Any]) -> list[Any]:
    """Return dicts, or lists of pairs, as lists that Arrow reads without knowing the type."""

    def pairs(value: Any) -> Any:
        items = value.items() if isinstance(value, Mapping) else value
        if not isinstance(items, Iterable) or isinstance(items, _TEXTS):
            return items
        return [dict(zip(("key", "value"), item, strict=True)) for item in items]

    return [pairs(value) for value in values]


def _type_of(schema: pa.Schema, name: Any) -> pa.DataType | None:
    at = schema.get_field_index(name) if isinstance(name, str) else -1
    return None if at < 0 else schema.field(at).type


def _has_no_values(column: Any) -> bool:
    """Return whether a column of pandas has floats by its type, because it has nulls only."""
    return _is_pandas(column) and column.dtype.kind == "f" and bool(column.isna().all())


def _is_values(value: object) -> bool:
    """Return whether an object is a column of values, and no single value."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    if _is_pandas(value):
        return not _is_frame(value)
    return (
        _is_list(value)
        or isinstance(value, (pa.Array, pa.ChunkedArray))
        or (hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"))
    )


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, _TEXTS)


def _is_row(value: object) -> bool:
    return isinstance(value, Mapping) or _is_model(value)


def _is_model(value: object) -> bool:
    return hasattr(value, "model_dump") and not isinstance(value, type)


def _is_pandas(value: object) -> bool:
    """Return whether an object is a data frame, a Series or an index of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series, pandas.Index))


def _is_frame(value: object) -> bool:
    return hasattr(value, "columns")


def _columns_of(array: pa.Array | pa.ChunkedArray) -> ArrowData:
    """Return structs as rows with their fields as columns, and other values unchanged."""
    if not pt.is_struct(array.type):
        return array
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    schema = pa.schema(list(array.type))
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(c) for c in chunks], schema)


def _import_column(data: Any) -> pa.Array | pa.ChunkedArray | None:
    """Import an object with Arrow's C interface, structs for rows; None for anything else."""
    if isinstance(data, (pa.Array, pa.ChunkedArray)):
        return data
    # A data frame of pandas adds its index to its columns here.
    if isinstance(data, type) or _is_pandas(data):
        return None
    if hasattr(data, "__arrow_c_stream__"):
        return _call_foreign(data, lambda: pa.chunked_array(data))
    if hasattr(data, "__arrow_c_array__"):
        return _call_foreign(data, lambda: pa.array(data))
    return None


def _call_foreign(data: object, read: Callable[[], Result]) -> Result:
    """Call code of the caller, which may raise anything."""
    try:
        return read()
    except MemWalError:
        raise
    except Exception as error:
        # The message may quote a value.
        raise InvalidInputError(
            f"reading the rows from a {type(data).__name__} failed with {type(error).__name__}; "
            "nothing was written"
        ) from error
