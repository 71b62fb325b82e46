"""Stored rows as Python values, to be shown."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

NO_VALUE = "out of Python's range"
"""Stands for a value that Python has none for, such as a date after the year 9999."""


def python_rows(rows: pa.Table) -> list[dict[str, Any]]:
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
