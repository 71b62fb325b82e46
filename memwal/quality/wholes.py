"""Expectations about all rows together, over Arrow: whether they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.quality.columns import between, one_array, present

Whole = Callable[[pa.Table, Mapping[str, Any]], bool]

_SAME_TYPES = {
    "int": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "integer": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "float": ("halffloat", "float", "double"),
    "float16": ("halffloat",),
    "float32": ("float",),
    "float64": ("double",),
    "str": ("string", "large_string", "string_view"),
    "string": ("string", "large_string", "string_view"),
    "boolean": ("bool",),
    "bytes": ("binary", "large_binary", "binary_view"),
}
"""Arrow's names of what others call by a name of their own."""


def _values(rows: pa.Table, kwargs: Mapping[str, Any]) -> pa.Array:
    column = one_array(rows, kwargs["column"])
    return column.filter(pa.array(present(column)))


def _within(found: pa.Scalar, kwargs: Mapping[str, Any]) -> bool:
    """Nothing is within any bounds when there is no value."""
    return found.is_valid and bool(between(pa.array([found.as_py()], found.type), kwargs)[0])


def _figure(figure: Callable[[pa.Array], pa.Scalar]) -> Whole:
    return lambda rows, kwargs: _within(figure(_values(rows, kwargs)), kwargs)


def _total(values: pa.Array) -> pa.Scalar:
    return pc.sum(values, min_count=0)


def _deviation(values: pa.Array) -> pa.Scalar:
    # Of a sample, as pandas has it.
    return pc.stddev(values, ddof=1)


def _distinct(values: pa.Array) -> pa.Scalar:
    return pa.scalar(len(values.unique()))


def _distinct_share(values: pa.Array) -> pa.Scalar:
    return pa.scalar(len(values.unique()) / len(values) if len(values) else None, pa.float64())


def _present_share(rows: pa.Table, kwargs: Mapping[str, Any]) -> bool:
    there = present(one_array(rows, kwargs["column"]))
    share = float(np.mean(there)) if len(there) else None
    return _within(pa.scalar(share, pa.float64()), kwargs)


def _exists(rows: pa.Table, kwargs: Mapping[str, Any]) -> bool:
    return kwargs["column"] in rows.schema.names


def _type_in(rows: pa.Table, kwargs: Mapping[str, Any]) -> bool:
    kind = str(rows.schema.field(kwargs["column"]).type)
    wanted = kwargs.get("type_list") or [kwargs["type_"]]
    return any(kind in (name, *_SAME_TYPES.get(str(name).lower(), ())) for name in wanted)


def _count_between(rows: pa.Table, kwargs: Mapping[str, Any]) -> bool:
    return _within(pa.scalar(rows.num_rows), kwargs)


def _count_equal(rows: pa.Table, kwargs: Mapping[str, Any]) -> bool:
    return bool(rows.num_rows == kwargs["value"])


WHOLE_CHECKS: dict[str, Whole] = {
    "expect_column_to_exist": _exists,
    "expect_column_values_to_be_of_type": _type_in,
    "expect_column_values_to_be_in_type_list": _type_in,
    "expect_table_row_count_to_be_between": _count_between,
    "expect_table_row_count_to_equal": _count_equal,
    "expect_column_min_to_be_between": _figure(pc.min),
    "expect_column_max_to_be_between": _figure(pc.max),
    "expect_column_mean_to_be_between": _figure(pc.mean),
    "expect_column_sum_to_be_between": _figure(_total),
    "expect_column_stdev_to_be_between": _figure(_deviation),
    "expect_column_proportion_of_non_null_values_to_be_between": _present_share,
    "expect_column_unique_value_count_to_be_between": _figure(_distinct),
    "expect_column_proportion_of_unique_values_to_be_between": _figure(_distinct_share),
}
"""Of each type that is decided by all rows together."""
