"""Arrow types and values: which columns Lance can store, raw buffers, and Python values of rows.

Lance creates tables with columns that it then cannot write, read back or find in a query. A writer
would acknowledge rows that could never be flushed, so such columns are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError

VERSIONS_WITHOUT_NULL_STRUCTS: Final = frozenset({"0.1", "legacy", "2.0"})
"""Lance file versions that cannot store a null struct."""

BLOB_TYPE: Final = "lance.blob.v2"
"""Name of the Arrow type of blobs of version 2."""

NO_VALUE = "out of Python's range"
"""Shown for a value that Python cannot represent, such as a date after the year 9999."""

_FORBIDDEN_CHARACTERS: Final = frozenset("`.\0")
_MAPS_SINCE: Final = "2.2"
_WIDE_INDEX: Final = 32
_BLOB: Final = b"lance-encoding:blob"
_NO_NESTED_BLOBS: Final = "blobs within another column in unmerged rows"
_UNSUPPORTED_TYPES: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pt.is_interval,
    pt.is_decimal32,
    pt.is_decimal64,
    pt.is_list_view,
    pt.is_large_list_view,
    pt.is_run_end_encoded,
    pt.is_union,
)


def check_storable(schema: pa.Schema, version: str) -> None:
    """Refuse columns that Lance cannot store in a file version."""
    for problem in unstorable_columns(schema, version).values():
        raise InvalidInputError(problem)


def unstorable_columns(schema: pa.Schema, version: str) -> dict[str, str]:
    """Return the problem of each column that Lance cannot store in a file version."""
    problems = {}
    for field in schema:
        reason = _why_unstorable(field, version, is_nested=False)
        if not field.name or _FORBIDDEN_CHARACTERS & set(field.name):
            problems[field.name] = (
                f"column {field.name!r}: Lance finds no column whose name is empty or has a dot, a "
                "backtick or a NUL; give it another name"
            )
        elif reason is not None:
            problems[field.name] = (
                f"column {field.name} is {field.type}, and Lance cannot keep {reason}; "
                "use another type"
            )
    return problems


def plain_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Return a schema with columns of plain values instead of dictionaries with narrow indices.

    See :func:`memwal.format.lance_manifest.plain_manifest`.
    """
    return pa.schema([_plain_field(field) for field in schema], metadata=schema.metadata)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(kind):
        return kind.value_type if kind.index_type.bit_width < _WIDE_INDEX else kind
    if pt.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    return with_children(kind, [_plain_field(kind.field(n)) for n in range(kind.num_fields)])


def with_children(data_type: pa.DataType, children: list[pa.Field]) -> pa.DataType:
    """Return a struct or a list with other fields inside; any other type as it is."""
    if pt.is_struct(data_type):
        return pa.struct(children)
    if pt.is_list(data_type):
        return pa.list_(children[0])
    if pt.is_large_list(data_type):
        return pa.large_list(children[0])
    if pt.is_fixed_size_list(data_type):
        return pa.list_(children[0], data_type.list_size)
    return data_type


class ArrowStream(Protocol):
    """Data that Arrow can import: a table, batch or reader of any library, or a data frame."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


def to_python_rows(rows: pa.Table) -> list[dict[str, object]]:
    """Return rows as dictionaries by column name, for display.

    Values that Python cannot represent become :data:`NO_VALUE`.
    """
    columns = [_python_values(column) for column in rows.columns]
    return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def find_column(schema: pa.Schema, path: str) -> tuple[list[str], pa.DataType] | None:
    """Return the names that lead to a column, or to a field of a struct, and its type.

    ``None`` if there is none at the path, which joins the names with dots.
    """
    if path in schema.names:
        return [path], schema.field(path).type
    names = path.split(".")
    kind: pa.DataType = pa.struct(list(schema))
    for name in names:
        if not pt.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return names, kind


def is_text(data_type: pa.DataType) -> bool:
    """Return whether this is ``string`` or ``large_string``."""
    return bool(pt.is_string(data_type) or pt.is_large_string(data_type))


def contains_type(kind: pa.DataType, is_: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a predicate holds for a type or, at any depth, for a type within it."""
    if is_(kind):
        return True
    if pt.is_dictionary(kind):
        return contains_type(kind.value_type, is_)
    kind = getattr(kind, "storage_type", kind)
    return is_(kind) or any(contains_type(kind.field(n).type, is_) for n in range(kind.num_fields))


