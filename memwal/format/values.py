"""Arrow types that Lance can store, and conversion of stored rows to Python values for display.

Lance creates tables with columns that it then cannot write, read back or find in a query. A writer
would acknowledge rows that could never be flushed, so such columns are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError

VERSIONS_WITHOUT_NULL_STRUCTS: Final = frozenset({"0.1", "legacy", "2.0"})
"""File versions that hold no struct that is null."""

_NOT_IN_NAMES: Final = frozenset("`.\0")
_MAPS_SINCE: Final = "2.2"
_BLOB: Final = b"lance-encoding:blob"
_BLOB_TYPES: Final = "lance.blob"

_NEVER: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pt.is_interval,
    pt.is_decimal32,
    pt.is_decimal64,
    pt.is_list_view,
    pt.is_large_list_view,
    pt.is_run_end_encoded,
    pt.is_union,
)


def check_storable(schema: pa.Schema, version: str) -> None:
    """Refuse columns that Lance cannot keep in a file version.

    Raises
    ------
    InvalidInputError
        The message names the column.
    """
    for field in schema:
        if not field.name or _NOT_IN_NAMES & set(field.name):
            raise InvalidInputError(
                f"column {field.name!r}: Lance finds no column whose name is empty or has a dot, a "
                "backtick or a NUL; give it another name"
            )
        reason = _unstorable(field, version)
        if reason is not None:
            raise InvalidInputError(
                f"column {field.name} is {field.type}, and Lance cannot keep {reason}; "
                "use another type"
            )


def _unstorable(field: pa.Field, version: str) -> str | None:
    kind = getattr(field.type, "storage_type", field.type)
    if any(is_(kind) for is_ in _NEVER):
        return f"values of type {kind}"
    name = getattr(field.type, "extension_name", "")
    if _BLOB in (field.metadata or {}) or name.startswith(_BLOB_TYPES):
        return "blobs of their own in rows that are not merged yet (leave that encoding out)"
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
        reason = _unstorable(kind.field(number), version)
        if reason is not None:
            return reason
    return None


NO_VALUE = "out of Python's range"
"""Stands for a value that Python has none for, such as a date after the year 9999."""


def to_python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Each row by the names of its columns.

    Parameters
    ----------
    rows : pyarrow.Table
        Anything can stand in them that Arrow can hold.
    """
    columns = [_values(column) for column in rows.columns]
    return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, ArithmeticError):
        found = [_value(scalar) for scalar in column]
    return found


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, ArithmeticError):
        return NO_VALUE
