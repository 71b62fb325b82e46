"""Expectations about single values, over Arrow: which rows fail.

They mean what Great Expectations means by them for a pandas batch: a value that is missing, NaN
among them, is no failure, except to an expectation about missing values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError
from memwal.quality.vectors import Mask

Check = Callable[[pa.Table, Mapping[str, Any]], tuple[Mask, Mask]]
"""Failing rows, and those that were looked at."""


def between(values: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    """Whether each value lies within ``min_value`` and ``max_value``; null where it is null."""
    inside = pa.array(np.ones(len(values), np.bool_))
    for key, strict, loose, tight, up in (
        ("min_value", "strict_min", pc.greater_equal, pc.greater, True),
        ("max_value", "strict_max", pc.less_equal, pc.less, False),
    ):
        bound = kwargs.get(key)
        if bound is None:
            continue
        is_strict = bool(kwargs.get(strict))
        if pa.types.is_integer(values.type) and isinstance(bound, int | float):
            # Arrow would compare as floats, and refuses to as soon as one of the values is none.
            bound = math.ceil(bound) if up is not is_strict else math.floor(bound)
            low, high = _range(values.type)
            if not low <= bound <= high:
                if (bound < low) is not up:
                    inside = pc.and_(inside, False)
                continue
        compare = tight if is_strict else loose
        inside = pc.and_kleene(inside, compare(values, _scalar(bound, values.type)))
    return bools(pc.fill_null(inside, False))


def present(column: pa.Array) -> Mask:
    """Where a value is neither null nor NaN."""
    return ~bools(column.is_null(nan_is_null=_has_nan(column.type)))


def bools(array: pa.Array) -> Mask:
    """The values of a boolean array."""
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def one_array(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    column = table.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _of_value(expected: Callable[[pa.Array, Mapping[str, Any]], Mask]) -> Check:
    def check(rows: pa.Table, kwargs: Mapping[str, Any]) -> tuple[Mask, Mask]:
        column = one_array(rows, kwargs["column"])
        there = present(column)
        return there & ~expected(column, kwargs), there

    return check


def _missing(rows: pa.Table, kwargs: Mapping[str, Any]) -> tuple[Mask, Mask]:
    there = present(one_array(rows, kwargs["column"]))
    return ~there, np.ones(len(there), np.bool_)


def _there(rows: pa.Table, kwargs: Mapping[str, Any]) -> tuple[Mask, Mask]:
    there = present(one_array(rows, kwargs["column"]))
    return there, np.ones(len(there), np.bool_)


def _in_set(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    return bools(pc.is_in(column, _same_values(kwargs["value_set"], column.type)))


def _not_in_set(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    return ~_in_set(column, kwargs)


def _matching(column: pa.Array, pattern: str) -> Mask:
    if not _is_text(column.type):
        raise InvalidInputError(f"patterns need a column of texts, not of {column.type}")
    return bools(pc.fill_null(pc.match_substring_regex(column, pattern), False))


def _regex(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    return _matching(column, kwargs["regex"])


def _not_regex(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    return ~_matching(column, kwargs["regex"])


def _regex_list(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    found = [_matching(column, pattern) for pattern in kwargs["regex_list"]]
    join = np.logical_and if kwargs.get("match_on", "any") == "all" else np.logical_or
    return np.asarray(join.reduce(found), np.bool_)


def _not_regex_list(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    return ~_regex_list(column, {**kwargs, "match_on": "any"})


def _lengths(column: pa.Array) -> pa.Array:
    kind = column.type
    if _is_text(kind):
        return pc.utf8_length(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_length(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pc.list_value_length(column)
    raise InvalidInputError(f"lengths need a column of texts, bytes or lists, not of {kind}")


def _length_between(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    return between(_lengths(column), kwargs)


def _length_equal(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    return between(_lengths(column), {"min_value": kwargs["value"], "max_value": kwargs["value"]})


def _pair(compare: Callable[[Any, Any], Any], or_equal: Callable[[Any, Any], Any]) -> Check:
    def check(rows: pa.Table, kwargs: Mapping[str, Any]) -> tuple[Mask, Mask]:
        left, right = (one_array(rows, kwargs[name]) for name in ("column_A", "column_B"))
        one, other = present(left), present(right)
        match kwargs.get("ignore_row_if", "both_values_are_missing"):
            case "both_values_are_missing":
                looked = one | other
            case "either_value_is_missing":
                looked = one & other
            case "neither":
                looked = np.ones(len(one), np.bool_)
            case choice:
                raise InvalidInputError(f"ignore_row_if does not know {choice!r}")
        holds = (or_equal if kwargs.get("or_equal") else compare)(left, right)
        return looked & ~bools(pc.fill_null(holds, False)), looked

    return check


ROW_CHECKS: dict[str, Check] = {
    "expect_column_values_to_not_be_null": _missing,
    "expect_column_values_to_be_null": _there,
    "expect_column_values_to_be_between": _of_value(between),
    "expect_column_values_to_be_in_set": _of_value(_in_set),
    "expect_column_values_to_not_be_in_set": _of_value(_not_in_set),
    "expect_column_values_to_match_regex": _of_value(_regex),
    "expect_column_values_to_not_match_regex": _of_value(_not_regex),
    "expect_column_values_to_match_regex_list": _of_value(_regex_list),
    "expect_column_values_to_not_match_regex_list": _of_value(_not_regex_list),
    "expect_column_value_lengths_to_be_between": _of_value(_length_between),
    "expect_column_value_lengths_to_equal": _of_value(_length_equal),
    "expect_column_pair_values_a_to_be_greater_than_b": _pair(pc.greater, pc.greater_equal),
    "expect_column_pair_values_to_be_equal": _pair(pc.equal, pc.equal),
}
"""Of each type that is decided by a row alone."""


def _unique(rows: pa.Table, kwargs: Mapping[str, Any]) -> tuple[Mask, Mask]:
    column = one_array(rows, kwargs["column"])
    there = present(column)
    return there & _repeated(_codes(column)), there


def _unique_together(rows: pa.Table, kwargs: Mapping[str, Any]) -> tuple[Mask, Mask]:
    columns = [one_array(rows, name) for name in kwargs["column_list"]]
    there = np.stack([present(column) for column in columns])
    match kwargs.get("ignore_row_if", "all_values_are_missing"):
        case "all_values_are_missing":
            looked = np.asarray(there.any(axis=0))
        case "any_value_is_missing":
            looked = np.asarray(there.all(axis=0))
        case "never":
            looked = np.ones(rows.num_rows, np.bool_)
        case choice:
            raise InvalidInputError(f"ignore_row_if does not know {choice!r}")
    codes = _codes(columns[0])
    for column in columns[1:]:
        more = _codes(column)
        pairs = codes * (int(more.max(initial=0)) + 1) + more
        # Kept small, so that the next column fits as well.
        codes = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    failed = np.zeros(rows.num_rows, np.bool_)
    failed[looked] = _repeated(codes[looked])
    return failed, looked


UNIQUE_CHECKS: dict[str, Check] = {
    "expect_column_values_to_be_unique": _unique,
    "expect_compound_columns_to_be_unique": _unique_together,
}
"""Of each type that compares rows; every row that has an equal fails."""


def _codes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The same small number, from 0 up, for the same value; missing values are the same."""
    encoded = column.dictionary_encode()
    codes = pc.fill_null(encoded.indices, len(encoded.dictionary))
    found = np.asarray(codes.to_numpy(zero_copy_only=False)).astype(np.int64)
    if _has_nan(column.type):
        found[~present(column)] = len(encoded.dictionary)
    return found


