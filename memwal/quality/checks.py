"""Expectations evaluated over Arrow: single values, whole columns, and vectors.

Expectations about values and columns mean what Great Expectations means by them for a pandas batch:
a missing value, NaN included, is no failure, except to an expectation about missing values. Great
Expectations has none about vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError

# Rows whose elements are widened at a time.
_PART = 16_384

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def is_vector(kind: pa.DataType) -> bool:
    """Whether a column holds vectors: lists of floating-point or small whole numbers."""
    return _is_list(kind) and (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    )


def not_null(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    """Fails where there is no vector, or where one lacks an element."""
    return _bools(column.is_null()) | _holding(column, _bools(_elements(column).is_null()))


def dimension(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    """Fails where a vector has another number of elements."""
    lengths = pc.fill_null(pc.list_value_length(column), kwargs["dimension"])
    return np.asarray(_numbers(lengths) != kwargs["dimension"])


def finite(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    """Fails where an element is NaN or infinite."""
    values = _elements(column)
    if not pa.types.is_floating(values.type):
        return np.zeros(len(column), np.bool_)
    return _holding(column, ~np.isfinite(_numbers(pc.fill_null(values, 0))))


def norm(column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    """Fails where the Euclidean norm is outside; a norm that is NaN is outside of everything."""
    present = ~_bools(column.is_null())
    norms = np.concatenate(
        [_norms(column.slice(start, _PART)) for start in range(0, len(column), _PART)]
        or [np.empty(0)]
    )
    inside = np.ones(len(column), np.bool_)
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if low is not None:
        inside &= norms > low if kwargs.get("strict_min") else norms >= low
    if high is not None:
        inside &= norms < high if kwargs.get("strict_max") else norms <= high
    return present & ~inside


VECTOR_CHECKS: dict[str, Callable[[pa.Array, Mapping[str, Any]], Mask]] = {
    "expect_vector_values_to_not_be_null": not_null,
    "expect_vector_dimension_to_equal": dimension,
    "expect_vector_values_to_be_finite": finite,
    "expect_vector_norm_to_be_between": norm,
}
"""Failing rows of a column of vectors, by type. A missing vector fails the first only."""


def vector_failures(type_: str, column: pa.Array, kwargs: Mapping[str, Any]) -> Mask:
    """Rows that fail an expectation about vectors.

    Raises
    ------
    InvalidInputError
        The column holds no vectors.
    """
    if not is_vector(column.type):
        raise InvalidInputError(f"{type_} needs a column of vectors, not of {column.type}")
    return VECTOR_CHECKS[type_](column, kwargs)


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    )


def _norms(column: pa.Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    # Of short floats a square may be too large.
    numbers = _numbers(pc.fill_null(_elements(column), 0)).astype(np.float64)
    if _is_dense(column):
        rows = numbers.reshape(len(column), column.type.list_size)
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))
    squares = np.bincount(_parents(column), weights=numbers**2, minlength=len(column))
    return np.asarray(np.sqrt(squares))


def _is_dense(column: pa.Array) -> bool:
    return bool(pa.types.is_fixed_size_list(column.type) and column.null_count == 0)


def _elements(column: pa.Array) -> pa.Array:
    """Elements of the vectors that are there."""
    return column.flatten()


def _parents(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """To which row each of the elements belongs."""
    lengths = _numbers(pc.fill_null(pc.list_value_length(column), 0))
    return np.repeat(np.arange(len(column)), lengths)


def _holding(column: pa.Array, hit: Mask) -> Mask:
    """Rows with an element that was hit."""
    if _is_dense(column):
        return np.asarray(hit.reshape(len(column), column.type.list_size).any(axis=1))
    failed = np.zeros(len(column), np.bool_)
    failed[_parents(column)[hit]] = True
    return failed


def _bools(array: pa.Array) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def _numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


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
