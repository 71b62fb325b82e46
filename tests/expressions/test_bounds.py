"""Bounds of a column, from comparisons with constants."""

import pyarrow as pa
import pytest

from memwal.expressions.bounds import ColumnBounds
from memwal.expressions.predicate import Comparison, Constant, Operator


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


def limits(data_type: pa.DataType, *found: tuple[Operator, tuple[Constant, ...]]) -> object:
    comparisons = [Comparison("c", operator, constants) for operator, constants in found]
    return ColumnBounds.of(data_type, comparisons).limits()


@pytest.mark.parametrize(
    ("operator", "numbers", "expected"),
    [
        ("=", (5,), (5, 5)),
        ("in", (7, 3, 5), (3, 7)),
        ("<", (5,), (None, 4)),
        ("<=", (5,), (None, 5)),
        (">", (5,), (6, None)),
        (">=", (5,), (5, None)),
        ("!=", (5,), (None, None)),
    ],
)
def test_the_limits_of_a_comparison_with_integers(
    operator: Operator, numbers: tuple[int, ...], expected: tuple[int | None, int | None]
) -> None:
    constants = tuple(Constant("integer", number) for number in numbers)
    assert limits(pa.int64(), (operator, constants)) == expected


def test_the_limits_of_several_comparisons_are_the_narrowest() -> None:
    given: list[tuple[Operator, int]] = [(">", 3), (">=", 3), ("<", 10), ("<=", 8)]
    constants = [(operator, (Constant("integer", number),)) for operator, number in given]
    assert limits(pa.int64(), *constants) == (4, 8)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [("<", (None, "b")), (">", ("b", None)), ("starts with", ("b", None))],
)
def test_the_limits_of_a_comparison_with_a_text(operator: Operator, expected: object) -> None:
    assert limits(pa.string(), (operator, (Constant("text", "b"),))) == expected
