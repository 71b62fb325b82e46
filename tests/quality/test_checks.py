"""Expectations over Arrow, on values that are odd."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memwal.quality.evaluate import evaluate
from memwal.quality.expectations import read_suite

NAN, INF = float("nan"), float("inf")


def failing(values: pa.Array | list[Any], type_: str, **kwargs: Any) -> list[int]:
    rows = pa.table({"c": values})
    (found,) = evaluate(read_suite([{"type": type_, "kwargs": {"column": "c", **kwargs}}]), rows)
    assert found.error is None, found.error
    assert found.failed is not None
    return [int(n) for n in np.flatnonzero(found.failed)]


def undecided(values: pa.Array | list[Any], type_: str, **kwargs: Any) -> str:
    rows = pa.table({"c": values})
    (found,) = evaluate(read_suite([{"type": type_, "kwargs": {"column": "c", **kwargs}}]), rows)
    assert not found.success
    assert found.error is not None
    return found.error


BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"


def test_times_are_compared_with_texts() -> None:
    times = pa.array(["2024-01-01", "2024-06-01", None]).cast(pa.timestamp("us"))
    assert failing(times, BETWEEN, min_value="2024-03-01") == [0]
    assert failing(times, IN_SET, value_set=["2024-06-01"]) == [0]


WITHOUT_PANDAS = """
import sys
class Hidden:
    def find_spec(name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden)
import pyarrow as pa
from memwal.quality.evaluate import evaluate
from memwal.quality.expectations import read_suite
times = pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns"))
bound = {"column": "c", "max_value": "2023-11-14T22:13:20.123456788"}
some = {"column": "c", "value_set": ["2023-11-14T22:13:20.123456789"]}
suite = [
    {"type": "expect_column_max_to_be_between", "kwargs": bound},
    {"type": "expect_column_values_to_be_in_set", "kwargs": some},
]
print([found.success for found in evaluate(read_suite(suite), pa.table({"c": times}))])
"""


def test_nanoseconds_are_compared_without_pandas() -> None:
    """Python's times have none, so Arrow converts them with pandas only."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["[False,", "True]"]


def test_missing_values_fail_nothing_else() -> None:
    assert failing([1.0, None, NAN, 5.0], BETWEEN, max_value=2) == [3]
    assert failing([1.0, None, NAN], "expect_column_values_to_not_be_null") == [1, 2]


def test_values_of_another_type_are_in_no_set() -> None:
    assert failing([1, 2], IN_SET, value_set=["1", 2.0, 1.5, True]) == [0]
    assert failing([True, False], IN_SET, value_set=[1, True]) == [1]


def test_lengths_are_characters() -> None:
    lengths = "expect_column_value_lengths_to_equal"
    assert failing(["äö", "abc", None], lengths, value=2) == [1]
    assert failing([[1], [1, 2]], lengths, value=2) == [0]


def test_a_pattern_takes_no_exponential_time() -> None:
    hard = ["a" * 5_000 + "!"] * 50
    pattern = "^(a+)+$"
    assert failing(hard, "expect_column_values_to_match_regex", regex=pattern) == list(range(50))


@pytest.mark.parametrize(
    ("values", "type_", "kwargs"),
    [
        (["a"], BETWEEN, {"min_value": 1}),
        ([1], BETWEEN, {"min_value": "a"}),
        ([1], "expect_column_values_to_match_regex", {"regex": "1"}),
        ([1], "expect_column_value_lengths_to_equal", {"value": 1}),
        ([1], "expect_vector_values_to_be_finite", {}),
        ([["x"]], "expect_vector_values_to_be_finite", {}),
        ([{"a": 1}], "expect_column_mean_to_be_between", {"min_value": 1}),
    ],
)
def test_a_type_that_does_not_go_with_it(
    values: list[Any], type_: str, kwargs: dict[str, Any]
) -> None:
    assert undecided(values, type_, **kwargs)