def is_binary(data_type: pa.DataType) -> bool:
    """Return whether this is ``binary`` or ``large_binary``."""
    return bool(pt.is_binary(data_type) or pt.is_large_binary(data_type))


def single_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values of all chunks in one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def move_dictionary_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Make values null that point to a null in their dictionary; other columns are not changed.

    Lance stores nulls so in file version 2.0, and Arrow cannot join dictionaries that have nulls.
    """
    if not pt.is_dictionary(column.type) or not any(c.dictionary.null_count for c in column.chunks):
        return column
    return pa.chunked_array([_with_null_indices(chunk) for chunk in column.chunks], column.type)


def _with_null_indices(array: pa.DictionaryArray) -> pa.DictionaryArray:
    dictionary = array.dictionary
    if not dictionary.null_count:
        return array
    present = dictionary.is_valid().to_numpy(zero_copy_only=False)
    moved = pa.array(np.cumsum(present) - 1, mask=~present)
    indices = moved.take(array.indices).cast(array.type.index_type)
    return pa.DictionaryArray.from_arrays(
        indices, dictionary.drop_null(), ordered=array.type.ordered
    )


def fill_null_structs(array: pa.Array) -> pa.Array:
    """Replace null structs by structs whose fields are null, also within structs.

    For files of :data:`VERSIONS_WITHOUT_NULL_STRUCTS`. Other arrays are not changed.
    """
    if not pt.is_struct(array.type):
        return array
    parts = [fill_null_structs(part) for part in array.flatten()]
    return pa.StructArray.from_arrays(parts, fields=list(array.type))


def value_buffer(column: pa.Array, dtype: str) -> npt.NDArray[Any]:
    """View the values of a fixed-width array as numpy; the slots of nulls hold anything."""
    item = np.dtype(dtype)
    return np.frombuffer(
        column.buffers()[1], item, count=len(column), offset=column.offset * item.itemsize
    )


def _why_unstorable(field: pa.Field, version: str, *, is_nested: bool = True) -> str | None:
    if _BLOB in (field.metadata or {}):
        if is_nested:
            return _NO_NESTED_BLOBS
        if field.type != pa.large_binary():
            return f"blobs as {field.type} (as large_binary it can)"
    if not is_nested and getattr(field.type, "extension_name", None) == BLOB_TYPE:
        return None
    # Types are equal whatever metadata their children have.
    nested = field.type.num_fields or isinstance(field.type, pa.BaseExtensionType)
    judge = _why_type_unstorable if nested else _why_flat_type_unstorable
    return judge(field.type, version)


def _why_type_unstorable(data_type: pa.DataType, version: str) -> str | None:
    kind = getattr(data_type, "storage_type", data_type)
    if any(is_(kind) for is_ in _UNSUPPORTED_TYPES):
        return f"values of type {kind}"
    if getattr(data_type, "extension_name", None) == BLOB_TYPE:
        return _NO_NESTED_BLOBS
    if pt.is_struct(kind) and not kind.num_fields:
        return "structs without a field"
    if pt.is_map(kind) and version < _MAPS_SINCE:
        return f"maps in file version {version} (from {_MAPS_SINCE} on it can)"
    if pt.is_fixed_size_list(kind):
        inner = kind.value_type
        while pt.is_fixed_size_list(inner):
            inner = inner.value_type
        inner = getattr(inner, "storage_type", inner)
        if pt.is_nested(inner) or pt.is_string(inner) or pt.is_binary(inner) or pt.is_map(inner):
            return f"lists of fixed size of {inner}"
        if pt.is_large_string(inner) or pt.is_large_binary(inner):
            return f"lists of fixed size of {inner}"
    for number in range(kind.num_fields):
        reason = _why_unstorable(kind.field(number), version)
        if reason is not None:
            return reason
    return None


_why_flat_type_unstorable = functools.lru_cache(maxsize=4096)(_why_type_unstorable)


def _python_values(column: pa.ChunkedArray) -> list[object]:
    try:
        values: list[object] = column.to_pylist()
    except (ValueError, ArithmeticError):
        values = [_python_value(scalar) for scalar in column]
    return values


def _python_value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, ArithmeticError):
        return NO_VALUE