def _repeated(codes: np.ndarray[Any, np.dtype[np.int64]]) -> Mask:
    return np.asarray(np.bincount(codes, minlength=1)[codes] > 1)


def _scalar(value: object, kind: pa.DataType) -> pa.Scalar:
    """A bound in a type that compares with a column as numbers compare, and times with times."""
    if isinstance(value, str) and not _is_text(kind):
        if not pa.types.is_temporal(kind):
            raise InvalidInputError(f"a column of {kind} cannot be compared with a text")
        return _time(value, kind)
    if isinstance(value, str) is not _is_text(kind):
        raise InvalidInputError(f"a column of {kind} cannot be compared with {value!r}")
    if pa.types.is_integer(kind):
        return pa.scalar(value, kind)
    return pa.scalar(_number(value, kind))


def _number(value: object, kind: pa.DataType) -> object:
    """A number as a float for columns of floats, where a whole one may be too large for Arrow."""
    return float(value) if isinstance(value, int) and pa.types.is_floating(kind) else value


def _range(kind: pa.DataType) -> tuple[int, int]:
    """Least and largest value of a type of whole numbers."""
    found = np.iinfo(kind.to_pandas_dtype())
    return int(found.min), int(found.max)


def _time(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"{text!r} is no {kind}: give it as ISO 8601 does") from error


def _same_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Those of the values that a column of this type can hold."""
    found = []
    for value in values:
        if _is_text(kind):
            fits = isinstance(value, str)
        elif pa.types.is_boolean(kind):
            fits = isinstance(value, bool)
        elif pa.types.is_temporal(kind):
            fits = isinstance(value, str)
        else:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        if fits:
            try:
                found.append(pa.scalar(_number(value, kind)).cast(kind).as_py())
            except (pa.ArrowInvalid, OverflowError):
                # 1.5 is in no column of whole numbers, and 2 ** 70 is in none of Arrow's.
                continue
    return pa.array(found, kind)


def _has_nan(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