class TestVectors:
    DENSE = pa.array(
        [[3.0, 4.0], [0.0, 0.0], [NAN, 1.0], [float("inf"), 0.0]], pa.list_(pa.float32(), 2)
    )
    GAPS = pa.array([[3.0, 4.0], None, [NAN, 1.0], [None, 1.0], []], pa.list_(pa.float32()))
    FIXED_GAPS = pa.array([[3.0, 4.0], None, [NAN, 1.0], [None, 1.0]], pa.list_(pa.float32(), 2))

    def test_norms(self) -> None:
        norm = "expect_vector_norm_to_be_between"
        assert failing(self.DENSE, norm, min_value=1, max_value=5) == [1, 2, 3]
        assert failing(self.DENSE, norm, max_value=5, strict_max=True) == [0, 2, 3]
        assert failing(self.GAPS, norm, min_value=2) == [2, 3, 4]
        assert failing(self.FIXED_GAPS, norm, min_value=2) == [2, 3]
        # A missing number counts as 0.
        assert failing(self.GAPS, norm, max_value=1) == [0, 2]
        assert failing(self.FIXED_GAPS, norm, max_value=1) == [0, 2]

    def test_finite(self) -> None:
        finite = "expect_vector_values_to_be_finite"
        assert failing(self.DENSE, finite) == [2, 3]
        assert failing(self.GAPS, finite) == [2]
        assert failing(self.FIXED_GAPS, finite) == [2]
        assert failing(pa.array([[1]], pa.list_(pa.int8(), 1)), finite) == []

    def test_nulls(self) -> None:
        nulls = "expect_vector_values_to_not_be_null"
        assert failing(self.DENSE, nulls) == []
        assert failing(self.GAPS, nulls) == [1, 3]
        assert failing(self.FIXED_GAPS, nulls) == [1, 3]

    def test_dimensions(self) -> None:
        dimension = "expect_vector_dimension_to_equal"
        assert failing(self.GAPS, dimension, dimension=2) == [4]
        assert failing(self.DENSE, dimension, dimension=3) == [0, 1, 2, 3]

    def test_large_numbers_do_not_overflow(self) -> None:
        large = pa.array([[1e30, 1e30]], pa.list_(pa.float32(), 2))
        assert failing(large, "expect_vector_norm_to_be_between", max_value=2e30) == []

    def test_of_a_slice(self) -> None:
        part = self.FIXED_GAPS.slice(1)
        assert failing(part, "expect_vector_values_to_be_finite") == [1]
        assert failing(self.GAPS.slice(2), "expect_vector_norm_to_be_between", min_value=2) == [
            0,
            1,
            2,
        ]
        assert failing(self.DENSE.slice(2), "expect_vector_values_to_be_finite") == [0, 1]


LARGE = [2**53 + 1, -(2**53) - 1, 5, 0]


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"min_value": 0.5}, [1, 3]),
        ({"min_value": 0.0}, [1]),
        ({"min_value": 0.0, "strict_min": True}, [1, 3]),
        ({"min_value": -0.5, "strict_min": True}, [1]),
        ({"max_value": 5.0}, [0]),
        ({"max_value": 5.0, "strict_max": True}, [0, 2]),
        ({"max_value": 4.5}, [0, 2]),
        ({"max_value": 5.5, "strict_max": True}, [0]),
        ({"min_value": 2**53 + 1}, [1, 2, 3]),
        ({"min_value": 2**53 + 1, "strict_min": True}, [0, 1, 2, 3]),
        ({"min_value": 2**70}, [0, 1, 2, 3]),
        ({"min_value": -(2**70)}, []),
        ({"max_value": 2**70}, []),
        ({"max_value": -(2**70), "strict_max": True}, [0, 1, 2, 3]),
    ],
)
def test_whole_numbers_that_no_float_is(kwargs: dict[str, Any], expected: list[int]) -> None:
    found = failing(pa.array(LARGE, pa.int64()), "expect_column_values_to_be_between", **kwargs)
    assert found == expected


def test_numbers_without_a_sign() -> None:
    values = pa.array([0, 2**64 - 1], pa.uint64())
    assert failing(values, "expect_column_values_to_be_between", min_value=-1) == []
    assert failing(values, "expect_column_values_to_be_between", min_value=1) == [0]
    assert failing(values, "expect_column_values_to_be_between", max_value=2**63) == [1]


def test_bounds_that_arrow_has_no_number_for() -> None:
    assert failing([1.0, 1e300], "expect_column_values_to_be_between", min_value=2**70) == [0]
    assert failing([1.0, 2.0**70], "expect_column_values_to_be_in_set", value_set=[2**70]) == [0]
    assert failing([1, 2], "expect_column_values_to_be_in_set", value_set=[2**70, 1]) == [1]
    assert failing(["ab"], "expect_column_value_lengths_to_equal", value=2**70) == [0]
    decimals = pa.array([1, 2]).cast(pa.decimal128(30, 2))
    assert undecided(decimals, "expect_column_values_to_be_between", min_value=2**70)
