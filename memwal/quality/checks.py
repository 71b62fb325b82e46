"""Expectations evaluated over Arrow: single values, whole columns, and vectors.

Expectations about values and columns have the meaning that Great Expectations gives them for a
pandas batch: a missing value, NaN included, fails only expectations about missing values. Great
Expectations has no expectations about vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError
from memwal.util.arrays import Mask
from memwal.util.records import JsonMapping

Check = Callable[[pa.Table, JsonMapping], tuple[Mask, Mask]]
"""Returns two masks over the rows: failing, and evaluated."""
Whole = Callable[[pa.Table, JsonMapping], bool]
Compare = Callable[[pa.Array, pa.Array], pa.BooleanArray]
# Rows whose vector elements are converted to float64 at a time.
_PART = 16_384
_BOUNDS = ("min_value", "max_value")
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
"""Names of types in pandas and SQL, and the names of the same types in Arrow."""


def is_vector(kind: pa.DataType) -> bool:
    """Return whether a type is a vector: a list of floating-point numbers or integers."""
    return _is_list(kind) and (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    )


def is_present(column: pa.Array) -> Mask:
    """Mark values that are neither null nor NaN."""
    return ~to_mask(column.is_null(nan_is_null=_has_nan(column.type)))


def between(values: pa.Array, kwargs: JsonMapping) -> Mask:
    """Mark values within ``min_value`` and ``max_value``; a null value is not within them."""
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
            # Arrow would compare as floats, and fails if a value has no exact float.
            bound = math.ceil(bound) if up is not is_strict else math.floor(bound)
            limits = np.iinfo(values.type.to_pandas_dtype())
            if not limits.min <= bound <= limits.max:
                if (bound < limits.min) is not up:
                    inside = pc.and_(inside, False)
                continue
        compare = tight if is_strict else loose
        inside = pc.and_kleene(inside, compare(values, _bound_scalar(bound, values.type)))
    return to_mask(pc.fill_null(inside, False))


def vector_failures(type_: str, column: pa.Array, kwargs: JsonMapping) -> Mask:
    """Mark the rows that fail an expectation about vectors.

    Raises InvalidInputError if the column holds no vectors.
    """
    if not is_vector(column.type):
        raise InvalidInputError(f"{type_} needs a column of vectors, not of {column.type}")
    return VECTOR_CHECKS[type_](column, kwargs)


def combine_column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array."""
    column = table.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def to_mask(array: pa.Array) -> Mask:
    """Convert a boolean array without nulls to NumPy."""
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def _value_check(expected: Callable[[pa.Array, JsonMapping], Mask]) -> Check:
    def check(rows: pa.Table, kwargs: JsonMapping) -> tuple[Mask, Mask]:
        column = combine_column(rows, kwargs["column"])
        present = is_present(column)
        return present & ~expected(column, kwargs), present

    return check


def _pair_check(compare: Compare, or_equal: Compare) -> Check:
    def check(rows: pa.Table, kwargs: JsonMapping) -> tuple[Mask, Mask]:
        left, right = (combine_column(rows, kwargs[name]) for name in ("column_A", "column_B"))
        left_present, right_present = is_present(left), is_present(right)
        match kwargs.get("ignore_row_if", "both_values_are_missing"):
            case "both_values_are_missing":
                evaluated = left_present | right_present
            case "either_value_is_missing":
                evaluated = left_present & right_present
            case "neither":
                evaluated = np.ones(len(left), np.bool_)
            case choice:
                raise InvalidInputError(f"ignore_row_if does not know {choice!r}")
        holds = (or_equal if kwargs.get("or_equal") else compare)(left, right)
        return evaluated & ~to_mask(pc.fill_null(holds, False)), evaluated

    return check


def _presence_check(*, required: bool) -> Check:
    def check(rows: pa.Table, kwargs: JsonMapping) -> tuple[Mask, Mask]:
        present = is_present(combine_column(rows, kwargs["column"]))
        return present != required, np.ones(len(present), np.bool_)

    return check


