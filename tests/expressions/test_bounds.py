"""Bounds of a column, from comparisons with constants."""

from __future__ import annotations

import pyarrow as pa
import pytest

from memwal.expressions.bounds import ColumnBounds
from memwal.expressions.predicate import Comparison, Constant


def conditions(data_type: pa.DataType, value: int) -> list[tuple[str, tuple[int, ...]]]:
    comparison = Comparison("c", "=", (Constant("integer", value),))
    return list(ColumnBounds.of(data_type, [comparison]).conditions)


@pytest.mark.parametrize(
    ("data_type", "low", "high"),
    [
        (pa.int8(), -128, 127),
        (pa.uint8(), 0, 255),
        (pa.int64(), -(2**63), 2**63 - 1),
        # SQL reads larger integers as floating-point numbers.
        (pa.uint64(), 0, 2**63 - 1),
    ],
)
def test_only_integers_that_the_column_can_hold_bound_it(
    data_type: pa.DataType, low: int, high: int
) -> None:
    for value in (low, high):
        assert conditions(data_type, value) == [("=", (value,))]
    for value in (low - 1, high + 1):
        assert conditions(data_type, value) == []
