"""Expectations about vectors, which Great Expectations has none of."""

from __future__ import annotations

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