def _negated(expected: Callable[[pa.Array, JsonMapping], Mask]) -> Check:
    return _value_check(lambda column, kwargs: ~expected(column, kwargs))


def _in_set(column: pa.Array, kwargs: JsonMapping) -> Mask:
    return to_mask(pc.is_in(column, _values_of_type(kwargs["value_set"], column.type)))


def _regex(column: pa.Array, kwargs: JsonMapping) -> Mask:
    return _matching(column, kwargs["regex"])


def _regex_list(column: pa.Array, kwargs: JsonMapping) -> Mask:
    matches = [_matching(column, pattern) for pattern in kwargs["regex_list"]]
    join = np.logical_and if kwargs.get("match_on", "any") == "all" else np.logical_or
    return np.asarray(join.reduce(matches), np.bool_)


def _matching(column: pa.Array, pattern: str) -> Mask:
    if not _is_text(column.type):
        raise InvalidInputError(f"patterns need a column of texts, not of {column.type}")
    return to_mask(pc.fill_null(pc.match_substring_regex(column, pattern), False))


def _lengths(column: pa.Array) -> pa.Array:
    kind = column.type
    if _is_text(kind):
        return pc.utf8_length(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_length(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pc.list_value_length(column)
    raise InvalidInputError(f"lengths need a column of texts, bytes or lists, not of {kind}")


ROW_CHECKS: dict[str, Check] = {
    "expect_column_values_to_not_be_null": _presence_check(required=True),
    "expect_column_values_to_be_null": _presence_check(required=False),
    "expect_column_values_to_be_between": _value_check(between),
    "expect_column_values_to_be_in_set": _value_check(_in_set),
    "expect_column_values_to_not_be_in_set": _negated(_in_set),
    "expect_column_values_to_match_regex": _value_check(_regex),
    "expect_column_values_to_not_match_regex": _negated(_regex),
    "expect_column_values_to_match_regex_list": _value_check(_regex_list),
    "expect_column_values_to_not_match_regex_list": _negated(_regex_list),
    "expect_column_value_lengths_to_be_between": _value_check(
        lambda column, kwargs: between(_lengths(column), kwargs)
    ),
    "expect_column_value_lengths_to_equal": _value_check(
        lambda column, kwargs: between(_lengths(column), dict.fromkeys(_BOUNDS, kwargs["value"]))
    ),
    "expect_column_pair_values_a_to_be_greater_than_b": _pair_check(pc.greater, pc.greater_equal),
    "expect_column_pair_values_to_be_equal": _pair_check(pc.equal, pc.equal),
}
"""Checks of expectations about a row alone, by type."""


def _unique(rows: pa.Table, kwargs: JsonMapping) -> tuple[Mask, Mask]:
    column = combine_column(rows, kwargs["column"])
    present = is_present(column)
    return present & _repeated(_codes(column)), present


def _unique_together(rows: pa.Table, kwargs: JsonMapping) -> tuple[Mask, Mask]:
    columns = [combine_column(rows, name) for name in kwargs["column_list"]]
    present = np.stack([is_present(column) for column in columns])
    match kwargs.get("ignore_row_if", "all_values_are_missing"):
        case "all_values_are_missing":
            evaluated = np.asarray(present.any(axis=0))
        case "any_value_is_missing":
            evaluated = np.asarray(present.all(axis=0))
        case "never":
            evaluated = np.ones(rows.num_rows, np.bool_)
        case choice:
            raise InvalidInputError(f"ignore_row_if does not know {choice!r}")
    codes = _codes(columns[0])
    for column in columns[1:]:
        more = _codes(column)
        pairs = codes * (int(more.max(initial=0)) + 1) + more
        # Renumbered, so that the product with the next column does not overflow.
        codes = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    failed = np.zeros(rows.num_rows, np.bool_)
    failed[evaluated] = _repeated(codes[evaluated])
    return failed, evaluated


def _repeated(codes: npt.NDArray[np.int64]) -> Mask:
    return np.asarray(np.bincount(codes, minlength=1)[codes] > 1)


def _codes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Number equal values the same, from 0 up; all missing values have the same number."""
    encoded = column.dictionary_encode()
    codes = _to_numpy(pc.fill_null(encoded.indices, len(encoded.dictionary))).astype(np.int64)
    if _has_nan(column.type):
        codes[~is_present(column)] = len(encoded.dictionary)
    return codes


UNIQUE_CHECKS: dict[str, Check] = {
    "expect_column_values_to_be_unique": _unique,
    "expect_compound_columns_to_be_unique": _unique_together,
}
"""Checks of expectations that compare rows, by type. All rows of a set of equals fail."""


def _vector_not_null(column: pa.Array, kwargs: JsonMapping) -> Mask:
    """Mark missing vectors, and vectors with a missing element."""
    return to_mask(column.is_null()) | _rows_with_element(
        column, to_mask(column.flatten().is_null())
    )


def _vector_dimension(column: pa.Array, kwargs: JsonMapping) -> Mask:
    """Mark vectors with another number of elements."""
    lengths = pc.fill_null(pc.list_value_length(column), kwargs["dimension"])
    return np.asarray(_to_numpy(lengths) != kwargs["dimension"])


def _vector_finite(column: pa.Array, kwargs: JsonMapping) -> Mask:
    """Mark vectors with an element that is NaN or infinite."""
    values = column.flatten()
    if not pa.types.is_floating(values.type):
        return np.zeros(len(column), np.bool_)
    return _rows_with_element(column, ~np.isfinite(_to_numpy(pc.fill_null(values, 0))))


def _vector_norm(column: pa.Array, kwargs: JsonMapping) -> Mask:
    """Mark vectors whose Euclidean norm is out of bounds; a NaN is out of any bounds."""
    present = ~to_mask(column.is_null())
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


def _norms(column: pa.Array) -> npt.NDArray[np.float64]:
    # The square of a float16 or float32 may overflow.
    numbers = _to_numpy(pc.fill_null(column.flatten(), 0)).astype(np.float64)
    if _is_dense(column):
        rows = numbers.reshape(len(column), column.type.list_size)
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))
    squares = np.bincount(_element_rows(column), weights=numbers**2, minlength=len(column))
    return np.asarray(np.sqrt(squares))


def _rows_with_element(column: pa.Array, elements: Mask) -> Mask:
    if _is_dense(column):
        return np.asarray(elements.reshape(len(column), column.type.list_size).any(axis=1))
    rows = np.zeros(len(column), np.bool_)
    rows[_element_rows(column)[elements]] = True
    return rows


def _element_rows(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths = _to_numpy(pc.fill_null(pc.list_value_length(column), 0))
    return np.repeat(np.arange(len(column)), lengths)


def _is_dense(column: pa.Array) -> bool:
    return bool(pa.types.is_fixed_size_list(column.type) and column.null_count == 0)


VECTOR_CHECKS: dict[str, Callable[[pa.Array, JsonMapping], Mask]] = {
    "expect_vector_values_to_not_be_null": _vector_not_null,
    "expect_vector_dimension_to_equal": _vector_dimension,
    "expect_vector_values_to_be_finite": _vector_finite,
    "expect_vector_norm_to_be_between": _vector_norm,
}
"""Checks of vector expectations, by type. A missing vector fails the first only."""


def _aggregate_check(figure: Callable[[pa.Array], pa.Scalar]) -> Whole:
    return lambda rows, kwargs: _within(figure(_present_values(rows, kwargs)), kwargs)


def _distinct_share(values: pa.Array) -> pa.Scalar:
    return pa.scalar(len(values.unique()) / len(values) if len(values) else None, pa.float64())


def _present_share(rows: pa.Table, kwargs: JsonMapping) -> bool:
    present = is_present(combine_column(rows, kwargs["column"]))
    share = float(np.mean(present)) if len(present) else None
    return _within(pa.scalar(share, pa.float64()), kwargs)


def _type_in(rows: pa.Table, kwargs: JsonMapping) -> bool:
    kind = str(rows.schema.field(kwargs["column"]).type)
    names = kwargs.get("type_list") or [kwargs["type_"]]
    return any(kind in (name, *_SAME_TYPES.get(str(name).lower(), ())) for name in names)


def _within(value: pa.Scalar, kwargs: JsonMapping) -> bool:
    """Return whether a value is within the bounds; null is not."""
    return value.is_valid and bool(between(pa.array([value], value.type), kwargs)[0])


def _present_values(rows: pa.Table, kwargs: JsonMapping) -> pa.Array:
    column = combine_column(rows, kwargs["column"])
    return column.filter(pa.array(is_present(column)))


WHOLE_CHECKS: dict[str, Whole] = {
    "expect_column_to_exist": lambda rows, kwargs: kwargs["column"] in rows.schema.names,
    "expect_column_values_to_be_of_type": _type_in,
    "expect_column_values_to_be_in_type_list": _type_in,
    "expect_table_row_count_to_be_between": lambda rows, kwargs: _within(
        pa.scalar(rows.num_rows), kwargs
    ),
    "expect_table_row_count_to_equal": lambda rows, kwargs: bool(rows.num_rows == kwargs["value"]),
    "expect_column_min_to_be_between": _aggregate_check(pc.min),
    "expect_column_max_to_be_between": _aggregate_check(pc.max),
    "expect_column_mean_to_be_between": _aggregate_check(pc.mean),
    "expect_column_sum_to_be_between": _aggregate_check(lambda values: pc.sum(values, min_count=0)),
    # Of a sample, as in pandas.
    "expect_column_stdev_to_be_between": _aggregate_check(lambda values: pc.stddev(values, ddof=1)),
    "expect_column_proportion_of_non_null_values_to_be_between": _present_share,
    "expect_column_unique_value_count_to_be_between": _aggregate_check(
        lambda values: pa.scalar(len(values.unique()))
    ),
    "expect_column_proportion_of_unique_values_to_be_between": _aggregate_check(_distinct_share),
}
"""Checks of expectations about all rows together, by type."""


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    )


def _to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _bound_scalar(value: object, kind: pa.DataType) -> pa.Scalar:
    """Convert a bound to a type that Arrow compares with a column by value."""
    if isinstance(value, str) and not _is_text(kind):
        if not pa.types.is_temporal(kind):
            raise InvalidInputError(f"a column of {kind} cannot be compared with a text")
        return _parse_time(value, kind)
    if isinstance(value, str) is not _is_text(kind):
        raise InvalidInputError(f"a column of {kind} cannot be compared with {value!r}")
    if pa.types.is_integer(kind):
        return pa.scalar(value, kind)
    return pa.scalar(_widen_number(value, kind))


def _widen_number(value: object, kind: pa.DataType) -> object:
    """Convert an integer to float for float columns, since it may be too large for Arrow."""
    return float(value) if isinstance(value, int) and pa.types.is_floating(kind) else value


def _parse_time(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"{text!r} is no {kind}: give it as ISO 8601 does") from error


def _values_of_type(values: Iterable[object], kind: pa.DataType) -> pa.Array:
    """Keep the values that a column of this type can hold."""
    fitting = []
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
                fitting.append(pa.scalar(_widen_number(value, kind)).cast(kind))
            except (pa.ArrowInvalid, OverflowError):
                # No integer column can hold 1.5, and no Arrow column 2 ** 70.
                continue
    return pa.array(fitting, kind)


def _has_nan(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
